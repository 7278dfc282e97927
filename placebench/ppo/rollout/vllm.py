"""Generation by a vLLM engine inside the worker's process; the policy's weights are written into it in place.

The engine is built in vLLM's own way for a program that has started its ranks itself (`external_launcher`): it takes
the process group that the pool has, each rank runs an engine of its own, and weights go from tensor to tensor.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import linear

from placebench.errors import LaunchError
from placebench.host.heap import uncollected
from placebench.ppo.rollout.base import Generated, SamplingSettings, WeightUpdates
from placebench.ppo.rollout.vllm_build import (
    config_folder,
    draws_by_seed,
    engine_seed,
    graph_sizes,
    import_engine,
    kv_cache_bytes,
    no_shared_files,
    plain_weights,
    register_model,
    warm_up_as_the_job,
)
from placebench.ppo.rollout.vllm_driving import run_requests
from placebench.ppo.rollout.vllm_known import Known
from placebench.spec.workload import Workload


class VllmRollout:
    """Generates with vLLM, in the pool's process group: one engine a rank, or one for several ranks.

    Building it is collective: every rank of the default process group has to, at the same time; so are all methods
    where ranks share an engine. The engine starts with random weights; the first `update_weights` gives it the
    policy's.

    Args:
        model_config: the policy's transformers config.
        device_kind: `cpu` or `cuda`.
        workload: the job.
        ranks: size of the pool.
        most_cache: most bytes of keys and values on each device, of which all ranks take the least; None for as many
            as the batch needs. What they do not hold at a time waits, or is computed anew.
        alone: whether nothing else needs the devices' memory, so that the engine never gives it back.
        keeps_prefixes: whether keys and values of a prompt may serve others with the same beginning.
        on_warm_up: called on a GPU when the model is there and its kernels are to be compiled, tried and captured.
    """

    def __init__(
        self,
        model_config: Any,
        device_kind: str,
        workload: Workload,
        ranks: int,
        on_warm_up: Callable[[], None] = lambda: None,
        *,
        most_cache: int | None = None,
        alone: bool = False,
        keeps_prefixes: bool = True,
    ) -> None:
        import_engine(device_kind)
        from vllm import LLM

        rank, shared_by = dist.get_rank(), workload.rollout.tensor_parallel_size
        self._is_gpu, self._keeps_prefixes = device_kind == "cuda", keeps_prefixes
        self._value_bytes = getattr(torch, workload.precision).itemsize
        self._group: Any = None
        self._known = Known()
        if shared_by > 1:
            self._group, _ = dist.new_subgroups(shared_by)
        length = workload.batch.max_prompt_length + workload.batch.max_response_length
        sequences = ceil(workload.batch.size / ranks) * shared_by
        cache_bytes = kv_cache_bytes(model_config, workload, sequences, most_cache)
        sleeps = workload.rollout.sleep and not alone
        with self._device_settings(workload, sequences, cache_bytes, on_warm_up, sleeps=sleeps) as device_settings:
            register_model(model_config)
            self._engine = LLM(
                str(config_folder(model_config)),
                load_format="dummy",
                skip_tokenizer_init=True,
                generation_config="vllm",
                distributed_executor_backend="external_launcher",
                tensor_parallel_size=shared_by,
                dtype=workload.precision,
                max_model_len=length,
                max_num_seqs=sequences,
                kv_cache_memory_bytes=cache_bytes,
                seed=engine_seed(workload.seed, rank, shared_by),
                enable_prefix_caching=keeps_prefixes,
                **device_settings,
            )
        # Asked once: vLLM looks through every package that is installed to answer, for longer than a token step takes.
        self._seeded = draws_by_seed(self._engine.llm_engine.vllm_config, is_gpu=self._is_gpu)

    @contextmanager
    def _device_settings(
        self,
        workload: Workload,
        sequences: int,
        cache_bytes: int,
        on_warm_up: Callable[[], None],
        *,
        sleeps: bool,
    ) -> Iterator[dict[str, Any]]:
        """What an engine is told of the devices, which is to be built in the body."""
        if self._is_gpu:
            settings = self._gpu_settings(workload, sequences, cache_bytes, sleeps=sleeps)
            with warm_up_as_the_job(on_warm_up, workload.rollout.top_p):
                yield settings
            return
        # A prompt worked through in parts draws a token after each and takes the draw back from its request's seed,
        # which generators on CPU cannot.
        with plain_weights(), no_shared_files():
            yield {"enforce_eager": True, "enable_chunked_prefill": False}

    def _gpu_settings(self, workload: Workload, sequences: int, cache_bytes: int, *, sleeps: bool) -> dict[str, Any]:
        free, whole = torch.cuda.mem_get_info()
        settings: dict[str, Any] = {
            "enable_sleep_mode": sleeps,
            # vLLM insists on this share of the device being free; the cache's size is given already.
            "gpu_memory_utilization": min(0.9, (cache_bytes + (1 << 30)) / whole, free / whole),
            # Each process sees its own device alone, so that vLLM's peer-to-peer kernels find no peer.
            "disable_custom_all_reduce": True,
        }
        if workload.rollout.cuda_graphs:
            # Prompts are worked through in large batches, which gain nothing from graphs; decoding lives by them.
            sizes = {"cudagraph_capture_sizes": graph_sizes(sequences)}
            settings["compilation_config"] = {"cudagraph_mode": "FULL_DECODE_ONLY", **sizes}
            if not workload.torch_compile:
                settings["compilation_config"]["mode"] = 0
        else:
            settings["enforce_eager"] = True
        return settings

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        longest: Sequence[int],
        seeds: Sequence[int],
        settings: SamplingSettings,
        updates: WeightUpdates | None = None,
    ) -> list[Generated]:
        """Generate one response per prompt, batched as vLLM schedules them.

        vLLM reports log-probabilities either before the temperature or after top-p. Scaled logits and temperature 1
        give those in between, which the policy computes too. Where seeds of prompts would cost time, see
        `vllm_build.draws_by_seed`, the draws follow the engine's instead.
        """
        from vllm import SamplingParams

        self._engine.apply_model(lambda model: setattr(model.logits_processor, "scale", 1 / settings.temperature))
        cases = self._gather(list(zip(prompts, longest, seeds, strict=True)))
        parameters = [
            SamplingParams(
                max_tokens=limit,
                temperature=1.0,
                top_p=settings.top_p,
                seed=seed if self._seeded else None,
                # vLLM's own idea of the end of a sequence comes from the model's config; the settings alone count.
                ignore_eos=True,
                stop_token_ids=[] if settings.ignore_eos else list(settings.stop_token_ids),
                logprobs=0 if settings.log_probs else None,
                detokenize=False,
                # Each is of one request alone; a deep copy of it is a third of what a request costs to put in.
                skip_clone=True,
            )
            for _, limit, seed in cases
        ]
        inputs = [{"prompt_token_ids": list(prompt)} for prompt, _, _ in cases]
        with uncollected():
            responses = run_requests(self._engine, inputs, parameters, lambda: self._take_pending(updates), self._known)
        first = self._group_rank() * len(prompts)
        return responses[first : first + len(prompts)]

    def _gather(self, cases: list[Any]) -> list[Any]:
        """The cases of all ranks that share the engine: each of them has to put in the same requests."""
        if self._group is None:
            return cases
        everyone: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(everyone, cases, group=self._group)
        return [case for part in everyone for case in part]

    def _group_rank(self) -> int:
        return 0 if self._group is None else dist.get_rank(self._group)

    def _take_pending(self, updates: WeightUpdates | None) -> None:
        """Take new weights, if there are any, between two of the engine's steps."""
        if updates is not None and self._agreed(updates.pending()):
            updates.take()

    def _agreed(self, pending: bool) -> bool:
        """Whether any rank that shares the engine knows of new weights: they go on step by step together."""
        if self._group is None:
            return pending
        known = torch.tensor(int(pending), device="cuda" if self._is_gpu else "cpu")
        dist.all_reduce(known, dist.ReduceOp.MAX, group=self._group)
        return bool(known)

    def update_weights(self, weights: Iterable[tuple[str, Tensor]]) -> int:
        """Overwrite the engine's weights with the policy's and forget what it has cached of the old ones.

        Requests that are running go on with the keys and values that they have.

        Returns:
            Bytes of the policy's weights that went into the engine.

        Raises:
            LaunchError: a weight of the engine was not written, or is not the one that it computes with.
        """
        written = 0

        def counted() -> Iterator[tuple[str, Tensor]]:
            nonlocal written
            for name, weight in weights:
                written += weight.numel() * self._value_bytes
                yield name, weight

        with torch.no_grad():
            self._engine.apply_model(lambda model: _load(model, counted()))
        if self._keeps_prefixes and not self._engine.reset_prefix_cache():
            raise LaunchError("vLLM kept its prefix cache through an update of weights: requests are still running")
        return written

    def sleep(self) -> None:
        """Free the memory of weights and key-value cache; the weights are not kept."""
        self._engine.sleep(level=2)

    def wake_up(self) -> None:
        """Allocate weights and key-value cache anew, beside what training has in use."""
        # Training's allocator keeps what it has freed, and the engine's takes memory from the device alone.
        torch.cuda.empty_cache()
        self._engine.wake_up()

    def close(self) -> None:
        """End the engine; vLLM leaves the default process group with it."""
        self._engine.llm_engine.engine_core.shutdown()


def _load(model: Any, weights: Iterable[tuple[str, Tensor]]) -> None:
    packed = [name for name, module in model.named_modules() if getattr(module, "cpu_linear", linear) is not linear]
    if packed:
        raise LaunchError(
            f"this vLLM packs weights where no update reaches them, such as {packed[0]}: use another version"
        )
    missing = {name for name, _ in model.named_parameters()} - set(model.load_weights(weights))
    if missing:
        raise LaunchError(
            f"an update of weights did not change {len(missing)} of vLLM's weights, such as {min(missing)}"
        )
