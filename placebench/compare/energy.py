"""Power and energy of a device over any stretch of time.

Power is read often (every 20 ms from a GPU's buffer) and says how joules lie in time; the energy counter is read
seldom and says how many there are. So the counter's joules between two of its readings are spread as power was.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placebench.compare.run import Launch
from placebench.intervals import Intervals, length

_REACH_S = 1.0
"""How far the first and the last reading of power speak beyond themselves; the buffer is emptied once a second."""


@dataclass(frozen=True)
class PowerCurve:
    """What a device drew, by its readings of power: each holds for the time since the one before it.

    Attributes:
        mono: times on the monotonic clock, seconds, rising.
        joules: drawn from the first of them to each; none of either where power is not known.
    """

    mono: NDArray[np.float64]
    joules: NDArray[np.float64]

    @classmethod
    def of_readings(cls, mono: NDArray[np.float64], power: NDArray[np.float64]) -> "PowerCurve":
        """The curve of readings in order of time; `power` in W, NaN where there was none."""
        known = ~np.isnan(power)
        if not known.any():
            return cls(np.empty(0), np.empty(0))
        times, watts = mono[known], power[known]
        edges = np.concatenate([[times[0] - _REACH_S], times, [times[-1] + _REACH_S]])
        return cls(edges, np.append(0.0, np.cumsum(np.diff(edges) * np.append(watts, watts[-1]))))

    def covers(self, times: Intervals) -> bool:
        """Whether it reaches from the first of the times to the last."""
        return bool(len(self.mono) and len(times) and self.mono[0] <= times[0, 0] and times[-1, 1] <= self.mono[-1])

    def drawn(self, times: Intervals) -> float:
        """Joules over the disjoint times; NaN where a part of them lies beyond the readings."""
        if not len(times):
            return 0.0
        if not self.covers(times):
            return np.nan
        at = np.interp(times, self.mono, self.joules)
        return float((at[:, 1] - at[:, 0]).sum())

    def mean(self, times: Intervals) -> float:
        """Watts over the disjoint times; NaN as in `drawn`, and where there is no time."""
        return self.drawn(times) / length(times) if len(times) else np.nan

    def between(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Mean watts from each of the rising times to the next, one fewer than times; NaN beyond the readings."""
        if not len(self.mono):
            return np.full(max(0, len(times) - 1), np.nan)
        return np.diff(np.interp(times, self.mono, self.joules, left=np.nan, right=np.nan)) / np.diff(times)

    def counted(self, times: Intervals, mono: NDArray[np.float64], counter: NDArray[np.float64]) -> float:
        """Joules over the disjoint times by a counter, evenly between two of its readings where power is not known.

        NaN where a part lies beyond the readings of the counter, there are fewer than two, or it went back.

        Args:
            times: disjoint times.
            mono: when the counter was read, seconds, rising.
            counter: what it read, joules.
        """
        if len(mono) < 2 or not len(times) or times[0, 0] < mono[0] or times[-1, 1] > mono[-1]:
            return np.nan
        if (np.diff(counter) < 0).any():
            return np.nan
        if self.covers(np.array([[mono[0], mono[-1]]])):
            times, mono = np.interp(times, self.mono, self.joules), np.interp(mono, self.mono, self.joules)
        at = np.interp(times, mono, counter)
        return float((at[:, 1] - at[:, 0]).sum())


def power_curve(launch: Launch, device: str, times: Intervals) -> PowerCurve:
    """The curve of a device's buffered power; of the power in its samples where the buffer does not cover `times`."""
    buffered = launch.power[launch.power["device"] == device]
    curve = PowerCurve.of_readings(buffered["mono"].to_numpy(np.float64), buffered["power_w"].to_numpy(np.float64))
    if curve.covers(times):
        return curve
    samples = launch.samples[launch.samples["device"] == device]
    return PowerCurve.of_readings(samples["mono"].to_numpy(np.float64), samples["power_w"].to_numpy(np.float64))
