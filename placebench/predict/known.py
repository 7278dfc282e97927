"""Calibrations that are there without being named: those that are shipped, and those that runs have left."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

from placebench.errors import UsageError
from placebench.record.calibration_file import CalibrationFile, read_calibration
from placebench.record.folder import RunFolder
from placebench.spec.devices import DESCRIBED_GPU, Device

# By how much the memory that a driver tells may differ from the one that is described: 141 GiB are 140.4.
_ALIKE = 0.02


@cache
def shipped_calibrations() -> Mapping[str, CalibrationFile]:
    """The calibrations that come with placebench, by their short names, such as `h200`."""
    with as_file(files("placebench.predict").joinpath("data", "calibrations")) as folder:
        return {path.stem: read_calibration(path) for path in sorted(folder.glob("*.json"))}


def is_shipped(file: CalibrationFile) -> bool:
    """Whether a calibration is one of those that are shipped, whatever file it was read from."""
    return any(file.device == one.device and file.cases == one.cases for one in shipped_calibrations().values())


@dataclass(frozen=True)
class KnownCalibration:
    """A calibration that tells of devices without being named."""

    file: CalibrationFile
    devices: tuple[Device, ...]
    """Those that are asked about; of GPUs that are only described, with the name of those that they are taken for."""

    is_guessed: bool = False
    """Whether the devices are taken for others of as much memory."""

    @property
    def source(self) -> str:
        """Where it is from, and what the devices are taken for, in words."""
        return self.file.source + (f", taking them for {self.file.device}" if self.is_guessed else "")


def known_calibration(out: Path, devices: Sequence[Device]) -> KnownCalibration | None:
    """The newest calibration of like devices among the runs of a folder, else the one shipped for them; None without.

    Args:
        out: folder of the runs.
        devices: those that are asked about, all alike.
    """
    first = devices[0]
    for path in sorted(out.glob("*/"), reverse=True):
        try:
            found = read_calibration(RunFolder(path).phases_file)
        except UsageError:
            continue  # a damaged one, or one of another version, tells nothing
        # What a job of the user's took is no measure of placebench's own.
        is_own = any(case.workload for case in found.cases)
        if is_own and (found.kind, found.device, found.device_cores) == (first.kind, first.name, len(first.cores)):
            return KnownCalibration(found, tuple(devices))
    for file in shipped_calibrations().values():
        if file.device == first.name:
            return KnownCalibration(file, tuple(devices))
        if first.name == DESCRIBED_GPU and abs(first.memory_bytes / file.device_bytes - 1) < _ALIKE:
            named = tuple(replace(device, name=file.device) for device in devices)
            return KnownCalibration(file, named, is_guessed=True)
    return None
