"""Of a step, the seconds in which no phase on its path runs: results are collected, and the next phase is submitted."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from placebench.record.calibration_file import MeasuredCase

# Where no gap was measured, for each phase and sequence.
PHASE_S = 3e-3
SEQUENCE_S = 2e-4


@dataclass(frozen=True)
class StepGaps:
    """The gaps of one workload's steps."""

    measured: Sequence[tuple[int, float]]
    """Of this work, whatever its placement: the number of its pools, and seconds."""
    of_usual: float
    """What other work of the same measurements had of what a step usually has."""
    sequences: int
    """Of a step."""

    def seconds(self, pools: int, phases: int) -> float:
        """As measured of this work with as many pools, else with any number; else what a step usually has.

        Args:
            pools: of the placement.
            phases: of the step.
        """
        if self.measured:
            alike = [seconds for count, seconds in self.measured if count == pools]
            return fmean(alike or [seconds for _, seconds in self.measured])
        return self.of_usual * _usual(phases, self.sequences)


def step_gaps(same: Sequence[MeasuredCase], others: Sequence[MeasuredCase], sequences: int) -> StepGaps:
    """The gaps of a workload's steps.

    Args:
        same: cases of this work.
        others: of other work.
        sequences: of a step; 0 where they are not known.
    """
    ratios = [
        case.gap_s / _usual(len(case.phases), count)
        for case in others
        if case.gap_s is not None and (count := case.workload.get("batch", {}).get("size"))
    ]
    measured = [(case.pools, case.gap_s) for case in same if case.gap_s is not None]
    return StepGaps(measured, fmean(ratios) if ratios else 1.0, sequences)


def _usual(phases: int, sequences: int) -> float:
    return PHASE_S * phases + SEQUENCE_S * sequences
