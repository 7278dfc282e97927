"""What a launch asks of whatever starts its workers on their devices and carries its calls to them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

LOOPBACK = "127.0.0.1"


class Calls(Protocol):
    """How answers of workers are waited for; `worker.method.remote(...)` asks one and returns at once."""

    @property
    def error(self) -> type[Exception]:
        """What `get` raises for an answer that does not come: the two below, and what else may be in the way."""

    @property
    def failed(self) -> type[Exception]:
        """The call has raised an exception in its worker."""

    @property
    def died(self) -> type[Exception]:
        """The worker has ended."""

    def get(self, answers: Sequence[Any], timeout_s: float | None = None) -> list[Any]:
        """What was answered, in order.

        Raises:
            TimeoutError: it is not there within `timeout_s` seconds.
            Exception: one that is an `error`.
        """

    def wait(self, answers: Sequence[Any], count: int = 1, timeout_s: float | None = None) -> list[Any]:
        """Those of the answers that are there, once they are `count` at least or `timeout_s` seconds have passed."""


class Session(Protocol):
    """Where a launch runs its workers."""

    @property
    def calls(self) -> Calls:
        """How the workers' answers are waited for."""

    @property
    def ends_all_at_once(self) -> bool:
        """Whether `close` kills all workers at one moment, so that none has to leave the others in order."""

    def open(self) -> None:
        """Start it, or join it."""

    def reserve(self, pools: Mapping[str, Sequence[str]]) -> None:
        """See to it that the devices of every pool, by id, are free for the launch."""

    def start_worker(self, worker: type, pool: str, device: str, *arguments: Any) -> Any:
        """Start a worker on a device of a pool; returns what its methods are called on."""

    def confirm_devices(self) -> None:
        """Check, once the workers run, that no other work has their devices."""

    def host_of(self, device: str) -> str:
        """The address by which other workers reach one on this device."""

    def register(self, pid: int, device: str) -> None:
        """A process of the launch works on a device, or is the controller."""

    def on_one_clock(self, spans: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Spans of any device, with their times on the controller's clock."""

    def explain(self, error: Exception, doing: str) -> Exception:
        """The error to report in place of one that ended the launch, which did the work that is named."""

    def close(self) -> None:
        """End what the launch has started in it, in a few seconds, also after an error."""


class OneHost:
    """What is the same in every session whose workers are all on this host, where nobody else's are."""

    ends_all_at_once = False

    def reserve(self, pools: Mapping[str, Sequence[str]]) -> None:
        """Nobody else is here."""

    def confirm_devices(self) -> None:
        """Nobody else is here."""

    def host_of(self, device: str) -> str:
        """All workers are on this host."""
        return LOOPBACK

    def register(self, pid: int, device: str) -> None:
        """The runner's sampler reads the launch's file."""

    def on_one_clock(self, spans: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """All processes read the same clock."""
        return [dict(span) for span in spans]
