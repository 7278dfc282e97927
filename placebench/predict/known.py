"""Calibrations that are there without being named: those that are shipped, and those that runs have left."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

from placebench.errors import UsageError
from placebench.record.calibration_file import CalibrationFile, MeasuredCase, read_calibration
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
    """Whether a calibration is one of those that are shipped, or some cases of it, whatever file it was read from."""
    return any(
        (file.device, file.source) == (one.device, one.source) and all(case in one.cases for case in file.cases)
        for one in shipped_calibrations().values()
    )


def counted_once(files: Sequence[CalibrationFile]) -> tuple[CalibrationFile, ...]:
    """Calibrations without what others of them have too, as when what is shipped was made of a run that is named.

    Of the same launches those of a run are kept, which tell of a host, before what is shipped; then the most launches.
    A file of which nothing is left has no cases.
    """
    cases = [(place, case) for place, file in enumerate(files) for case in file.cases]
    shipped = [is_shipped(file) for file in files]
    cases.sort(key=lambda one: (shipped[one[0]], one[1].step_s is None, -one[1].launches))
    kept: list[tuple[int, MeasuredCase]] = []
    for place, case in cases:
        if not any(place != other and _same_launches(files[place], case, files[other], one) for other, one in kept):
            kept.append((place, case))
    return tuple(
        file.model_copy(update={"cases": tuple(case for case in file.cases if (place, case) in kept)})
        for place, file in enumerate(files)
    )


def _same_launches(file: CalibrationFile, case: MeasuredCase, other_file: CalibrationFile, other: MeasuredCase) -> bool:
    """Whether two cases are of the same launches, or one of some of the other's."""
    if (file.device, case.name, case.workload) != (other_file.device, other.name, other.workload):
        return False
    # A copy may have kernels alone, and a run that went on more rounds than a calibration that was written before.
    rounds, others = case.round_steps.items(), other.round_steps.items()
    return _phase_times(case) == _phase_times(other) or bool(rounds & others)


def _phase_times(case: MeasuredCase) -> list[tuple[str, int, float]]:
    return [(phase.name, phase.devices, phase.seconds) for phase in case.phases]


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
