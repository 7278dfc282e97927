"""The one exception family: every error a user can cause carries its exit code; and reasons named all at once."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

T = TypeVar("T")


class PlacebenchError(Exception):
    """An error that ends a command with one line for the user, or one for every reason, and `exit_code`.

    Attributes:
        args: its lines. Names in them may hold ends of lines, which end none of them.
    """

    exit_code = 3

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class UsageError(PlacebenchError):
    """The user's input is wrong: an option, a file, a placement, a workload that cannot be."""

    exit_code = 2


class DamagedLaunchError(UsageError):
    """A file of a launch is missing or damaged; the launch is set aside, and the others of its run stay."""


class MissingExtraError(UsageError):
    """A command needs packages of an extra that is not installed."""

    def __init__(self, command: str, extra: str, module: str) -> None:
        super().__init__(f"{command} needs {module}: pip install 'placebench[{extra}]'")


class LaunchError(PlacebenchError):
    """Launches failed, or too few of them are done to compare."""


class RegressionError(PlacebenchError):
    """A run is worse than its baseline, by more than is allowed and by more than noise explains."""

    exit_code = 1


class BaselineError(PlacebenchError):
    """There is no baseline, or none that a run can be compared with."""

    exit_code = 4


class NodeLostError(PlacebenchError):
    """A node of a Ray cluster is gone."""


class PlacementTimeoutError(PlacebenchError):
    """The devices of a Ray cluster are not free."""


@dataclass(frozen=True)
class WorkerFault:
    """What is known of an exception that has to do with a worker; the exception carries it, to other processes too."""

    device: str
    """The id of the worker's device."""
    role: str | None = None
    """The role that worked; None outside of phases."""
    held: str | None = None
    """Where memory ran out: which device in which phase, and what its models held."""
    has_died: bool = False
    """Whether the worker's process is gone."""


def mark_fault(error: BaseException, fault: WorkerFault) -> None:
    """Let an exception carry what is known of its worker, unless it does already."""
    error.__dict__.setdefault("worker_fault", fault)


def fault_of(error: BaseException) -> WorkerFault | None:
    """What an exception carries of its worker; None where it is about none."""
    fault = error.__dict__.get("worker_fault")
    return fault if isinstance(fault, WorkerFault) else None


class JobExit(IntEnum):
    """Exit codes of a launch's job, by which its runner sees why it ended."""

    DONE = 0
    USAGE = 2
    FAILED = 10
    OOM = 11
    DEVICE_LOST = 12
    NODE_LOST = 13
    NOT_PLACED = 14


class TimeLimitError(PlacebenchError):
    """A time limit that the user set has passed."""

    exit_code = 124


class InterruptedRunError(PlacebenchError):
    """The user stopped the run; what is done is kept.

    Attributes:
        exit_code: 130, unless another signal than that of Ctrl-C has ended it at once.
    """

    exit_code = 130

    def __init__(self, message: str, exit_code: int = exit_code) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Reasons:
    """Collects the reasons why something cannot be, to name them all at once."""

    def __init__(self, lines: Iterable[str] = ()) -> None:
        self._lines = dict.fromkeys(lines)

    @property
    def lines(self) -> tuple[str, ...]:
        """What is collected so far."""
        return tuple(self._lines)

    def add(self, lines: Iterable[str]) -> None:
        """Add reasons, each once."""
        self._lines.update(dict.fromkeys(lines))

    def attempt(self, check: Callable[[], T]) -> T | None:
        """The check's result; None, and its reasons kept, when it refuses."""
        try:
            return check()
        except UsageError as error:
            self.add(error.args)
            return None

    def raise_any(self) -> None:
        """Raise what was collected.

        Raises:
            UsageError: one line a reason.
        """
        if self._lines:
            raise UsageError(*self._lines)
