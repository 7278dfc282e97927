"""The summary that is in a folder: of a run without its raw files, and of one whose files are as they were."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from placebench.compare.statistics.verdicts import MIN_EFFECT
from placebench.errors import UsageError
from placebench.record.folder import RunFolder
from placebench.record.run_file import read_run_file
from placebench.report.schema import Summary
from placebench.spec.reading import read_text
from placebench.version import __version__

SHARED = "The run was shared without its raw files: these are the numbers of its summary.json."


def read_summary(path: Path, min_effect: float | None = None) -> Summary:
    """The summary of a run or a comparison that has no raw files.

    Args:
        path: its folder.
        min_effect: what the user wants to be the smallest effect of interest; None for what it was.

    Raises:
        UsageError: the file cannot be read, or is none, or verdicts are wanted that it has not.
    """
    folder = RunFolder(path)
    if min_effect is not None:
        raise UsageError(
            f"--min-effect {min_effect:g}: {path} was shared without its raw files, which new verdicts need: leave"
            " --min-effect out"
        )
    try:
        return Summary.model_validate_json(read_text(folder.summary_file))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        what = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
        raise UsageError(f"{folder.summary_file}: not as placebench writes it: {what}") from None


def kept_summary(path: Path, min_effect: float | None = None) -> Summary | None:
    """The summary that the report of a run has left, if its files would give the same again; else None.

    They would where none has changed since, by the clock that the system alone sets, nor a calibration beside the run.

    Args:
        path: the run's folder.
        min_effect: smallest effect of interest, as a fraction; None for the run's own.

    Raises:
        UsageError: the folder is not a run's, or `run.json` is damaged.
    """
    folder = RunFolder(path)
    effect = read_run_file(folder).min_effect or MIN_EFFECT if min_effect is None else min_effect
    try:
        if max(_changes(folder)) >= folder.summary_file.stat().st_mtime_ns:
            return None
        summary = read_summary(path)
    except (OSError, UsageError):
        return None
    return summary if (summary.placebench, summary.method.min_effect) == (__version__, effect) else None


def _changes(folder: RunFolder) -> Iterator[int]:
    """When each file changed of which a summary is made, and each folder of them, in ns.

    Raises:
        OSError: one cannot be looked at.
    """
    trials = folder.path / "trials"
    beside = folder.path.resolve().parent.glob("*/calibration.json")
    for path in (folder.run_file, trials, *trials.glob("*"), *trials.glob("*/*"), *beside):
        yield path.stat().st_ctime_ns
