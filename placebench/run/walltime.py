"""Where the wall time of a launch goes."""

from dataclasses import dataclass

from placebench.record.folder import Trial, read_jsonl


@dataclass(frozen=True)
class LaunchWall:
    """Where the wall time of a launch went, in seconds; None where it did not come that far.

    Attributes:
        total_s: from the first process to the last one gone.
        before_steps_s: to the start of the first step: imports, Ray, models.
        steps_s: from the start of the first step to the end of the last finished one.
        after_steps_s: to the end of the job.
        cleanup_s: to the end of its sampler and of whatever the job has left.
    """

    total_s: float
    before_steps_s: float | None
    steps_s: float | None
    after_steps_s: float | None
    cleanup_s: float


def launch_wall(trial: Trial, started: float, job_ended: float, cleaned: float) -> LaunchWall:
    """The wall time of a launch; all times on the host's monotonic clock, since the other one may be set meanwhile."""
    steps = list(read_jsonl(trial.steps))
    total, cleanup = cleaned - started, cleaned - job_ended
    if not steps:
        return LaunchWall(total, None, None, None, cleanup)
    first = float(steps[0]["mono"]) - float(steps[0]["metrics"]["timing_s/step"])
    last = float(steps[-1]["mono"])
    return LaunchWall(total, first - started, last - first, job_ended - last, cleanup)
