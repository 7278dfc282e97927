"""What a log format is; the readers fill this in, the registry lists them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from placebench.logs.table import StepTable
from placebench.logs.timing import TimingRules


class DamagedLogError(Exception):
    """A log breaks its format's rules where that cannot be passed over."""


@dataclass(frozen=True)
class LogFormat:
    """One log format.

    Attributes:
        name: the word that forces it.
        title: what it is, for messages.
        begins: whether a step of this format begins in a block of whole lines. What comes before the first such
            block is never looked at again.
        read: puts the steps of blocks of whole lines into a table; may raise `DamagedLogError`.
        timing: what its timing metrics mean.
    """

    name: str
    title: str
    begins: Callable[[bytes], bool]
    read: Callable[[Iterator[bytes], StepTable], None]
    timing: TimingRules
