"""The display of a run that another process has started, by its files alone."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from placebench.errors import DamagedLaunchError, LaunchError
from placebench.host.run_lock import is_held
from placebench.record.folder import RunFolder, Status, Trial, resuming
from placebench.record.progress import position_of, run_left, running_launch
from placebench.record.run_file import RunFile, read_run_file
from placebench.run.display import Display
from placebench.run.standing import last_write, stated
from placebench.run.watch import TrialWatch

_POLL_S = 0.4
SoFar = Callable[[Path, str], str | None]


def follow_run(folder: RunFolder, display: Display, so_far: SoFar) -> Status:
    """Show each launch of a run that goes on, until the run ends; returns how it has ended.

    Args:
        folder: the run's.
        display: where to.
        so_far: what to say when a launch of a placement is done; None for nothing.

    Raises:
        UsageError: the folder is not a run's, or its `run.json` is damaged.
        LaunchError: the process that worked on the run is gone, or a file holds what no job writes.
    """
    while True:
        record = read_run_file(folder)
        if record.status is not Status.RUNNING:
            return record.status
        if launch := running_launch(folder, record):
            with suppress(FileNotFoundError):  # where the launch, or the run, goes away: the next look says which
                _show(folder, record, launch, display, so_far)
        else:
            time.sleep(_POLL_S)
        _see_it_goes_on(folder)


def _show(folder: RunFolder, record: RunFile, launch: tuple[int, str], display: Display, so_far: SoFar) -> None:
    trial, (number, name) = folder.trial(*launch), launch
    watch = TrialWatch(trial, from_now=True)
    display.begin(position_of(record, number, name))
    while trial.stands_at(Status.RUNNING):
        state = stated(watch, trial)
        display.update(state, run_left(record, number, name, state))
        _see_it_goes_on(folder)
        time.sleep(_POLL_S)
    status = _status(trial)
    seconds = (last_write(trial.path / "status") or 0.0) - (last_write(trial.launch_file) or 0.0)
    said = so_far(folder.path, name) if status is Status.DONE else trial.first_error
    display.end(status, max(0.0, seconds), said and said.removeprefix(f"{status}: "))


def _status(trial: Trial) -> Status:
    try:
        return trial.status
    except DamagedLaunchError:
        return Status.DAMAGED


def _see_it_goes_on(folder: RunFolder) -> None:
    if is_held(folder) is False and read_run_file(folder).status is Status.RUNNING:
        raise LaunchError(
            f"{folder.path}: the process that worked on it was killed; go on with {resuming(folder.path)}"
        )
