"""Where a run stands that goes on in another process, as its files say it."""

import time
from dataclasses import replace
from pathlib import Path

from placebench.record.folder import RunFolder, Status, Trial
from placebench.record.run_file import LaunchWall, RunFile, read_run_file
from placebench.run.progress import activity, time_left
from placebench.run.watch import DamagedFilesError, LaunchState, TrialWatch
from placebench.spec.text import format_seconds


def where_it_stands(folder: RunFolder) -> str | None:
    """In one line: which launch runs, what it does, since when, and about how long the run still takes.

    Returns:
        None where no launch runs.

    Raises:
        UsageError: the folder is not a run's, or its `run.json` is damaged.
    """
    if folder.lacks_raw_files:
        return None
    record = read_run_file(folder)
    order = [(number, name) for number, names in enumerate(record.order, start=1) for name in names]
    running = [launch for launch in order if folder.trial(*launch).stands_at(Status.RUNNING)]
    if record.status is not Status.RUNNING or not running:
        return None
    number, name = launch = running[-1]
    where = f"Now: round {number}{'' if record.auto else f' of {record.rounds}'}, {name}, "
    try:
        state = _state(folder.trial(number, name))
    except (OSError, DamagedFilesError) as error:
        return f"{where}what it does cannot be read: {error}."
    doing = f"{activity(state, record.steps)}, {format_seconds(state.silent_s)} so far"
    left = _left(record, state, name, [later for _, later in order[order.index(launch) + 1 :]])
    return f"{where}{doing}; " + ("time left unknown." if left is None else f"about {format_seconds(left)} left.")


def _state(trial: Trial) -> LaunchState:
    """The launch as it stands, its times counted from those of its files."""
    state = TrialWatch(trial).read()
    now = time.time()
    begun, changed = (_changed(path) or now for path in (trial.launch_file, trial.progress))
    return replace(state, elapsed_s=max(0.0, now - begun), silent_s=max(0.0, now - changed))


def _changed(path: Path) -> float | None:
    """When a file was written last, Unix seconds; None where there is none."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def _left(record: RunFile, state: LaunchState, name: str, later: list[str]) -> float | None:
    finished: dict[str, list[LaunchWall]] = {}
    for launch in record.launches:
        if launch.status is Status.DONE:
            finished.setdefault(launch.placement, []).append(launch.wall)
    return time_left(finished, name, state, record.steps - record.steps_before, later)
