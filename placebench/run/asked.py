"""What a run is asked from outside while it goes on: to end, by a signal or its time limit, or to pause (Ctrl-Z)."""

import time

from placebench.host.processes import LaunchMark, frozen, launch_processes
from placebench.host.signals import StopSignals
from placebench.run.display import Display
from placebench.run.watch import Pause

TIME_LIMIT = "the time limit has passed"


class Asked:
    """What the run is asked; called, it says why the run must end now, None while it need not.

    Args:
        signals: those that ask.
        limit_s: seconds that the run may take, pauses aside; None without a limit.
        display: holds the terminal, and gives it back while the run pauses.
    """

    def __init__(self, signals: StopSignals, limit_s: float | None, display: Display) -> None:
        self._signals, self._display = signals, display
        self._deadline = None if limit_s is None else time.monotonic() + limit_s

    def __call__(self) -> str | None:
        """Why the run must end now."""
        if self._signals.received is not None:
            return f"stopped by {self._signals.received.name}"
        if self._deadline is not None and time.monotonic() > self._deadline:
            return TIME_LIMIT
        return None

    def pause(self, mark: LaunchMark) -> Pause | None:
        """Where Ctrl-Z has come, stop this process and all of a launch until `fg`; None where it has not."""
        if not self._signals.asks_to_pause:
            return None
        start = time.monotonic()
        with self._display.released(), frozen(lambda: launch_processes(mark)):
            self._signals.pause()
        pause = Pause(start, time.monotonic())
        if self._deadline is not None:
            self._deadline += pause.seconds
        return pause
