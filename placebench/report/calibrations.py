"""Calibrations as users name them: by a run, by what was shared of one, or by a file."""

from pathlib import Path

from placebench.compare.measure.calibrating import calibrate_by
from placebench.compare.measure.placements import measure_run
from placebench.compare.read.run_reading import load_run
from placebench.record.calibration_file import CalibrationFile, read_calibration
from placebench.record.folder import RunFolder
from placebench.report.shared_calibration import shared_calibration


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
    return calibrate_by(run, measure_run(run))
