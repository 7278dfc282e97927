"""Calibrations that are there without being named: those that are shipped, and those that runs have left."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

from placebench.errors import UsageError
from placebench.record.calibration_file import CalibrationFile, read_calibration
from placebench.record.folder import RunFolder
from placebench.spec.devices import Device


@cache
def shipped_calibrations() -> Mapping[str, CalibrationFile]:
    """The calibrations that come with placebench, by their short names, such as `h200`."""
    with as_file(files("placebench.predict").joinpath("data", "calibrations")) as folder:
        return {path.stem: read_calibration(path) for path in sorted(folder.glob("*.json"))}


def known_calibration(out: Path, devices: Sequence[Device]) -> CalibrationFile | None:
    """The newest calibration of like devices among the runs of a folder, else the one shipped for them; None without.

    Args:
        out: folder of the runs.
        devices: those that are asked about.
    """
    name = devices[0].name
    for path in sorted(out.glob("*/"), reverse=True):
        try:
            found = read_calibration(RunFolder(path).phases_file)
        except UsageError:
            continue  # a damaged one, or one of another version, tells nothing
        if (found.kind, found.device, found.device_cores) == (devices[0].kind, name, len(devices[0].cores)):
            return found
    return next((file for file in shipped_calibrations().values() if file.device == name), None)
