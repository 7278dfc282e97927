"""How the launches of two sides are held against each other: chosen here, for every reader of the numbers.

Launches of one run were interleaved, so those of a round are a pair: step by step where step i of both is the same
work, else by the medians of their steps. Launches of different runs are no pairs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pandas as pd

from placebench.compare.measure.metrics import HEADLINES, STEP_TIME, Metric
from placebench.compare.statistics.estimates import (
    MIN_EFFECT,
    LaunchValue,
    Noise,
    Ratio,
    compare,
    control_false_discoveries,
)
from placebench.compare.statistics.work import UnequalWork, unequal_work


class Side(Protocol):
    """What a comparison needs of one side."""

    @property
    def work_steps(self) -> Mapping[int, pd.DataFrame]:
        """Columns `step_time` (s) and `tokens` of the measured steps of each launch, indexed by step.

        Empty where they are not known, and where the work of a step differs by design.
        """

    def by_round(self, key: str) -> Mapping[int, float]:
        """A number of each launch by its round."""

    def by_step(self, key: str) -> Mapping[int, LaunchValue]:
        """The same, a value a step where there is one."""


@dataclass(frozen=True)
class Pairing:
    """Two sides and how they are compared.

    Attributes:
        first: the side that the other is compared with.
        other: the other.
        interleaved: whether launches of the same round belong together, as in one run.
        min_effect: smallest effect of interest, as a fraction.
        work: how the other's work differs; None where it does not, where it does by design, or where it is not known.
    """

    first: Side
    other: Side
    interleaved: bool
    min_effect: float
    work: UnequalWork | None

    def ratio(self, metric: Metric, noise: Noise | None = None) -> Ratio | None:
        """A number of the other over that of the first, as `compare` gives it; see there for the noise.

        The step time of unequal work has a verdict only where the ratio at equal work agrees.
        """
        by_step = self.interleaved and self.work is None
        first, other = (
            side.by_step(metric.key) if by_step else side.by_round(metric.key) for side in (self.first, self.other)
        )
        found = compare(first, other, metric.better, self.min_effect, paired=self.interleaved, noise=noise)
        return self.work.agreed(found) if self.work and found and metric.key == STEP_TIME.key else found


def pair(first: Side, other: Side, min_effect: float = MIN_EFFECT, *, interleaved: bool = True) -> Pairing:
    """Choose how two sides are compared; see `Pairing` for the arguments."""
    work = unequal_work(first.work_steps, other.work_steps, min_effect, paired=interleaved)
    return Pairing(first, other, interleaved, min_effect, work)


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
