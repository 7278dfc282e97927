"""What a log format is and what its names mean; the readers fill this in, the registry lists them."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from placebench.logs.table import StepTable
from placebench.logs.timing import TimingRules


class Count(StrEnum):
    """How a log counts tokens."""

    STEP = "step"
    """The tokens of the step."""
    CUMULATIVE = "cumulative"
    """All tokens since the start of the run."""
    TIMES_RANKS = "times ranks"
    """The tokens of the step, multiplied by the number of learner ranks."""


@dataclass(frozen=True)
class Tokens:
    """Where a log has its real tokens, prompts and responses without padding.

    Attributes:
        metrics: the metric's names, the first that is there counts.
        count: how it counts.
        reported: the log's own tokens/s, if it is meant to be tokens / wall step / devices; else None.
        rollout_apart: regular expression of the metrics of runs whose rollout is on devices of its own, which the
            reported tokens/s may leave out.
        ranks_since: regular expression of the metrics that came with the counting of every rank's tokens; in a log
            without them `TIMES_RANKS` is `STEP`.
    """

    metrics: tuple[str, ...]
    count: Count
    reported: str | None = None
    rollout_apart: str | None = None
    ranks_since: str | None = None

    def rollout_is_apart(self, names: Iterable[str]) -> bool:
        """Whether a log with these metrics is of a run whose rollout has devices of its own."""
        return self.rollout_apart is not None and any(map(re.compile(self.rollout_apart).search, names))

    def count_in(self, names: Iterable[str]) -> Count:
        """How a log with these metrics counts."""
        if self.count is not Count.TIMES_RANKS or self.ranks_since is None:
            return self.count
        since = re.compile(self.ranks_since)
        return self.count if any(map(since.search, names)) else Count.STEP


@dataclass(frozen=True)
class Trap:
    """A number that a framework reports in a way that misleads; known by name.

    Attributes:
        name: the word that tables and files show.
        text: one line: what is wrong with it and what placebench does about it.
        metrics: regular expression of the metrics that it is about; a log without them does not have the trap.
    """

    name: str
    text: str
    metrics: str


@dataclass(frozen=True)
class Dialect:
    """What the metrics of one framework are called and mean, whatever file they stand in.

    Attributes:
        framework: its name for people.
        marks: names, or beginnings of names that end in `/`, which only this framework has.
        timing: what its timing metrics mean.
        tokens: where it counts tokens; None where it does not.
        traps: what misleads.
    """

    framework: str
    marks: tuple[str, ...]
    timing: TimingRules
    tokens: Tokens | None = None
    traps: tuple[Trap, ...] = ()

    def owns(self, names: Iterable[str]) -> bool:
        """Whether metrics of these names are this framework's."""
        begins = tuple(mark for mark in self.marks if mark.endswith("/"))
        return any(name in self.marks or (begins and name.startswith(begins)) for name in names)


@dataclass(frozen=True)
class LogFormat:
    """One log format.

    Attributes:
        name: the word that forces it.
        title: what it is, for messages.
        begins: whether a step of this format begins in a block of whole lines. What comes before the first such
            block is never looked at again.
        read: puts the steps of blocks of whole lines into a table; may raise `DamagedLogError`.
        dialect: what its metrics mean; None where any framework's metrics may stand in it: their names say whose.
        binary: it has no lines: the blocks are cut anywhere.
        closed: a step that is cut off cannot be taken for a whole one.
    """

    name: str
    title: str
    begins: Callable[[bytes], bool]
    read: Callable[[Iterator[bytes], StepTable], None]
    dialect: Dialect | None
    binary: bool = False
    closed: bool = True
