"""A rank that hosts the roles of its pool and runs their phases.

Only the standard library and numpy are imported with this module, torch where it is used: see `rank`.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placebench.errors import WorkerFault, mark_fault
from placebench.host.compile_cache import remove_empty_cache
from placebench.host.heap import freeze_heap, imports_uncollected
from placebench.ppo.batch import SequenceBatch
from placebench.ppo.rank import Rank
from placebench.predict.memory.engine import EngineMemory
from placebench.record.folder import HELD
from placebench.spec.phases import GEN, UPDATE_WEIGHTS
from placebench.spec.placement import Role
from placebench.spec.shapes import model_shape
from placebench.spec.text import format_bytes
from placebench.spec.workload import Workload
from placebench.tasks.code_tests import judge_all
from placebench.tasks.rewards import is_judged_by_main

if TYPE_CHECKING:
    import torch

    from placebench.ppo.models import PolicyModel
    from placebench.ppo.rollout.base import Generated, RolloutBackend, SamplingSettings
    from placebench.ppo.training import SequenceModel, TrainedModel
    from placebench.ppo.weights import Layout

# Every token that responses have more gives a trace of `gen` hundreds of kernels more: on H200s, 512 tokens made 13 to
# 19 s of 2 to 4. Much longer ones would take minutes, and gigabytes of the host's memory.
MOST_TRACED_TOKENS = 2048


class PhaseResult(NamedTuple):
    """What a rank returns after a phase."""

    result: Any
    """What the method `_run_<phase>` of `Worker` returned."""
    spans: list[dict[str, Any]]
    """Objects of `spans.jsonl`."""
    kernels: list[dict[str, Any]]
    """Objects of `kernels.jsonl`; none unless they are traced."""


class Worker(Rank):
    """A rank of a pool that hosts roles.

    Args:
        workload: the job.
        roles: the roles that live in the pool.
        pool: the pool's name.
        device: the device's record in launch.json.
        rank: this process's rank in the pool.
        ranks: size of the pool.
        checkpoint: folder of the checkpoint to go on from; None to begin.
    """

    def __init__(
        self,
        workload: Mapping[str, Any],
        roles: Sequence[str],
        pool: str,
        device: Mapping[str, Any],
        rank: int,
        ranks: int,
        checkpoint: str | None = None,
    ) -> None:
        super().__init__(pool, device, rank, ranks)
        self._checkpoint = checkpoint
        self._traces_kernels = False
        self._workload = Workload.model_validate(workload)
        self._first_step = 0
        self._roles = tuple(Role(role) for role in roles)
        self._models: dict[Role, SequenceModel] = {}

    def build(self, address: tuple[str, int]) -> list[dict[str, Any]]:
        """Join the pool's process group and build the roles' models; returns the start-up's spans."""
        import torch

        with self._fault_marked("start-up"):
            with self._spans.span(0, "build_models"):
                self._join(address)
                self._precision: torch.dtype = getattr(torch, self._workload.precision)
                self._build_roles()
            if Role.ROLLOUT in self._roles:
                self._rollout = self._build_rollout(self._torch_device)
            freeze_heap()
        return self._spans.drain()

    def _build_roles(self) -> None:
        from placebench.ppo.role_models import build_models
        from placebench.tasks.rewards import load_reward
        from placebench.tasks.tokenizer import load_tokenizer

        self._tokenizer = load_tokenizer(self._workload.model)
        for role, model in build_models(self._roles, self._workload, self._torch_device):
            self._models[role] = model
        if self._checkpoint:
            self._load(Path(self._checkpoint))
        if Role.REWARD in self._roles and not self._workload.reward_model:
            self._reward = load_reward(self._workload.data.reward)

    @property
    def _trained(self) -> dict[Role, "TrainedModel"]:
        """The models that this rank has a part in training."""
        from placebench.ppo.training import TrainedModel

        return {role: model for role, model in self._models.items() if isinstance(model, TrainedModel)}

    def _load(self, checkpoint: Path) -> None:
        from placebench.ppo.model_state import load_model
        from placebench.record.checkpoints import model_file

        for role, model in self._trained.items():
            load_model(checkpoint / model_file(role), model.module, model.optimizer)

    def save(self, folder: str) -> None:
        """Write the pool's trained models into a folder; collective, the first rank writes."""
        from placebench.ppo.model_state import save_model
        from placebench.record.checkpoints import model_file

        for role, model in self._trained.items():
            save_model(Path(folder) / model_file(role), model.module, model.optimizer)

    def _build_rollout(self, device: "torch.device") -> "RolloutBackend":
        if self._workload.rollout.backend == "torch":
            from placebench.ppo.rollout.torch import TorchRollout

            shared: RolloutBackend = TorchRollout(self._policy.language_model)
            return shared
        rollout = self._build_engine(device, alone=False, keeps_prefixes=True)
        with self._spans.span(0, "first_weights"):
            rollout.update_weights(self._policy_weights())
        return rollout

    def _build_engine(self, device: "torch.device", *, alone: bool, keeps_prefixes: bool) -> "RolloutBackend":
        """A vLLM engine with random weights; arguments as in `VllmRollout`."""
        from placebench.ppo.models import model_config
        from placebench.ppo.rollout.vllm import VllmRollout
        from placebench.ppo.rollout.vllm_build import import_engine

        job, record = self._workload, self._device_record
        memory = EngineMemory(job, model_shape(job.model), self._ranks, record["kind"], record["memory_bytes"])
        with self._spans.span(0, "import_engine"), imports_uncollected():
            import_engine(device.type)
        times = [self._spans.now()]
        # An engine that sleeps holds nothing on the device, which torch's allocator does not know.
        with self._spans.left_out():
            rollout = VllmRollout(
                model_config(job.model),
                device.type,
                job,
                self._ranks,
                lambda: times.append(self._spans.now()),
                most_cache=memory.most_cache,
                alone=alone,
                # Prompts that are answered once share nothing, and the cache takes the host time for every token.
                keeps_prefixes=keeps_prefixes and job.batch.group_size > 1,
            )
        times.append(self._spans.now())
        for phase, (start, end) in zip(("start_engine", "warm_up_engine"), pairwise(times), strict=False):
            self._spans.add(0, phase, start, end)
        return rollout

    def layout(self) -> "Layout":
        """Names and shapes of the actor's weights; collective, as sharded ones are gathered for it."""
        from placebench.ppo.weights import weight_layout

        return weight_layout(self._policy_weights())

    def open_channel(self, ends: int, layout: "Layout", version: int) -> list[dict[str, Any]]:
        """Send the actor's first weights to engines in another pool; returns the start-up's spans.

        Collective over the actor's pool, of which the first rank sends, and the engines: see `Engine.join_channel`.

        Args:
            ends: the sender and all ranks of the engines.
            layout: the actor's weights.
            version: updates that they have had.
        """
        from placebench.ppo.weights import SENDER, WeightChannel

        with self._spans.span(0, "first_weights"):
            if self._rank == 0:
                self._channel = WeightChannel(self._store, SENDER, ends, self._torch_device, self._precision, layout)
                self._connections.callback(self._channel.close)
            self._send_weights(version)
        return self._spans.drain()

    def trace_kernels(self) -> None:
        """From now on, trace the kernels of every phase on a GPU."""
        self._traces_kernels = True

    def run(self, step: int, phase: str, role: str, arguments: Mapping[str, Any]) -> PhaseResult:
        """Run one phase of a step.

        Args:
            step: its number, counted from 1.
            phase: its name.
            role: whose work it is.
            arguments: those of the method `_run_<phase>`.
        """
        work: Callable[..., Any] = getattr(self, f"_run_{phase}")
        kernels = self._kernels if self._traces_kernels and self._is_traceable(phase) else None
        traced = kernels.phase(step, phase) if kernels else nullcontext()
        self._first_step = self._first_step or step
        with self._spans.span(step, phase, role), traced, self._fault_marked(phase, role):
            result = work(**arguments)
            if step < self._first_step + self._workload.warmup_steps and phase != UPDATE_WEIGHTS:
                # What phases compile and keep they make in the warm-up, which an update of weights may outlast.
                freeze_heap()
        return PhaseResult(result, self._spans.drain(), kernels.drain() if kernels else [])

    def _is_traceable(self, phase: str) -> bool:
        return phase != GEN or self._workload.batch.max_response_length <= MOST_TRACED_TOKENS

    @contextmanager
    def _fault_marked(self, doing: str, role: str | None = None) -> Iterator[None]:
        """An exception from inside carries whose it is, and where memory ran out what this rank held."""
        try:
            yield
        except Exception as error:
            device, held = str(self._device_record["id"]), None
            if is_out_of_memory(error):
                held = f"{device} in {doing}: {self._holdings()}"
                error.add_note(f"{HELD}{held}")
            mark_fault(error, WorkerFault(device, role, held))
            raise

    def _holdings(self) -> str:
        """Bytes of each model of this rank by what they are."""
        return "; ".join(
            f"{role}: {', '.join(f'{part} {format_bytes(size)}' for part, size in model.held_bytes().items() if size)}"
            for role, model in self._models.items()
        )

    def _run_gen(
        self, prompts: list[list[int]], longest: list[int], seeds: list[int], log_probs: bool
    ) -> SequenceBatch:
        """Responses; `log_probs` is whether those of the rollout are wanted."""
        from placebench.ppo.rollout.base import SamplingSettings

        rollout, stops = self._workload.rollout, self._tokenizer.stop_token_ids
        settings = SamplingSettings(rollout.temperature, rollout.top_p, rollout.ignore_eos, stops, log_probs)
        responses = self._generate(prompts, longest, seeds, settings)
        told = [one.log_probs for one in responses if one.log_probs is not None]
        fields = {"rollout_log_probs": list(chain.from_iterable(told))} if told else {}
        return SequenceBatch.build(prompts, [one.tokens for one in responses], **fields)

    def _generate(
        self, prompts: list[list[int]], longest: list[int], seeds: list[int], settings: "SamplingSettings"
    ) -> "list[Generated]":
        from placebench.ppo.rollout.torch import unsharded

        with ExitStack() as actor:
            if self._workload.rollout.backend == "torch":
                model = self._models[Role.ACTOR]
                actor.enter_context(unsharded(model.module))
                actor.enter_context(model.autocast())
            return self._rollout.generate(prompts, longest, seeds, settings)

    def _run_sleep(self) -> None:
        self._rollout.sleep()

    def _run_wake_up(self) -> None:
        self._rollout.wake_up()

    def _run_reward(self, batch: SequenceBatch, prompts: list[str], answers: list[str]) -> NDArray[np.float64]:
        """Scores of the responses, float64 [sequences]; a reward model's is its value at the last token."""
        if self._workload.reward_model:
            from placebench.ppo.passes import scores

            return self._models[Role.REWARD].per_sequence(batch, scores).astype(np.float64)
        texts = [
            self._tokenizer.decode(tokens[length:].tolist())
            for tokens, length in zip(batch.sequence_tokens(), batch.prompt_lengths, strict=True)
        ]
        cases = list(zip(prompts, texts, answers, strict=True))
        if is_judged_by_main(self._workload):
            return np.asarray(judge_all(cases, len(os.sched_getaffinity(0))), np.float64)
        return np.asarray([float(self._reward(*case)) for case in cases], np.float64)

    def _run_old_log_prob(self, batch: SequenceBatch) -> NDArray[np.float32]:
        from placebench.ppo.passes import log_probs

        return self._models[Role.ACTOR].per_token(batch, log_probs)

    def _run_ref(self, batch: SequenceBatch) -> NDArray[np.float32]:
        from placebench.ppo.passes import log_probs

        return self._models[Role.REF].per_token(batch, log_probs)

    def _run_values(self, batch: SequenceBatch) -> NDArray[np.float32]:
        from placebench.ppo.passes import values

        return self._models[Role.CRITIC].per_token(batch, values)

    def _run_update_actor(self, batch: SequenceBatch, mini_batch_tokens: list[int], kl_coef: float) -> dict[str, float]:
        from placebench.ppo.passes import actor_loss

        algorithm = self._workload.algorithm
        loss = actor_loss(algorithm, kl_coef)
        return self._trained[Role.ACTOR].update(batch, mini_batch_tokens, algorithm.epochs, loss)

    def _run_update_critic(self, batch: SequenceBatch, mini_batch_tokens: list[int]) -> dict[str, float]:
        from placebench.ppo.passes import critic_loss

        algorithm = self._workload.algorithm
        return self._trained[Role.CRITIC].update(batch, mini_batch_tokens, algorithm.epochs, critic_loss(algorithm))

    def _run_update_weights(self, version: int) -> int:
        """Bring the actor's weights, after `version` updates, into the rollout; returns their bytes."""
        if Role.ROLLOUT in self._roles:
            return self._rollout.update_weights(self._policy_weights())
        return self._send_weights(version)

    def _send_weights(self, version: int) -> int:
        if self._rank == 0:
            self._channel.announce(version)
            self._channel.send(self._policy_weights())
            return self._channel.bytes
        if self._workload.sharding == "shard":
            for _ in self._policy_weights():
                pass  # what the first rank sends is gathered from all of them
        return 0

    def _policy_weights(self) -> Iterator[tuple[str, "torch.Tensor"]]:
        """The policy's weights by their name in transformers, whole, in the precision of the computing."""
        from placebench.ppo.training import whole_weights

        return whole_weights(self._policy, self._policy.language_model)

    @property
    def _policy(self) -> "PolicyModel":
        """The actor's model."""
        from placebench.ppo.models import PolicyModel

        policy = self._models[Role.ACTOR].unwrapped
        assert isinstance(policy, PolicyModel)
        return policy

    def stop(self) -> list[dict[str, Any]]:
        """Free the rollout backend and leave the process group; returns the remaining spans."""
        with self._spans.span(0, "stop"):
            self._connections.close()
            if Role.ROLLOUT in self._roles:
                self._rollout.close()
            self._leave()
        return self.last_spans()

    def last_spans(self) -> list[dict[str, Any]]:
        """The remaining spans, before this process is killed together with all others."""
        remove_empty_cache()
        return self._spans.drain()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory has run out, on a GPU or on the host."""
    import torch

    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # The host's allocator; CUDA as vLLM's own allocator and NCCL pass it on.
    return any(words in str(error) for words in ("can't allocate memory", "out of memory"))
