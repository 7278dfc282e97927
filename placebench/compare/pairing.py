"""How the launches of two sides are held against each other: chosen here, for every reader of the numbers.

Launches of one run were interleaved, so those of a round are a pair: step by step where step i of both is the same
work, else by the medians of their steps. Launches of different runs are no pairs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from placebench.compare.metrics import HEADLINES, STEP_TIME, Metric
from placebench.compare.side import Side
from placebench.compare.statistics.estimates import Noise, Ratio, compare, control_false_discoveries, rounds_of_pairs
from placebench.compare.statistics.verdicts import MIN_EFFECT
from placebench.compare.statistics.work import UnequalWork, unequal_work

First = TypeVar("First", bound=Side)
Other = TypeVar("Other", bound=Side)


@dataclass(frozen=True)
class Pairing:
    """Two sides and how they are compared."""

    first: Side
    """The side that the other is compared with."""
    other: Side
    """The other."""
    min_effect: float
    """Smallest effect of interest, as a fraction."""
    work: UnequalWork | None
    """How the other's work differs; None where it does not, where it does by design, or where it is not known."""

    def ratio(self, metric: Metric, noise: Noise | None = None) -> Ratio | None:
        """A number of the other over that of the first, as `compare` gives it; see there for the noise.

        The step time of unequal work has a verdict only where the ratio at equal work agrees.
        """
        paired = self.first.shares_rounds(self.other)
        by_step = paired and self.work is None
        first, other = (
            side.by_step(metric.key) if by_step else side.by_round(metric.key) for side in (self.first, self.other)
        )
        found = compare(first, other, metric.better, self.min_effect, paired=paired, noise=noise)
        return self.work.agreed(found) if self.work and found and metric.key == STEP_TIME.key else found


def pair(first: Side, other: Side, min_effect: float = MIN_EFFECT) -> Pairing:
    """Choose how two sides are compared; see `Pairing` for the arguments."""
    work = unequal_work(first.work_steps, other.work_steps, min_effect, paired=first.shares_rounds(other))
    return Pairing(first, other, min_effect, work)


def launches_compared(first: First, other: Other) -> tuple[First, Other, bool]:
    """Two sides with the launches alone on which the ratio of their step times rests.

    Returns:
        Both, and whether their launches are pairs: then launches of other rounds than those of both are left out.
    """
    rounds = rounds_of_pairs(first.measured_rounds, other.measured_rounds) if first.shares_rounds(other) else []
    return (first.of_rounds(rounds), other.of_rounds(rounds), True) if rounds else (first, other, False)


def hold_details(ratios: Mapping[str, Ratio | None]) -> dict[str, Ratio | None]:
    """The ratios of a family by key, all but the headlines corrected for its size."""
    details = {key: ratio for key, ratio in ratios.items() if key not in HEADLINES}
    return {**ratios, **control_false_discoveries(details)}


def hold_headlines(sides: Sequence[Mapping[str, Ratio | None]]) -> list[dict[str, Ratio | None]]:
    """The ratios of every side by key, the headlines corrected for how many sides are compared with the first."""
    held = [dict(ratios) for ratios in sides]
    for key in HEADLINES:
        family = {place: ratios[key] for place, ratios in enumerate(held) if key in ratios}
        for place, ratio in control_false_discoveries(family).items():
            held[place][key] = ratio
    return held
