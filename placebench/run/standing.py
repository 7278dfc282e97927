"""Where a run stands that goes on in another process, as its files say it."""

import time
from dataclasses import replace
from pathlib import Path

from placebench.host.run_lock import is_held
from placebench.record.folder import RunFolder, Status, Trial, resuming
from placebench.record.progress import LaunchState, activity, run_left, running_launch
from placebench.record.run_file import read_run_file
from placebench.run.watch import DamagedFilesError, TrialWatch
from placebench.spec.text import format_seconds


def where_it_stands(folder: RunFolder) -> str | None:
    """In one line: which launch runs, what it does, since when, and about how long the run still takes; or what to do.

    Returns:
        None where no launch runs.

    Raises:
        UsageError: the folder is not a run's, or its `run.json` is damaged.
    """
    if folder.lacks_raw_files:
        return None
    record = read_run_file(folder)
    launch = running_launch(folder, record)
    if record.status is Status.RUNNING and is_held(folder) is False:
        return f"The process that worked on it was killed; go on with {resuming(folder.path)}"
    if record.status is not Status.RUNNING or launch is None:
        return None
    number, name = launch
    where = f"Now: round {number}{'' if record.auto else f' of {record.rounds}'}, {name}, "
    try:
        trial = folder.trial(number, name)
        state = stated(TrialWatch(trial), trial)
    except (OSError, DamagedFilesError) as error:
        return f"{where}what it does cannot be read: {error}."
    doing = f"{activity(state, record.steps_in(number))}, {format_seconds(state.silent_s)} so far"
    left = run_left(record, number, name, state)
    return f"{where}{doing}; " + ("time left unknown." if left is None else f"about {format_seconds(left)} left.")


def stated(watch: TrialWatch, trial: Trial) -> LaunchState:
    """The launch as it stands, its times counted from those of its files.

    Raises:
        FileNotFoundError, DamagedFilesError: as of `TrialWatch.read`.
    """
    state = watch.read()
    now = time.time()
    begun, changed = (last_write(path) or now for path in (trial.launch_file, trial.progress))
    return replace(state, elapsed_s=max(0.0, now - begun), silent_s=max(0.0, now - changed))


def last_write(path: Path) -> float | None:
    """When a file was written last, Unix seconds; None where there is none."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None
