"""One process of a pool that generates and does nothing else, with weights that the actor's pool sends."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from placebench.ppo.batch import SequenceBatch
from placebench.ppo.rank import tcp_store
from placebench.ppo.worker import PhaseResult, Worker
from placebench.spec.phases import UPDATE_WEIGHTS
from placebench.spec.placement import Role

if TYPE_CHECKING:
    import torch

    from placebench.ppo.rollout.base import Generated, RolloutBackend, SamplingSettings
    from placebench.ppo.weights import Layout


class Engine(Worker):
    """A rank of a pool apart from the actor's that hosts the rollout alone; arguments as for `Worker`.

    Attributes:
        inflight_updates: whether it takes new weights while it generates.
        version: updates that its weights have had; less than any before it has weights.
    """

    inflight_updates = False
    version = -1

    def join_channel(
        self, address: tuple[str, int], end: int, ends: int, layout: "Layout", version: int
    ) -> list[dict[str, Any]]:
        """Take the actor's first weights; returns the start-up's spans. Collective, see `Worker.open_channel`.

        Args:
            address: of the rendezvous of the actor's pool.
            end: this rank's number among the ends, from 1.
            ends: the sender and all ranks of the engines.
            layout: the actor's weights.
            version: updates that they have had.
        """
        from placebench.ppo.weights import WeightChannel

        with self._spans.span(0, "first_weights"):
            self._channel = WeightChannel(tcp_store(address), end, ends, self._torch_device, self._precision, layout)
            self._connections.callback(self._channel.close)
            self._run_update_weights(version)
        return self._spans.drain()

    def _build_rollout(self, device: "torch.device") -> "RolloutBackend":
        if self._workload.rollout.backend == "vllm":
            return self._build_engine(device, alone=True, keeps_prefixes=not self.inflight_updates)
        from placebench.ppo.role_models import policy
        from placebench.ppo.rollout.torch import TorchEngine
        from placebench.ppo.training import place

        # Ranks generate for different numbers of tokens, so that each holds the whole model.
        job = self._workload.model_copy(update={"sharding": "replicate"})
        model = policy(job)
        place(model.requires_grad_(False), job, device, job.seed, trained=False)
        return TorchEngine(model.eval().language_model)

    def run(self, step: int, phase: str, role: str, arguments: Mapping[str, Any]) -> PhaseResult:
        """Run one phase of a step."""
        if phase == UPDATE_WEIGHTS and self.version >= arguments["version"]:
            return PhaseResult(self._channel.bytes, [], [])  # they came while it generated
        return super().run(step, phase, role, arguments)

    def _run_gen(
        self, prompts: list[list[int]], longest: list[int], seeds: list[int], log_probs: bool
    ) -> SequenceBatch:
        """Responses, and with each sequence the number of updates that the oldest weights used had had."""
        version = self.version
        batch = super()._run_gen(prompts, longest, seeds, log_probs)
        return batch.with_fields(per_sequence={"weights_version": np.full(len(batch), version)})

    def _generate(
        self, prompts: list[list[int]], longest: list[int], seeds: list[int], settings: "SamplingSettings"
    ) -> "list[Generated]":
        updates = _InflightUpdates(self) if self.inflight_updates else None
        return self._rollout.generate(prompts, longest, seeds, settings, updates)

    def announced_updates(self) -> int:
        """Updates that the newest weights have had that the actor is about to send."""
        return self._channel.announced()

    def interrupt(self) -> None:
        """Take the announced weights in the middle of generating."""
        version = self._channel.announced()
        with self._spans.interruption(version, UPDATE_WEIGHTS, Role.ROLLOUT.value):
            self._run_update_weights(version)

    def _run_update_weights(self, version: int) -> int:
        self._rollout.update_weights(self._channel.receive())
        self.version = version
        return self._channel.bytes


class InflightEngine(Engine):
    """One that takes new weights while it generates."""

    inflight_updates = True


class _InflightUpdates:
    """The actor's new weights, taken between two tokens once they are announced."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def pending(self) -> bool:
        return self._engine.announced_updates() > self._engine.version

    def take(self) -> None:
        self._engine.interrupt()
