"""The difference of two step times, divided along the critical path of each.

A step's time is the time of the phases on its path and the gaps between them. So the difference of two step times is
the sum of the differences of these parts, and nothing is counted twice, whatever overlaps. A phase adds to its step
what it takes less what of it is hidden beside the path; both may change from one placement to the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from placebench.compare.comparison import Comparison
from placebench.compare.metrics import BESIDE, END, GAP, IMBALANCE, OFF_PATH, PATH, PATH_KEYS, STEP_TIME
from placebench.compare.pairing import launches_compared
from placebench.compare.side import Side
from placebench.compare.statistics.estimates import Estimate, estimate, unpaired_difference
from placebench.spec.phases import phase_order


@dataclass(frozen=True)
class PathPart:
    """What a phase, or the gap before one, adds to the step of a placement, in seconds."""

    phase: str
    """The phase; of a gap the one that it precedes, or the step's end."""
    is_gap: bool
    """Whether it is the gap."""
    on_path: float
    """The part's time on the critical path."""
    off_path: float
    """The phase's time beside the path, hidden by what takes longer; 0 for a gap."""
    imbalance: float
    """Of the time on the path, what the phase's devices waited for each other, their mean."""

    @property
    def whole(self) -> float:
        """Time of the phase from its first device's start to its last one's end."""
        return self.on_path + self.off_path


@dataclass(frozen=True)
class PartChange:
    """A part of the step in two placements."""

    first: PathPart
    """In the first placement."""
    other: PathPart
    """In the other."""
    rounds: Estimate
    """The difference on the path over launches of the same round, or of all launches where they are no pairs."""
    whole_rounds: Estimate
    """The difference of the phase's whole time, hidden time included, likewise."""

    @property
    def difference(self) -> float:
        """Seconds that the part adds to the other's step and not to the first's."""
        return self.other.on_path - self.first.on_path

    @property
    def longer(self) -> float:
        """Of the difference: seconds that the phase takes longer."""
        return self.other.whole - self.first.whole

    @property
    def hidden(self) -> float:
        """Of the difference, with a minus: seconds more of the phase that are hidden beside the path."""
        return self.other.off_path - self.first.off_path

    @property
    def phase(self) -> str:
        """The phase; of a gap the one that it precedes, or the step's end."""
        return self.first.phase

    @property
    def is_gap(self) -> bool:
        """Whether it is the gap."""
        return self.first.is_gap


@dataclass(frozen=True)
class StepChange:
    """Two step times, part by part, over the launches on which their ratio rests (`launches_compared`)."""

    parts: tuple[PartChange, ...]
    """Phases in the step's order, then gaps likewise; parts that neither step has are left out."""
    first_s: float
    """Step time of the first placement, the sum of its parts on the path."""
    other_s: float
    """Step time of the other placement, the sum of its parts on the path."""
    hidden: Estimate
    """Seconds more that the other hides beside phases of its path, all together, over the rounds."""
    gaps: Estimate
    """Seconds more that pass in gaps on its path without work beside them, over the rounds."""

    @property
    def difference(self) -> float:
        """Seconds by which the other's step is longer: the sum of the parts' differences."""
        return self.other_s - self.first_s

    @cached_property
    def phases(self) -> tuple[PartChange, ...]:
        """The parts that are phases."""
        return tuple(part for part in self.parts if not part.is_gap)

    @cached_property
    def gap_parts(self) -> tuple[PartChange, ...]:
        """The parts that are gaps."""
        return tuple(part for part in self.parts if part.is_gap)


def path_parts(side: Side) -> tuple[PathPart, ...]:
    """What a placement's step consists of: phases in the step's order, then the gaps; none where no spans tell."""
    seconds = {key + name: side.value(key + name) for key in PATH_KEYS for name in side.keys(key)}
    phases = phase_order({name for key in (PATH, OFF_PATH) for name in side.keys(key)})
    gaps = [name for name in (*phases, END) if GAP + name in seconds]
    return (
        *(
            PathPart(
                phase,
                False,
                seconds.get(PATH + phase, 0.0),
                seconds.get(OFF_PATH + phase, 0.0),
                seconds.get(IMBALANCE + phase, 0.0),
            )
            for phase in phases
        ),
        *(PathPart(phase, True, seconds[GAP + phase], 0.0, 0.0) for phase in gaps),
    )


def absent(phase: str, *, is_gap: bool) -> PathPart:
    """A part that a placement's step does not have."""
    return PathPart(phase, is_gap, 0.0, 0.0, 0.0)


def step_change(first: Side, other: Side) -> StepChange | None:
    """Divide the difference of the step times of two sides; None where one of them has no path."""
    first, other, in_pairs = launches_compared(first, other)

    def change(keys: list[str], without: Sequence[str] = ()) -> Estimate:
        sides = (_sums(first, keys, without), _sums(other, keys, without))
        return _over_rounds(*sides) if in_pairs else _over_launches(*sides)

    sides = [{(part.is_gap, part.phase): part for part in path_parts(side)} for side in (first, other)]
    if not all(sides):
        return None
    names = phase_order({phase for side in sides for _, phase in side} - {END})
    keys = [*((False, name) for name in names), *((True, name) for name in (*names, END))]
    parts = [
        PartChange(
            sides[0].get(key, absent(key[1], is_gap=key[0])),
            sides[1].get(key, absent(key[1], is_gap=key[0])),
            change([(GAP if key[0] else PATH) + key[1]]),
            change([GAP + key[1]] if key[0] else [PATH + key[1], OFF_PATH + key[1]]),
        )
        for key in keys
        if any(key in side for side in sides)
    ]
    off_path, gaps = ([prefix + name for name in (*names, END)] for prefix in (OFF_PATH, GAP))
    beside = [BESIDE + pair for pair in dict.fromkeys([*first.keys(BESIDE), *other.keys(BESIDE)])]
    return StepChange(
        tuple(parts),
        first.value(STEP_TIME.key),
        other.value(STEP_TIME.key),
        change(beside),
        # What lies off the path and beside no phase of it lies beside a gap.
        change([*gaps, *beside], without=off_path),
    )


def step_changes(comparison: Comparison) -> list[tuple[str, StepChange]]:
    """The difference of each side's step to the first's, part by part, under its name; of runs whose spans tell."""
    changes = ((other.name, step_change(comparison.first, other)) for other in comparison.others)
    return [(name, change) for name, change in changes if change]


def _over_rounds(first: Mapping[int, float], other: Mapping[int, float]) -> Estimate:
    """The difference over launches of the same round."""
    return estimate([other[round_] - first[round_] for round_ in first], additive=True)


def _over_launches(first: Mapping[int, float], other: Mapping[int, float]) -> Estimate:
    """The difference of the means of launches that are no pairs, with Welch's interval."""
    found = unpaired_difference(*(np.array(list(side.values())) for side in (first, other)))
    center, half = float(found.center), float(found.half_width)
    return Estimate(center, center - half, center + half, min(len(first), len(other)))


def _sums(side: Side, keys: Sequence[str], without: Sequence[str]) -> Mapping[int, float]:
    """The sum of some parts less that of others, by round."""
    signed = [*((1.0, side.by_round(key)) for key in keys), *((-1.0, side.by_round(key)) for key in without)]
    rounds = side.measured_rounds
    return {round_: side.scale_of_parts * sum(sign * by.get(round_, 0.0) for sign, by in signed) for round_ in rounds}
