"""Intervals and verdicts. The launch is the unit: steps of one launch are not independent, launches are.

A round holds one launch of every placement, started one after the other, so two placements are compared pair by pair of
the same round. A pair gives one number, d = the median over steps i of ln(other_i / first_i), step i beside step i:
what both have in common, the data of that step and the state of the machine in that round, drops out. Where steps of
the two do not have the same work, d is the log ratio of the two launches' medians. With d of each of n pairs, the ratio
is exp(mean d) and its 95 % interval exp(mean d ± t · sd(d) / √n), t the 0.975 quantile of Student's t with n − 1
degrees of freedom (Student 1908). Launches that were not interleaved, those of two logs for instance, have no pairs:
then the interval is Welch's (1947), of the difference of the mean logs.

The smallest effect of interest e (2 %) makes the verdict. A ratio is *faster* or *slower* when its whole interval lies
beyond 1/(1 + e) or 1 + e, *same* when it lies between the two, else *undecided*. Both bounds mirror each other, so
swapping the placements mirrors the verdict. With fewer than two launches a side there is no interval, and no verdict.

docs/statistics.md shows by simulation what the intervals cover and how often the verdicts are wrong.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeAlias, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from placebench.compare.statistics.verdicts import MIN_EFFECT, Better, Verdict

CONFIDENCE = 0.95
# How likely the launches that are said to decide a ratio are to do so, if effect and noise are as measured.
POWER = 0.8
MOST_LAUNCHES = 1000

Key = TypeVar("Key")
Floats: TypeAlias = NDArray[np.float64]
LaunchValue: TypeAlias = "float | pd.Series[float]"
"""What a launch measured: one number, or a number a step, indexed by step."""


@dataclass(frozen=True)
class Estimate:
    """A value over launches and its 95 % interval."""

    value: float
    """The mean of the launches; NaN without launches."""
    low: float
    """Lower end of the interval; NaN with fewer than two launches."""
    high: float
    """Upper end."""
    n: int
    """Launches that have the value."""


@dataclass(frozen=True)
class Difference:
    """The difference of two placements in logs; every field a number, or an array with one element a comparison."""

    center: Floats
    """Mean of the log ratios."""
    error: Floats
    """Standard error of the center; NaN with fewer than two launches a side."""
    freedom: Floats
    """Degrees of freedom of the error."""

    @property
    def half_width(self) -> Floats:
        """Half the width of the 95 % interval of the center."""
        return quantile(self.freedom, (1 + CONFIDENCE) / 2) * self.error

    def p_value(self, bound: float) -> Floats:
        """How surprising the center is if the true difference lay on the other side of the smallest effect.

        That is the t-test at launch level against the nearer bound, two-sided: below 0.05 just where the whole 95 %
        interval lies on one side of both bounds.
        """
        from scipy.special import stdtr

        with np.errstate(divide="ignore", invalid="ignore"):
            distance = np.abs(np.abs(self.center) - bound) / self.error
        return np.asarray(2 * stdtr(self.freedom, -distance))


@dataclass(frozen=True)
class Noise:
    """How much the log ratio of two launches of one and the same placement varies on a host."""

    sd: float
    """Standard deviation of the log ratio of a pair."""
    freedom: float
    """Degrees of freedom of it."""


@dataclass(frozen=True)
class Ratio:
    """A placement's value over the first placement's."""

    value: float
    """Ratio, geometric mean of the pairs, or of launch against launch where there are none."""
    low: float
    """Lower end of the 95 % interval; NaN with fewer than two launches a side."""
    high: float
    """Upper end."""
    pairs: int
    """Rounds in which both placements have the value; 0 where the launches are not paired."""
    launches: tuple[int, int]
    """Launches of the first and of the other placement that have the value."""
    verdict: Verdict
    """The word."""
    p_value: float
    """Of the launch-level test whether the ratio is on this side of the smallest effect; NaN without an interval.
    Within a family, corrected for its size: see `control_false_discoveries`."""
    needed: int | None
    """Launches of each side with which its own interval would decide it; None where it does, and where even
    `MOST_LAUNCHES` would not."""
    corrected_for: int | None = None
    """How many ratios are looked at together, where only that leaves it undecided; else None."""


def quantile(freedom: Floats | float, share: float) -> Floats:
    """The quantile of Student's t below which lies a share of it, by degrees of freedom."""
    # Loading it takes a tenth of a second, which the processes that draw a report's figures have no use for.
    from scipy.special import stdtrit

    return np.asarray(stdtrit(freedom, share))


def estimate(values: Sequence[float], *, additive: bool = False) -> Estimate:
    """The mean of launches and its t interval; NaN values are left out.

    Args:
        values: one value a launch.
        additive: take the arithmetic mean, as parts that add up must. Otherwise the mean is geometric where all
            values are above 0, so that the quotient of two means is the mean of their ratios.
    """
    known = np.array([value for value in values if not math.isnan(value)])
    geometric = not additive and len(known) > 0 and bool((known > 0).all())
    found = paired_difference(np.log(known) if geometric else known)
    center, half = float(found.center), float(found.half_width)
    value, low, high = (_exp(end) if geometric else end for end in (center, center - half, center + half))
    return Estimate(value, low, high, len(known))


