"""Where the time of one launch went: starting up, steps, stopping."""

import math
from dataclasses import dataclass

from placebench.compare.read.run import Launch, is_whole_step
from placebench.telemetry.spans import TRACED_STEP


@dataclass(frozen=True)
class LaunchTimes:
    """Seconds of a launch by what it did; NaN where the spans do not say."""

    startup_s: float
    """From the first span to the first step."""
    steps_s: float
    """From the start of the first step to the end of the last, warm-up included."""
    trace_s: float
    """Of the step after them whose kernels were traced; 0 where none was."""
    stop_s: float
    """From there to the end of the last span."""
    steps: int
    """Steps done, without the traced one."""


def launch_times(launch: Launch) -> LaunchTimes:
    """Divide a launch's time; spans of its processes before the first and after the last are not seen."""
    spans = launch.spans
    steps = spans[is_whole_step(spans)]
    if steps.empty:
        return LaunchTimes(math.nan, math.nan, math.nan, math.nan, 0)
    first, last = float(steps["start"].min()), float(steps["end"].max())
    traced = spans[spans["phase"] == TRACED_STEP]
    trace = float((traced["end"] - traced["start"]).sum())
    after = float(spans["end"].max()) - last
    return LaunchTimes(first - float(spans["start"].min()), last - first, trace, after - trace, len(steps))
