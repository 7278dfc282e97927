"""Power and energy of a device over any stretch of time.

Power is read often (every 20 ms from a GPU's buffer) and says how joules lie in time; the energy counter is read
seldom and says how many there are. So the counter's joules between two of its readings are spread as power was.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placebench.compare.read.run import Launch
from placebench.spec.intervals import Intervals

_REACH_S = 1.0
"""How far back a reading of power speaks at most; the buffer is emptied once a second."""

_BEYOND_S = 30.0
"""How far energy is known beyond the counter's last reading: as far as the next one is away."""

_NO_JOULES = 1e-9
"""A curve of power that has no more joules says nothing of when a counter's were spent."""

_ENOUGH = 0.9
"""Share of the time with power in samples for which the buffer must have it to be used."""


@dataclass(frozen=True)
class PowerCurve:
    """What a device drew, by its readings of power: each holds for the time since the one before it, or 1 s of that."""

    mono: NDArray[np.float64]
    """Times on the monotonic clock, seconds, in order."""
    known_s: NDArray[np.float64]
    """Seconds for which power is known, from the first of them to each."""
    joules: NDArray[np.float64]
    """Drawn in these seconds. All three are empty where power is not known at all."""

    @classmethod
    def of_readings(cls, mono: NDArray[np.float64], power: NDArray[np.float64]) -> "PowerCurve":
        """The curve of readings in order of time; `power` in W, NaN where there was none."""
        times, watts = mono[~np.isnan(power)], power[~np.isnan(power)]
        held = np.minimum(np.diff(times, prepend=times[:1] - _REACH_S), _REACH_S)
        edges = np.column_stack([times - held, times]).ravel()
        known, joules = (np.cumsum(part) for part in (held, held * watts))
        return cls(
            edges,
            np.column_stack([known - held, known]).ravel(),
            np.column_stack([joules - held * watts, joules]).ravel(),
        )

    def mean(self, times: Intervals) -> float:
        """Watts over the disjoint times, as far as power is known in them; NaN where it is not."""
        if not len(self.mono):
            return np.nan
        known, joules = (float(np.diff(np.interp(times, self.mono, by)).sum()) for by in (self.known_s, self.joules))
        return joules / known if known > 0 else np.nan

    def between(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Mean power, W, from each of the rising times to the next, shape (times - 1,)."""
        return np.array([self.mean(stretch) for stretch in np.column_stack([times[:-1], times[1:]])[:, None]])

    def weigh(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Joules drawn up to each time, with the mean where power is not known; seconds where it nowhere is.

        Only differences have a meaning.
        """
        if not len(self.mono) or self.joules[-1] <= 0:
            return times
        unknown = times - np.interp(times, self.mono, self.known_s)
        return np.asarray(np.interp(times, self.mono, self.joules) + unknown * self.joules[-1] / self.known_s[-1])

    def drawn(self, times: Intervals) -> float:
        """What the disjoint times weigh."""
        return float(np.diff(self.weigh(times)).sum())

    def counted(self, times: Intervals, mono: NDArray[np.float64], counter: NDArray[np.float64]) -> float:
        """Joules over the disjoint times by a counter.

        NaN where a part lies before its readings or more than `_BEYOND_S` behind them, there are fewer than two, or it
        went back. Behind the last of them it is taken to go on as it did, for each joule of the curve.

        Args:
            times: disjoint times.
            mono: when the counter was read, seconds, rising.
            counter: what it read, joules.
        """
        if len(mono) < 2 or not len(times) or times[0, 0] < mono[0] or times[-1, 1] > mono[-1] + _BEYOND_S:
            return np.nan
        if (np.diff(counter) < 0).any():
            return np.nan
        marks, at = self.weigh(mono), self.weigh(times)
        if marks[-1] - marks[0] <= _NO_JOULES:
            marks, at = mono, times
        within = np.interp(at, marks, counter)
        rate = (counter[-1] - counter[0]) / (marks[-1] - marks[0])
        return float(np.diff(within + rate * np.maximum(0.0, at - marks[-1])).sum())


def power_curve(launch: Launch, device: str) -> PowerCurve:
    """The curve of a device's buffered power, or of the power in its samples where the buffer lacks much of it."""
    buffered, sampled = (
        PowerCurve.of_readings(found["mono"].to_numpy(np.float64), found["power_w"].to_numpy(np.float64))
        for read in (launch.power, launch.samples)
        for found in (read[read["device"].to_numpy(dtype=object) == device],)
    )
    seconds = [float(curve.known_s[-1]) if len(curve.known_s) else 0.0 for curve in (buffered, sampled)]
    return buffered if seconds[0] > 0 and seconds[0] >= _ENOUGH * seconds[1] else sampled