def compare(
    first: Mapping[int, LaunchValue],
    other: Mapping[int, LaunchValue],
    better: Better,
    min_effect: float = MIN_EFFECT,
    *,
    paired: bool = True,
    noise: Noise | None = None,
) -> Ratio | None:
    """The ratio of two placements.

    Args:
        first: what each launch of the first placement measured, by round; missing is NaN. Series of steps are paired
            step by step, so give them only where step i of both has the same work.
        other: the same of the other placement.
        better: what a larger value means.
        min_effect: smallest effect of interest, as a fraction.
        paired: whether launches of the same round belong together: whether they were interleaved. Those that
            `rounds_of_pairs` leaves out are not compared, and where it finds no pairs, all are, unpaired.
        noise: of this value on this host, for the number of launches that would decide.

    Returns:
        None where a ratio has no meaning: a side has no value, or a value is not above 0.
    """
    sides = [_known(side) for side in (first, other)]
    if not all(sides) or min(_lowest(value) for side in sides for value in side.values()) <= 0:
        return None
    common = rounds_of_pairs(*sides) if paired else []
    if common:
        found = paired_difference(np.array([log_ratio(sides[0][number], sides[1][number]) for number in common]))
    else:
        found = unpaired_difference(*(np.array([_log_level(value) for value in side.values()]) for side in sides))
    return _ratio(found, len(common), (len(sides[0]), len(sides[1])), better, math.log1p(min_effect), noise)


def rounds_of_pairs(first: Collection[int], other: Collection[int]) -> list[int]:
    """The rounds whose launches are compared in pairs: those that both sides have.

    None where that is a single round, which gives no interval, and both sides have more launches, which do.
    """
    common = sorted(set(first) & set(other))
    return common if len(common) > 1 or min(len(first), len(other)) == 1 else []


def control_false_discoveries(family: Mapping[Key, Ratio | None]) -> dict[Key, Ratio | None]:
    """Verdicts of ratios that are looked at together, at a false discovery rate of 5 % (Benjamini and Hochberg 1995).

    Every ratio gets its p value corrected for the size of the family; where that is above 0.05, the ratio is undecided,
    whatever its own interval says. The intervals stay.
    """
    tested = {key: ratio for key, ratio in family.items() if ratio is not None and not math.isnan(ratio.p_value)}
    if not tested:
        return dict(family)
    held: dict[Key, Ratio | None] = dict(family)
    corrected = _corrected(np.array([ratio.p_value for ratio in tested.values()]))
    for (key, ratio), p_value in zip(tested.items(), corrected.tolist(), strict=True):
        held[key] = replace(ratio, p_value=p_value)
        if p_value >= 1 - CONFIDENCE and ratio.verdict is not Verdict.UNDECIDED:
            held[key] = replace(ratio, p_value=p_value, verdict=Verdict.UNDECIDED, corrected_for=len(tested))
    return held


def log_ratio(first: LaunchValue, other: LaunchValue) -> float:
    """ln(other / first) of a pair of launches: the median over the steps that both have, or that of their levels."""
    if isinstance(first, pd.Series) and isinstance(other, pd.Series):
        quotients = (other / first).dropna()
        if len(quotients):
            return float(np.median(np.log(quotients.to_numpy(dtype=np.float64))))
    return _log_level(other) - _log_level(first)


def paired_difference(logs: Floats) -> Difference:
    """The mean of log ratios of pairs, shape (..., pairs), with its standard error."""
    count = logs.shape[-1]
    if not count:
        return Difference(*(np.full(logs.shape[:-1], np.nan) for _ in range(3)))
    variance = logs.var(axis=-1, ddof=1) if count > 1 else np.full(logs.shape[:-1], np.nan)
    return Difference(logs.mean(axis=-1), np.sqrt(variance / count), np.full(logs.shape[:-1], max(count - 1.0, 1.0)))


def unpaired_difference(first: Floats, other: Floats) -> Difference:
    """The difference of the mean logs of launches, shapes (..., launches), with Welch's standard error."""
    sides = [paired_difference(side) for side in (first, other)]
    variances = [side.error**2 for side in sides]
    total = variances[0] + variances[1]
    share = np.divide(variances[0], total, out=np.full(total.shape, 0.5), where=total > 0)
    freedom = 1 / (share**2 / sides[0].freedom + (1 - share) ** 2 / sides[1].freedom)
    return Difference(sides[1].center - sides[0].center, np.sqrt(total), freedom)


def launches_needed(effect: float, sd: float, bound: float, *, paired: bool = True) -> int | None:
    """Launches a side with which an effect is decided with probability `POWER`.

    Args:
        effect: true log ratio.
        sd: of the log ratio of a pair of launches.
        bound: log of 1 + the smallest effect of interest.
        paired: whether launches are compared in pairs.

    Returns:
        None where `MOST_LAUNCHES` do not suffice.
    """
    enough = np.flatnonzero(sd * _reaches(paired) <= abs(abs(effect) - bound))
    return int(enough[0]) + 2 if len(enough) else None


