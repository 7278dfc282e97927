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


def signal_name(number: int) -> str:
    """What a signal is called: those for real time have no names."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_words(code: int) -> str:
    """How a process has ended, by the exit code that Python has of it."""
    return signal_name(-code) if code < 0 else f"exit code {code}"


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

    So is SIGTSTP, by which Ctrl-Z asks a process to pause.

    Attributes:
        received: the first signal that came; None as long as none did.
        asks_to_pause: whether Ctrl-Z has come and `pause` was not called since.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.asks_to_pause = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        # A parent may have blocked them; and where this one is ignored, nobody is told how a process has ended.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in (*ENDING, signal.SIGTSTP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.asks_to_pause:
            signal.raise_signal(signal.SIGTSTP)

    def pause(self) -> None:
        """Stop this process until it is told to go on (`fg`, or a terminal that closes)."""
        self.asks_to_pause = False
        # Not SIGTSTP: the kernel drops that where no shell could let the process go on again.
        signal.raise_signal(signal.SIGSTOP)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGTSTP:
            self.asks_to_pause = True
        else:
            self.received = self.received or signal.Signals(number)
