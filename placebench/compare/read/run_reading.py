"""Reading a run folder, finished or not: what `run.json` says, and which launches there are."""

from dataclasses import replace
from pathlib import Path

from placebench.compare.read.run import Launch, Run
from placebench.errors import DamagedLaunchError
from placebench.record.folder import RunFolder, Status, Trial
from placebench.record.launch_lines import count_steps, read_launch
from placebench.record.run_file import RunFile, read_run_file
from placebench.spec.bound import RunPlacement


def load_run(path: Path, *, with_samples: bool = True) -> Run:
    """Read the folder of a finished or half-finished run; launches whose files are damaged are set aside.

    Args:
        path: the run's folder.
        with_samples: whether the samples of the devices are wanted, which are most of what is read.

    Raises:
        UsageError: there is no such folder, it is not a run's, its schema is newer, or `run.json` is damaged.
    """
    folder = RunFolder(path)
    record = read_run_file(folder)
    placements = record.run_placements
    launches = [
        _read(record, folder.trial(number, placement.name), number, placement, with_samples)
        for number in range(1, record.rounds + 1)
        for placement in placements
    ]
    return Run(folder, record, placements, tuple(launches))


def _read(record: RunFile, trial: Trial, number: int, placement: RunPlacement, with_samples: bool) -> Launch:
    launch = Launch(trial, number, placement.name, Status.DAMAGED, record.warmup_steps)
    try:
        status = trial.status
        if status is not Status.DONE:
            error = trial.first_error and trial.first_error.removeprefix(f"{status}: ")
            return replace(launch, status=status, error=error, steps_done=count_steps(trial))
        of_own_job = record.job is None
        lines = read_launch(trial, placement.devices, of_own_job=of_own_job, with_samples=with_samples)
    except DamagedLaunchError as error:
        return replace(launch, error=str(error))
    return replace(launch, status=status, lines=lines, steps_done=len(lines.steps))
