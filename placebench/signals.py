"""Stopping on request: the signals that end a run are noted, and the run's own loop acts on them.

A handler that raised could cut a cleanup in half; this one only remembers.
"""

import signal
from types import FrameType
from typing import Any, Self

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Notes SIGINT, SIGTERM and SIGHUP while it is entered; a signal ignored before (nohup) stays ignored.

    Attributes:
        received: the first signal that came; None as long as none did.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in _NUMBERS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)
