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


def any_matches(pattern: str, names: Iterable[str]) -> bool:
    """Whether a regular expression is found in any of the names."""
    return any(map(re.compile(pattern).search, names))


@dataclass(frozen=True)
class Tokens:
    """Where a log has its real tokens, prompts and responses without padding."""

    metrics: tuple[str, ...]
    """Names of the metric; the first that is there counts."""
    count: Count
    """How the metric counts."""
    reported: str | None = None
    """The log's own tokens/s, if it is meant to be tokens / wall step / devices; else None."""
    rollout_apart: str | None = None
    """Regular expression of the metrics of runs whose rollout is on devices of its own, which the reported tokens/s may
    leave out."""
    ranks_since: str | None = None
    """Regular expression of the metrics that came with the counting of every rank's tokens; in a log without them
    `TIMES_RANKS` is `STEP`."""

    def rollout_is_apart(self, names: Iterable[str]) -> bool:
        """Whether a log with these metrics is of a run whose rollout has devices of its own."""
        return self.rollout_apart is not None and any_matches(self.rollout_apart, names)

    def count_in(self, names: Iterable[str]) -> Count:
        """How a log with these metrics counts."""
        is_later = self.ranks_since is None or any_matches(self.ranks_since, names)
        return self.count if is_later or self.count is not Count.TIMES_RANKS else Count.STEP


@dataclass(frozen=True)
class Trap:
    """A number that a framework reports in a way that misleads; known by name."""

    name: str
    """The word that tables and files show."""
    text: str
    """One line: what is wrong with it and what placebench does about it."""
    metrics: str
    """Regular expression of the metrics that the trap is about; a log without them does not have it."""


@dataclass(frozen=True)
class Dialect:
    """What the metrics of one framework are called and mean, whatever file they stand in."""

    framework: str
    """The framework's name for people."""
    marks: tuple[str, ...]
    """Names, or beginnings of names that end in `/`, which only this framework has."""
    timing: TimingRules
    """What the timing metrics mean."""
    tokens: Tokens | None = None
    """Where tokens are counted; None where they are not."""
    traps: tuple[Trap, ...] = ()
    """Numbers that mislead."""

    def owns(self, names: Iterable[str]) -> bool:
        """Whether metrics of these names are this framework's."""
        begins = tuple(mark for mark in self.marks if mark.endswith("/"))
        return any(name in self.marks or (begins and name.startswith(begins)) for name in names)


@dataclass(frozen=True)
class LogFormat:
    """One log format."""

    name: str
    """The word that forces the format."""
    title: str
    """What the format is, for messages."""
    begins: Callable[[bytes], bool]
    """Whether a step of this format begins in a block of whole lines. What comes before the first such block, but
    for the line before it where that belongs to the step, is never looked at again."""
    read: Callable[[Iterator[bytes], StepTable], None]
    """Puts the steps of blocks of whole lines into a table; may raise `DamagedLogError`."""
    dialect: Dialect | None
    """What the metrics mean; None where any framework's metrics may stand in it: their names say whose."""
    binary: bool = False
    """Whether the format has no lines: the blocks are cut anywhere."""
    closed: bool = True
    """Whether a step that is cut off cannot be taken for a whole one."""
    last_metric: str | None = None
    """The metric of the last of a step's lines, where several processes print some of it, each when it is done with its
    part; None where what there is of a step comes at once."""
    read_printed: Callable[[Iterator[bytes], StepTable], None] | None = None
    """Reads it from what a job prints, where other text stands between its lines; None where `read` passes over it."""
