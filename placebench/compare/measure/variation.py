"""Measuring how much launches of one placement vary: pairs of them, dealt to two arms that are the same.

Launches 1 and 2 make a pair, 3 and 4 the next; in every second pair the arms change places, as in the rounds of a
comparison. The arms are the same, so the true log ratio is 0 and the standard deviation of a pair is √(mean d²). What
steps contribute is bootstrapped: blocks of consecutive steps of a pair, drawn with replacement around the circle
(Politis and Romano 1992), keep their autocorrelation; the variance of the median over draws is the part within
launches. The rest is between launches.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from placebench.compare.measure.placements import RunSide
from placebench.compare.metrics import STEP_TIME, Metric
from placebench.compare.read.noise import MeasuredNoise, Variation
from placebench.compare.statistics.estimates import Floats, LaunchValue, Ratio, compare, log_ratio
from placebench.compare.statistics.verdicts import Better

DRAWS = 500


@dataclass(frozen=True)
class SelfComparison:
    """A placement against itself."""

    noise: MeasuredNoise
    """How much its numbers vary."""
    step: Ratio
    """The ratio of the step times of the two arms, which should be 1."""
    metrics: tuple[Metric, ...]
    """The numbers that vary, in the order of the tables."""


def compare_with_itself(side: RunSide, metrics: Sequence[Metric], min_effect: float) -> SelfComparison | None:
    """The launches of a placement against each other; None with fewer than two pairs.

    Args:
        side: the placement.
        metrics: the numbers that stand side by side.
        min_effect: smallest effect of interest, as a fraction.
    """
    arms = _deal(side, STEP_TIME.key)
    step = compare(*arms, Better.LESS, min_effect)
    if step is None or step.pairs < 2:
        return None
    variations = {}
    for metric in metrics:
        found = _variation(*_deal(side, metric.key))
        if found is not None:
            variations[metric.key] = found
    run = side.run.folder.path.resolve().name
    noise = MeasuredNoise(run=run, placement=side.name, pairs=step.pairs, variations=variations)
    return SelfComparison(noise, step, tuple(metric for metric in metrics if metric.key in variations))


def _deal(side: RunSide, key: str) -> tuple[dict[int, LaunchValue], dict[int, LaunchValue]]:
    """The launches as two arms, by pair, counted from 1; a launch whose partner has failed is in one arm alone."""
    arms: tuple[dict[int, LaunchValue], dict[int, LaunchValue]] = ({}, {})
    for number, value in side.by_step(key).items():
        pair, second = divmod(number - 1, 2)
        arms[(second + pair) % 2][pair + 1] = value
    return arms


def _variation(first: Mapping[int, LaunchValue], other: Mapping[int, LaunchValue]) -> Variation | None:
    """None where fewer than two pairs have the number, or it is not above 0 everywhere."""
    pairs = list(_pairs(first, other))
    if len(pairs) < 2:
        return None
    variance = float(np.mean([log_ratio(*pair) ** 2 for pair in pairs]))
    steps = [one for pair in pairs if (one := _step_variance(*pair)) is not None]
    if len(steps) < len(pairs):
        return Variation(math.sqrt(variance), None, None)
    within = float(np.mean(steps))
    return Variation(math.sqrt(variance), math.sqrt(within), math.sqrt(max(variance - within, 0.0)))


def _pairs(
    first: Mapping[int, LaunchValue], other: Mapping[int, LaunchValue]
) -> Iterator[tuple[LaunchValue, LaunchValue]]:
    for number in sorted(first.keys() & other.keys()):
        if all(np.min(value) > 0 for value in (first[number], other[number])):
            yield first[number], other[number]


def _step_variance(first: LaunchValue, other: LaunchValue) -> float | None:
    """Variance of a pair's log ratio that its steps account for; None without steps in common."""
    if not isinstance(first, pd.Series) or not isinstance(other, pd.Series):
        return None
    logs = np.log((other / first).dropna().to_numpy(dtype=np.float64))
    return bootstrap_variance(logs, np.random.default_rng(0)) if len(logs) > 1 else None


def bootstrap_variance(values: Floats, random: np.random.Generator) -> float:
    """Variance of the median of a stretch of a stationary series, by circular blocks of n^(1/3) values."""
    count = len(values)
    length = max(1, round(count ** (1 / 3)))
    begins = random.integers(0, count, (DRAWS, -(-count // length)))
    places = (begins[..., None] + np.arange(length)).reshape(DRAWS, -1)[:, :count] % count
    return float(np.median(values[places], axis=1).var(ddof=1))
