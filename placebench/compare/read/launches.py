"""Where the time of one launch, and of a whole run, went: starting up, steps, stopping."""

import math
from dataclasses import dataclass

from placebench.compare.read.run import Launch, Run
from placebench.record.run_file import LaunchWall
from placebench.telemetry.spans import TRACED_STEP


@dataclass(frozen=True)
class LaunchTimes:
    """Seconds of a launch by what it did; NaN where the spans do not say."""

    startup_s: float
    """From the first span to the first step; of a job of the user's from its first process."""
    steps_s: float
    """From the start of the first step to the end of the last, warm-up included."""
    trace_s: float
    """Of the step after them whose kernels were traced; 0 where none was."""
    stop_s: float
    """From there to the end of the last span; of a job of the user's to its own end."""
    steps: int
    """Steps done, without the traced one."""


def launch_times(launch: Launch, wall: LaunchWall | None = None) -> LaunchTimes:
    """Divide a launch's time.

    Args:
        launch: the launch.
        wall: what its run has recorded of it. Of a job of the user's no span tells how it starts and stops.
    """
    spans, steps = launch.spans, launch.whole_steps
    if steps.empty:
        return LaunchTimes(math.nan, math.nan, math.nan, math.nan, 0)
    first, last = float(steps["start"].min()), float(steps["end"].max())
    traced = spans[spans["phase"] == TRACED_STEP]
    trace = float((traced["end"] - traced["start"]).sum())
    before, after = first - float(spans["start"].min()), float(spans["end"].max()) - last
    if launch.is_of_job:
        known = wall and (wall.before_steps_s, wall.after_steps_s)
        before, after = (math.nan if seconds is None else seconds for seconds in known or (None, None))
    return LaunchTimes(before, last - first, trace, after - trace, len(steps))


@dataclass(frozen=True)
class RunTimes:
    """Seconds of a run's wall time by what its finished launches did."""

    total_s: float
    """All of it, earlier starts of the run and launches that failed included."""
    start_s: float
    """From the first process of a launch to its first step."""
    warmup_s: float
    """In the steps that are left out of the numbers."""
    measured_s: float
    """In the steps that are in them."""
    trace_s: float
    """In the steps whose kernels were traced."""
    end_s: float
    """From the last step of a launch to its last process gone."""


def run_times(run: Run) -> RunTimes | None:
    """Divide a run's wall time; None where none is on record, or no launch has finished."""
    done = [
        (launch, wall)
        for placement in run.placements
        for launch in run.done(placement.name)
        if (wall := run.wall(launch))
    ]
    if not done or not run.record.wall.total_s:
        return None
    steps = [(launch.step_seconds, launch.last_warmup_step) for launch, _ in done]
    traces = (launch_times(launch).trace_s for launch, _ in done)
    trace = math.fsum(seconds for seconds in traces if not math.isnan(seconds))
    ends = math.fsum((wall.after_steps_s or 0.0) + wall.cleanup_s for _, wall in done)
    return RunTimes(
        total_s=run.record.wall.total_s,
        start_s=math.fsum(wall.before_steps_s or 0.0 for _, wall in done),
        warmup_s=math.fsum(seconds[seconds.index <= last].sum() for seconds, last in steps),
        measured_s=math.fsum(seconds[seconds.index > last].sum() for seconds, last in steps),
        trace_s=trace,
        end_s=max(ends - trace, 0.0),
    )
