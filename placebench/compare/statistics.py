"""Intervals and verdicts. The launch is the unit: steps of one launch are not independent, launches are.

A launch counts with one value a metric, the median of its measured steps (the mean where parts must add up). A round
holds one launch of every placement, started one after the other, so two placements are compared pair by pair of the
same round: with d = ln(other / first) of each of n pairs, the ratio is exp(mean d) and its 95 % interval
exp(mean d ± t · sd(d) / √n), t the 0.975 quantile of Student's t with n − 1 degrees of freedom (Student 1908). With few
launches this keeps its coverage where a percentile bootstrap, which cannot see beyond the handful of values it
resamples, falls far short.

Launches that were not interleaved, such as those of two runs or of logs from elsewhere, have no pairs: then the
interval is Welch's, on the difference of the mean logarithms (Welch 1947), and needs two launches on each side.

Smallest effect of interest e (2 %): a ratio is *faster* or *slower* when its whole interval lies beyond 1/(1 + e) or
1 + e, *same* when it lies between the two, else *undecided*. Both bounds mirror each other, so swapping the placements
mirrors the verdict. A single pair has no interval and is undecided.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import numpy as np
from scipy.special import stdtrit

Values: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.float64]]"

CONFIDENCE = 0.95
MIN_EFFECT = 0.02


class Better(StrEnum):
    """What a larger value of a metric means."""

    LESS = "less"
    """Smaller is better: times."""
    MORE = "more"
    """Larger is better: throughput."""
    NEITHER = "neither"
    """Neither is better in itself: load, memory, idle time."""


class Verdict(StrEnum):
    """One word on a ratio."""

    FASTER = "faster"
    SLOWER = "slower"
    HIGHER = "higher"
    """Above the smallest effect of interest, for a metric of which neither side is better."""
    LOWER = "lower"
    SAME = "same"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Estimate:
    """A value over launches and its 95 % interval.

    Attributes:
        value: the mean of the launches; NaN without launches.
        low: lower end of the interval; NaN with fewer than two launches.
        high: upper end.
        n: launches that have the value.
    """

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Ratio:
    """A placement's value over the first placement's.

    Attributes:
        value: ratio, geometric mean of the pairs.
        low: lower end of the 95 % interval; NaN with fewer than two pairs.
        high: upper end.
        pairs: rounds in which both placements have the value; 0 when no round has both or rounds are no pairs, and then
            the value is the ratio of the two geometric means.
        verdict: the word.
    """

    value: float
    low: float
    high: float
    pairs: int
    verdict: Verdict


def estimate(values: Sequence[float], *, additive: bool = False) -> Estimate:
    """The mean of launches and its t interval; NaN values are left out.

    Args:
        values: one value a launch.
        additive: take the arithmetic mean, as parts that add up must. Otherwise the mean is geometric where all
            values are above 0, so that the quotient of two means is the mean of their ratios.
    """
    known = np.array([value for value in values if not math.isnan(value)])
    if not additive and len(known) and (known > 0).all():
        centre, half = _mean_and_half_width(np.log(known))
        return Estimate(math.exp(centre), math.exp(centre - half), math.exp(centre + half), len(known))
    centre, half = _mean_and_half_width(known)
    return Estimate(centre, centre - half, centre + half, len(known))


def compare(
    first: Mapping[int, float],
    other: Mapping[int, float],
    better: Better,
    min_effect: float = MIN_EFFECT,
    *,
    paired: bool = True,
) -> Ratio | None:
    """The ratio of two placements.

    Args:
        first: value of each launch of the first placement, by round; NaN where missing.
        other: the same of the other placement.
        better: what a larger value means.
        min_effect: smallest effect of interest, as a fraction.
        paired: whether launches of the same round were started one after the other; else rounds mean nothing.

    Returns:
        None where a ratio has no meaning: a side has no value, or a value is not above 0.
    """
    sides = [{round_: value for round_, value in side.items() if not math.isnan(value)} for side in (first, other)]
    if not all(sides) or min(value for side in sides for value in side.values()) <= 0:
        return None
    if not paired:
        centre, half = _welch(*(np.log(list(side.values())) for side in sides))
        return _ratio(centre, half, 0, better, min_effect)
    rounds = sorted(sides[0].keys() & sides[1].keys())
    if not rounds:
        ratio = estimate(list(sides[1].values())).value / estimate(list(sides[0].values())).value
        return Ratio(ratio, math.nan, math.nan, 0, Verdict.UNDECIDED)
    logs = np.array([math.log(sides[1][round_] / sides[0][round_]) for round_ in rounds])
    return _ratio(*_mean_and_half_width(logs), len(rounds), better, min_effect)


def _ratio(centre: float, half: float, pairs: int, better: Better, min_effect: float) -> Ratio:
    """The ratio that a mean of log ratios and half its interval's width give."""
    low, high = centre - half, centre + half
    verdict = _verdict(low, high, better, math.log1p(min_effect))
    return Ratio(math.exp(centre), math.exp(low), math.exp(high), pairs, verdict)


def _verdict(low: float, high: float, better: Better, bound: float) -> Verdict:
    """The word on an interval of log ratios; comparisons with NaN are false, which leaves it undecided."""
    if -bound < low and high < bound:
        return Verdict.SAME
    if low > bound:
        return {Better.LESS: Verdict.SLOWER, Better.MORE: Verdict.FASTER, Better.NEITHER: Verdict.HIGHER}[better]
    if high < -bound:
        return {Better.LESS: Verdict.FASTER, Better.MORE: Verdict.SLOWER, Better.NEITHER: Verdict.LOWER}[better]
    return Verdict.UNDECIDED


def _welch(first: Values, other: Values) -> tuple[float, float]:
    """Difference of two means and half the width of its interval; NaN width with fewer than two values on a side."""
    difference = float(other.mean() - first.mean())
    if min(len(first), len(other)) < 2:
        return difference, math.nan
    variances = [float(side.var(ddof=1)) / len(side) for side in (first, other)]
    total = sum(variances)
    if not total:
        return difference, 0.0
    # The degrees of freedom of Welch and Satterthwaite.
    freedom = total**2 / sum(v**2 / (len(side) - 1) for v, side in zip(variances, (first, other), strict=True))
    return difference, float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(total)


def _mean_and_half_width(values: Values) -> tuple[float, float]:
    """Mean and half the width of its t interval; NaN where there are too few values."""
    if not len(values):
        return math.nan, math.nan
    if len(values) == 1:
        return float(values[0]), math.nan
    quantile = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2))
    return float(values.mean()), quantile * float(values.std(ddof=1)) / math.sqrt(len(values))
