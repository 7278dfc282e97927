"""How much launches of one and the same placement vary on a host: what `placebench calibrate` leaves for later runs.

The figures lie in `calibration.json` in the folder of the run that measured them. A comparison takes those of the
newest calibration beside its own run that had the same devices and the same workload but for the seed.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field

from placebench.compare.read.run import Run
from placebench.compare.statistics.estimates import Noise
from placebench.errors import UsageError
from placebench.record.folder import RunFolder
from placebench.record.parts import Record
from placebench.record.run_file import RunFile
from placebench.record.writing import write_json
from placebench.spec.auto_rounds import MOST_ROUNDS
from placebench.spec.reading import refuse_pipe

# A factor of e^100 is no noise.
Spread = Annotated[float, Field(ge=0, le=100)]


@dataclass(frozen=True)
class Variation:
    """How much a number of two launches of one placement differs; standard deviations of log ratios."""

    pair: Spread
    """Of two launches started one after the other."""
    within: Spread | None
    """The part that their steps vary by; None for a number that a launch has only one of."""
    between: Spread | None
    """The part that launches vary by beyond that; None likewise."""


class MeasuredNoise(Record):
    """The content of `calibration.json`: a placement against itself on one host."""

    schema_version: Literal[1] = 1
    run: str
    """Name of the run's folder."""
    placement: str
    """Its name."""
    pairs: Annotated[int, Field(ge=1, le=MOST_ROUNDS)]
    """Of launches."""
    variations: dict[str, Variation]
    """By key of the number."""

    def of(self, key: str) -> Noise | None:
        """The noise of a number; None where it was not measured. The true mean is known, so n pairs have n degrees."""
        found = self.variations.get(key)
        return None if found is None else Noise(found.pair, float(self.pairs))

    @classmethod
    def read(cls, folder: RunFolder) -> Self:
        """The content of a run's `calibration.json`.

        Raises:
            OSError, UsageError: it cannot be read.
            ValueError: it is none.
        """
        refuse_pipe(folder.calibration_file)
        return cls.model_validate_json(folder.calibration_file.read_bytes())

    def write(self, folder: RunFolder) -> None:
        """Write `calibration.json`."""
        write_json(folder.calibration_file, self.model_dump(mode="json"))


def find_noise(run: Run) -> MeasuredNoise | None:
    """What the newest calibration measured beside a run that is of its host and workload; None where there is none."""
    beside = run.folder.path.resolve().parent
    for path in sorted(beside.glob("*/calibration.json"), reverse=True):
        folder = RunFolder(path.parent)
        try:
            if folder.path.name == run.folder.path.resolve().name:
                continue
            if _setting(RunFile.read(folder.run_file)) == _setting(run.record):
                return MeasuredNoise.read(folder)
        except (OSError, ValueError, KeyError, TypeError, UsageError):
            continue  # a damaged calibration, or one of another version, tells nothing about this run
    return None


def _setting(record: RunFile) -> tuple[object, ...]:
    """What must be the same for noise to be: devices, node by node, launcher, and workload without its seed."""
    of_job = record.job.spec if record.job else record.workload
    work = {key: value for key, value in of_job.items() if key not in ("seed", "trace_kernels")}
    return record.devices, record.launcher, work
