"""A clock for tests of what happens at a time."""

from placebench.telemetry.spans import SpanClock


class SetClock(SpanClock):
    """A clock that goes on when it is told to."""

    now = 100.0

    def mono(self) -> float:
        """What it was set to."""
        return self.now