def detectable_effect(sd: float, launches: int, min_effect: float = MIN_EFFECT) -> float:
    """The smallest effect, as a fraction, that so many pairs of launches decide with probability `POWER`."""
    reach = sd * _reach(np.asarray(launches), np.asarray(launches - 1.0))
    return math.expm1(math.log1p(min_effect) + float(reach))


def middle(values: "pd.Series[float]") -> float:
    """The median; of an even number of values, where they are positive, the geometric mean of the middle two.

    So ratios have it, and the median of a rate and that of the time in which it is reached are of the same steps.
    NaN without values.
    """
    known = values.to_numpy(dtype=np.float64)
    known = np.sort(known[~np.isnan(known)])
    if not len(known):
        return math.nan
    below, above = float(known[(len(known) - 1) // 2]), float(known[len(known) // 2])
    if below == above:
        return below
    return math.sqrt(below * above) if below > 0 else (below + above) / 2


def _known(side: Mapping[int, LaunchValue]) -> dict[int, LaunchValue]:
    """The launches that have a value, without the steps that have none."""
    values = {number: value.dropna() if isinstance(value, pd.Series) else value for number, value in side.items()}
    return {
        number: value
        for number, value in values.items()
        if (len(value) > 0 if isinstance(value, pd.Series) else not math.isnan(value))
    }


def _lowest(value: LaunchValue) -> float:
    return float(value.min()) if isinstance(value, pd.Series) else value


def _log_level(value: LaunchValue) -> float:
    return math.log(middle(value) if isinstance(value, pd.Series) else value)


def _ratio(
    found: Difference, pairs: int, launches: tuple[int, int], better: Better, bound: float, noise: Noise | None
) -> Ratio:
    center, half = float(found.center), float(found.half_width)
    verdict = _verdict(center - half, center + half, better, bound)
    needed = None
    if verdict is Verdict.UNDECIDED:
        needed = _needed(found, pairs, launches, bound, noise)
    return Ratio(
        _exp(center),
        _exp(center - half),
        _exp(center + half),
        pairs,
        launches,
        verdict,
        float(found.p_value(bound)),
        needed,
    )


def _exp(value: float) -> float:
    """The exponential; infinite where it is more than the largest number."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _verdict(low: float, high: float, better: Better, bound: float) -> Verdict:
    """The word on an interval of log ratios; comparisons with NaN are false, which leaves it undecided."""
    if -bound < low and high < bound:
        return Verdict.SAME
    if low > bound:
        return {Better.LESS: Verdict.SLOWER, Better.MORE: Verdict.FASTER, Better.NEITHER: Verdict.HIGHER}[better]
    if high < -bound:
        return {Better.LESS: Verdict.FASTER, Better.MORE: Verdict.SLOWER, Better.NEITHER: Verdict.LOWER}[better]
    return Verdict.UNDECIDED


def _needed(found: Difference, pairs: int, launches: tuple[int, int], bound: float, noise: Noise | None) -> int | None:
    """Launches that would decide, with the noise that these launches and the host's calibration show together."""
    count = pairs or 2 / (1 / launches[0] + 1 / launches[1])
    seen = [] if math.isnan(found.error) else [Noise(float(found.error) * math.sqrt(count), float(found.freedom))]
    seen += [noise] if noise else []
    freedom = sum(one.freedom for one in seen)
    if not freedom:
        return None
    sd = math.sqrt(sum(one.freedom * one.sd**2 for one in seen) / freedom)
    needed = launches_needed(float(found.center), sd, bound, paired=pairs > 0)
    return None if needed is None else max(needed, min(launches) + 1)


def _corrected(p_values: Floats) -> Floats:
    """P values times their number over their rank, none above a larger one's.

    `scipy.stats.false_discovery_control` gives the same, but loading scipy.stats takes half a second of every report.
    """
    falling = np.argsort(-p_values)
    ranks = np.arange(len(p_values), 0, -1)
    corrected = np.empty_like(p_values)
    corrected[falling] = np.minimum.accumulate(np.minimum(p_values[falling] * len(p_values) / ranks, 1.0))
    return corrected


@cache
def _reaches(paired: bool) -> Floats:
    """`_reach` of 2 launches a side, of 3 and so on up to `MOST_LAUNCHES`."""
    counts = np.arange(2, MOST_LAUNCHES + 1)
    return _reach(counts, np.asarray((counts - 1.0) * (1 if paired else 2)))


def _reach(launches: NDArray[np.int64], freedom: Floats) -> Floats:
    """How far beyond the bound a log ratio must lie to be decided with probability `POWER`, by launches a side.

    In standard deviations of the log ratio of a pair of launches.
    """
    return (quantile(freedom, (1 + CONFIDENCE) / 2) + quantile(freedom, POWER)) / np.sqrt(launches)
