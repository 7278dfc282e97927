"""Where the wall time of a launch goes."""

from placebench.record.folder import Trial, read_jsonl
from placebench.record.run_file import LaunchWall


def launch_wall(trial: Trial, started: float, job_ended: float, cleaned: float) -> LaunchWall:
    """The wall time of a launch; all times on the host's monotonic clock, since the other one may be set meanwhile."""
    steps = list(read_jsonl(trial.steps))
    total, cleanup = cleaned - started, cleaned - job_ended
    if not steps:
        return LaunchWall(total_s=total, cleanup_s=cleanup)
    first = float(steps[0]["mono"]) - float(steps[0]["metrics"]["timing_s/step"])
    last = float(steps[-1]["mono"])
    return LaunchWall(
        total_s=total,
        before_steps_s=first - started,
        steps_s=last - first,
        after_steps_s=job_ended - last,
        cleanup_s=cleanup,
    )
