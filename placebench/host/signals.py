"""Stopping on request: the signals that end a run are noted, and the run's own loop acts on them.

A handler that raised could cut a cleanup in half; that of a run only remembers. Where nothing has to be cleaned up, as
while a report is made, one that raises stops at once.
"""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any, Self

# Ctrl-C and Ctrl-\, a terminal that hangs up, and what batch systems send before the time, memory or power is out.
ENDING = (
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
    signal.SIGALRM,
    signal.SIGPWR,
)


class Stopped(BaseException):
    """A signal asks the process to end; like KeyboardInterrupt no Exception, which somebody might take for a fault.

    Attributes:
        exit_code: that of a shell for a process that the signal has ended.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextlib.contextmanager
def raised_signals() -> Iterator[None]:
    """Let the signals of `ENDING` raise `Stopped` in the body; one ignored before (nohup) stays ignored."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise Stopped(number)

    before = {number: handler for number in ENDING if (handler := signal.getsignal(number)) is not signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, stop)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class StopSignals:
    """Notes the signals of `ENDING` while it is entered; one ignored before (nohup) stays ignored.

    Attributes:
        received: the first signal that came; None as long as none did.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)
