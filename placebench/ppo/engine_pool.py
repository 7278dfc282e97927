"""The controller's side of engines in a pool of their own: who generates what, and what comes back.

Each engine works on its own: it gets a part of a step's prompts when it is free and there is one. The queues between
engines and trainer are in `rollout.queues`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from placebench.ppo.batch import SequenceBatch, join_shards, merge_shares, rank_indices
from placebench.ppo.generation import Generation
from placebench.ppo.rollout.gauges import Levels
from placebench.ppo.rollout.queues import Part, RolloutQueues, lag
from placebench.ppo.running import Running
from placebench.spec.phases import GEN, UPDATE_WEIGHTS
from placebench.spec.placement import Placement, Role
from placebench.spec.workload import Workload
from placebench.tasks.data import Prompt


@dataclass(frozen=True)
class Responses:
    """What an engine made of a part's prompts."""

    prompts: list[Prompt]
    batch: SequenceBatch


@dataclass
class Flow:
    """What went through the queues in a stretch of time."""

    generated: int = 0
    """Tokens of prompts and responses that engines finished."""
    dropped: int = 0
    """Sequences that were too old to train on."""
    lags: list[int] = field(default_factory=list)
    """Of the sequences that were taken, in updates."""


class EnginePool:
    """The engines of a placement.

    Args:
        workload: the job.
        placement: where engines live, and how old their weights may be.
        workers: all ranks of their pool, in order; those that share an engine follow each other.
        generation: the prompts.
    """

    def __init__(
        self, workload: Workload, placement: Placement, workers: Sequence[Any], generation: Generation
    ) -> None:
        self._pool = placement.roles[Role.ROLLOUT]
        self._generation = generation
        shared_by = workload.rollout.tensor_parallel_size
        self._engines = [list(workers[first : first + shared_by]) for first in range(0, len(workers), shared_by)]
        self._free = list(range(len(self._engines)))
        # Updates whose weights each engine has been asked to take.
        self._asked = [0] * len(self._engines)
        self._newest = 0
        self._queues: RolloutQueues[Responses] = RolloutQueues(len(self._engines), placement.staleness)
        # Of the steps whose parts were not all taken: any of these may have to be generated, or generated again.
        self._prompts: dict[int, list[Prompt]] = {}
        self._untaken: dict[int, int] = {}
        self._part_size = workload.batch.size // len(self._engines)
        self._flow = Flow()
        self.admitted = 0

    @property
    def generating(self) -> int:
        """How many engines generate."""
        return len(self._engines) - len(self._free)

    def go_on_from(self, step: int) -> None:
        """Let the next step be the one after `step`, with whose weights the engines begin."""
        self.admitted = self._newest = step
        self._asked = [step] * len(self._engines)

    def admit_next(self) -> None:
        """Let the prompts of one more step wait for engines."""
        self.admitted += 1
        self._prompts[self.admitted] = self._generation.step_prompts(self.admitted)
        self._untaken[self.admitted] = len(self._engines)
        self._queues.admit(self.admitted)

    def update(self, version: int) -> list[Any]:
        """Ask engines that are free to take weights; the others are asked once they are, see `catch_up`."""
        self._newest = version
        return [pending for engine in self._free for pending in self._ask(engine)]

    def catch_up(self, now: Callable[[], float]) -> Iterator[Running]:
        """Ask engines that were busy to take the newest weights, unless they did so while they generated."""
        for engine in [engine for engine in self._free if self._asked[engine] < self._newest]:
            self._free.remove(engine)
            start, pending = now(), self._ask(engine)
            yield Running(
                self._newest,
                UPDATE_WEIGHTS,
                Role.ROLLOUT,
                self._pool,
                frozenset(),
                start,
                pending,
                partial(self._release, engine),
            )

    def _ask(self, engine: int) -> list[Any]:
        self._asked[engine] = self._newest
        arguments = {"version": self._newest}
        return [
            rank.run.remote(self._newest, UPDATE_WEIGHTS, Role.ROLLOUT.value, arguments)
            for rank in self._engines[engine]
        ]

    def _release(self, engine: int, _: list[Any]) -> None:
        self._free.append(engine)

    def submit(self, now: Callable[[], float]) -> Iterator[Running]:
        """Give parts that wait to engines that are free."""
        while self._free and (part := self._queues.start()):
            yield self._submit(part, self._free.pop(0), now())

    def _submit(self, part: Part, engine: int, start: float) -> Running:
        ranks = self._engines[engine]
        prompts = self._prompts[part.step]
        # Parts are consecutive, so that groups of responses to one prompt stay together.
        chosen = np.arange(part.index * self._part_size, (part.index + 1) * self._part_size)
        shares = rank_indices(self._part_size, len(ranks))
        pending = [
            rank.run.remote(
                part.step, GEN, Role.ROLLOUT.value, self._generation.arguments(part.step, prompts, chosen[share])
            )
            for rank, share in zip(ranks, shares, strict=True)
        ]

        def finish(answers: list[SequenceBatch]) -> None:
            batch = merge_shares(answers, shares)
            version = int(batch.per_sequence["weights_version"].min())
            self._free.append(engine)
            self._flow.generated += int(batch.lengths.sum())
            self._queues.finish(part, version, Responses([prompts[index] for index in chosen], batch))

        return Running(part.step, GEN, Role.ROLLOUT, self._pool, frozenset(), start, pending, finish)

    def take(self, step: int) -> Responses | None:
        """The sequences that a step trains on; None while there are too few that are new enough."""
        dropped = self._queues.dropped
        results = self._queues.take(step)
        self._flow.dropped += (self._queues.dropped - dropped) * self._part_size
        if results is None:
            return None
        for result in results:
            self._forget(result.part)
        self._flow.lags += [lag(step, result.version) for result in results for _ in range(self._part_size)]
        return Responses(
            [prompt for result in results for prompt in result.content.prompts],
            join_shards([result.content.batch for result in results]),
        )

    def _forget(self, part: Part) -> None:
        """Let go of the prompts of a step with the last of its parts that is taken."""
        self._untaken[part.step] -= 1
        if not self._untaken[part.step]:
            del self._untaken[part.step], self._prompts[part.step]

    def levels(self, *, updating: bool, starved: bool) -> Levels:
        """What holds now.

        Args:
            updating: whether engines that do not generate take weights.
            starved: whether the trainer waits for sequences.
        """
        queued = len(self._queues.ready) * self._part_size
        return Levels(queued, self.generating, 0 if updating else len(self._free), int(starved))

    @property
    def engines(self) -> int:
        """How many engines there are."""
        return len(self._engines)

    def cut_flow(self) -> Flow:
        """What went through the queues since the last call."""
        flow, self._flow = self._flow, Flow()
        return flow
