"""Calibrations as users name them: by a run, by what was shared of one, or by a file."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from placebench.compare.measure.calibrating import calibrate_by
from placebench.compare.measure.placements import measure_run
from placebench.compare.read.run_reading import load_run
from placebench.errors import UsageError
from placebench.predict.asking import known_gpu
from placebench.predict.known import counted_once, shipped_calibrations
from placebench.record.calibration_file import CalibrationFile, read_calibration
from placebench.record.folder import RunFolder
from placebench.record.named_runs import completed_runs, find_run
from placebench.report.shared_calibration import shared_calibration
from placebench.spec.legible import shown
from placebench.spec.reading import exists
from placebench.spec.text import listing


def load_calibration(path: Path) -> CalibrationFile:
    """The calibration of a run's folder, or of a file.

    Raises:
        UsageError: it is neither, or has nothing to calibrate by.
    """
    if path.is_file():
        return read_calibration(path)
    folder = RunFolder(path)
    if folder.lacks_raw_files:
        # Where an earlier version has shared it, there is none.
        return read_calibration(folder.phases_file) if folder.phases_file.is_file() else shared_calibration(path)
    run = load_run(path, with_samples=False)
    return _with_core_loops(calibrate_by(run, measure_run(run)), folder.phases_file)


def _with_core_loops(file: CalibrationFile, by_report: Path) -> CalibrationFile:
    """How fast the cores were as the run's report has it, for which samples need not be read once more."""
    try:
        known = {case.name: case.core_loop_s for case in read_calibration(by_report).cases}
    except UsageError:
        return file  # no report yet, or one that somebody has changed: all else is in the run's own files
    cases = (case.model_copy(update={"core_loop_s": known.get(case.name)}) for case in file.cases)
    return file.model_copy(update={"cases": tuple(cases)})


def shipped_for(gpu: str | None) -> tuple[CalibrationFile, ...]:
    """The calibrations that are shipped for a GPU.

    Raises:
        UsageError: there is none, or no GPU is named.
    """
    shipped = shipped_calibrations()
    if gpu is None:
        raise UsageError(
            f"name what to predict from: --from RUN, or --gpu with a GPU that a calibration is shipped for:"
            f" {', '.join(shipped) or 'none'}"
        )
    found = tuple(file for file in shipped.values() if file.device == known_gpu(gpu))
    if not found:
        raise UsageError(
            f"--gpu {gpu}: no calibration is shipped for it, only for {listing(shipped)}: name a run of yours or one of"
            " these with --from"
        )
    return found


def named_calibrations(sources: str) -> tuple[tuple[CalibrationFile, ...], bool]:
    """The calibrations of a list of words, and whether all are shipped ones.

    Raises:
        UsageError: one of them is none, or they cannot be taken together.
    """
    words = [word.strip() for word in sources.split(",")]
    if not all(words):
        raise UsageError(f"--from {shown(sources)}: there is an empty entry; name a run, or a calibration file")
    shipped = shipped_calibrations()
    named = [_shipped_by_name(word, shipped) for word in words]
    files = tuple(
        one or load_calibration(path if (path := Path(word)).is_file() else _find_run(word, shipped))
        for word, one in zip(words, named, strict=True)
    )
    if reason := next(_reasons_against(words, files), None):
        raise UsageError(f"--from {shown(sources)}: {reason}")
    return files, all(named)


def _shipped_by_name(word: str, shipped: Mapping[str, CalibrationFile]) -> CalibrationFile | None:
    """The shipped calibration that a word names, in capitals where no run has this name; None of another word."""
    is_free = not exists(Path(word)) and (word in shipped or not completed_runs(word))
    return shipped.get(word.lower()) if is_free else None


def _find_run(word: str, shipped: Mapping[str, CalibrationFile]) -> Path:
    """The run that a word names; where it is a mere name and no run's, what is shipped may have been meant.

    Raises:
        UsageError: there is none, or several may be meant.
    """
    try:
        return find_run(word)
    except UsageError as error:
        if "/" in word or completed_runs(word):
            raise
        raise UsageError(f"{error}; shipped with placebench: {listing(shipped)}") from None


def _reasons_against(words: Sequence[str], files: Sequence[CalibrationFile]) -> Iterator[str]:
    """Why calibrations of words cannot be taken together."""
    if other := next((place for place, file in enumerate(files) if file.kind != files[0].kind), None):
        kinds = f"{words[0]} is of {files[0].kind} devices and {words[other]} of {files[other].kind} devices"
        yield f"{kinds}, which tell nothing of each other: name those of one kind"
    for place, word in enumerate(words):
        for same, file in zip(words[:place], files[:place], strict=True):
            if all(one.cases for one in counted_once((file, files[place]))):
                continue
            if same == word:
                yield f"{word} is given twice: name it once"
            else:
                yield f"{word} has the measurements of {same}: name one of them"
