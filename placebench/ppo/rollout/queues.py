"""Prompts that wait for an engine and results that wait for the trainer: how much there is, and who gets what.

A step's prompts are cut into parts, each of which one engine generates at a time. Parts of a step are admitted when the
weights are new enough for it, so that no more than `staleness + 1` steps' parts wait, run and lie ready together.
The trainer takes the oldest parts that are there, whatever step's prompts they answer: a slow engine's part may be
overtaken. A part whose weights have become too old meanwhile is dropped, and its prompts are generated again.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Content = TypeVar("Content")


@dataclass(frozen=True, order=True)
class Part:
    """A part of a step's prompts."""

    step: int
    """The step whose prompts they are, counted from 1."""
    index: int
    """Number of the part among those of its step."""


@dataclass(frozen=True)
class Result(Generic[Content]):
    """Responses to a part's prompts."""

    part: Part
    version: int
    """Updates that the oldest weights used for the part had had."""
    content: Content


def lag(step: int, version: int) -> int:
    """Updates by which the weights that generated are older than those that a step begins with."""
    return step - 1 - version


class RolloutQueues(Generic[Content]):
    """Both queues of one launch.

    Args:
        parts: how many parts a step's prompts are cut into.
        staleness: the largest lag that is trained on.

    Attributes:
        capacity: most parts that wait, run and lie ready together.
        dropped: parts dropped so far.
    """

    def __init__(self, parts: int, staleness: int) -> None:
        self._parts, self._staleness = parts, staleness
        self.capacity = parts * (staleness + 1)
        self.dropped = 0
        self._waiting: deque[Part] = deque()
        self._running: set[Part] = set()
        self._ready: list[Result[Content]] = []

    @property
    def size(self) -> int:
        """Parts that wait, run and lie ready."""
        return len(self._waiting) + len(self._running) + len(self._ready)

    @property
    def ready(self) -> Sequence[Result[Content]]:
        """The results that wait for the trainer."""
        return self._ready

    def admit(self, step: int) -> None:
        """Let a step's prompts wait for engines.

        Raises:
            OverflowError: there is no room for them, which the step graph rules out.
        """
        if self.size + self._parts > self.capacity:
            raise OverflowError(f"step {step} was admitted to a queue that has {self.size} of {self.capacity} parts")
        self._waiting.extend(Part(step, index) for index in range(self._parts))

    def start(self) -> Part | None:
        """The next part for a free engine; None when none waits."""
        if not self._waiting:
            return None
        part = self._waiting.popleft()
        self._running.add(part)
        return part

    def finish(self, part: Part, version: int, content: Content) -> None:
        """Keep what an engine has generated."""
        self._running.remove(part)
        self._ready.append(Result(part, version, content))

    def take(self, step: int) -> list[Result[Content]] | None:
        """The oldest results that make up a step to train on, in order; None while there are too few.

        Results older than the staleness allows are dropped; their parts are generated again before others.
        """
        stale = [result.part for result in self._ready if lag(step, result.version) > self._staleness]
        self._ready = [result for result in self._ready if lag(step, result.version) <= self._staleness]
        self._waiting.extendleft(sorted(stale, reverse=True))
        self.dropped += len(stale)
        if len(self._ready) < self._parts:
            return None
        self._ready.sort(key=lambda result: result.part)
        taken, self._ready = self._ready[: self._parts], self._ready[self._parts :]
        return taken
