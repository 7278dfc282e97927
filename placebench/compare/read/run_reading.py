"""Reading a run folder, finished or not: what `run.json` says, and which launches there are."""

from pathlib import Path

from placebench.compare.read.run import Launch, Run
from placebench.errors import UsageError
from placebench.record.folder import RunFolder, Status, Trial
from placebench.record.run_file import read_run_file


def load_run(path: Path) -> Run:
    """Read the folder of a finished or half-finished run.

    Raises:
        UsageError: there is no such folder, it is not a run's, its schema is newer, or `run.json` is damaged.
    """
    folder = RunFolder(path)
    record = read_run_file(folder)
    launches = []
    for round_number in range(1, record.rounds + 1):
        for name in (placement.name for placement in record.placements):
            trial = folder.trial(round_number, name)
            launches.append(Launch(trial, round_number, name, _status(trial), record.warmup_steps))
    return Run(folder, record, record.run_placements, tuple(launches))


def _status(trial: Trial) -> Status:
    try:
        return trial.status
    except ValueError as error:
        found = str(error).partition(" is not")[0]
        raise UsageError(f"{trial.path / 'status'}: {found} is none of {', '.join(Status)}") from None
