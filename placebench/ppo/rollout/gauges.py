"""Levels that change over a step, such as a queue's fill, integrated over time."""

from dataclasses import dataclass, fields
from typing import NamedTuple


@dataclass(frozen=True)
class Levels:
    """What holds at a moment."""

    queued: int = 0
    """Sequences that wait for the trainer."""
    generating: int = 0
    """Engines that generate."""
    idle: int = 0
    """Engines that have nothing to do."""
    starved: int = 0
    """1 while the trainer has nothing to do but wait for sequences, else 0."""


class LevelTimes(NamedTuple):
    """Levels of a stretch of time."""

    seconds: float
    """Length of the stretch."""
    integrals: dict[str, float]
    """Integral of each level over the stretch, such as engine-seconds."""
    peaks: dict[str, int]
    """Highest value of each level."""


class Gauges:
    """Integrates levels between the moments at which they change.

    Args:
        now: when they begin, monotonic seconds.
    """

    def __init__(self, now: float) -> None:
        self._levels = Levels()
        self._begin(now)

    def _begin(self, now: float) -> None:
        self._start = self._last = now
        self._integrals = {field.name: 0.0 for field in fields(Levels)}
        self._peaks = {field.name: getattr(self._levels, field.name) for field in fields(Levels)}

    def set(self, now: float, levels: Levels) -> None:
        """Tell what holds from `now` on."""
        for name in self._integrals:
            self._integrals[name] += (now - self._last) * getattr(self._levels, name)
            self._peaks[name] = max(self._peaks[name], getattr(levels, name))
        self._last, self._levels = now, levels

    def cut(self, now: float) -> LevelTimes:
        """The stretch since the last cut; the next one begins with the same levels."""
        self.set(now, self._levels)
        times = LevelTimes(now - self._start, self._integrals, self._peaks)
        self._begin(now)
        return times
