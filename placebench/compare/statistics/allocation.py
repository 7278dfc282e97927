"""How many steps a launch should have: two-stage sampling, launches first, then steps within them.

A pair of launches gives one number, whose variance is b² + w² / n: b² differs from pair to pair, w² from step to step,
n steps are measured. A launch takes C + n c seconds: C for its start, warm-up and end, c for a step. R pairs give an
interval whose width goes with √((b² + w² / n) / R), and as many seconds R (C + n c). At given seconds it is narrowest
where (b² + w² / n) (C + n c) is least: n = √(C / c) · w / b (Cochran, Sampling Techniques, 1977, section 10.6).
Around it the product is flat, so rough estimates do: with twice or half as many steps it is an eighth larger at most.
Where fewer steps are narrow enough after the rounds that are run in any case, these few are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placebench.compare.statistics.estimates import CONFIDENCE, Floats, quantile
from placebench.spec.auto_rounds import FIRST_LOOK

# Fewer would let one odd step decide a launch's median.
LEAST_STEPS = 3
# Of few pairs the difference of launches is often estimated as nothing. It counts as no less than this share of the
# noise that the steps give to a launch, so that steps grow twofold over the square root at most.
LEAST_BETWEEN = 0.25


@dataclass(frozen=True)
class Spread:
    """How much log ratios vary; standard deviations."""

    between: float
    """From pair to pair of launches, beyond what their steps contribute."""
    within: float
    """From step to step of a pair."""


def spread_of(groups: Sequence[Sequence[Floats]]) -> Spread | None:
    """Tell the variance between pairs from that within them.

    Args:
        groups: for every placement against the first, the log ratios of the measured steps of each pair.

    Returns:
        None where no group has two pairs, no pair has two steps, or nothing varies.
    """
    pairs = [logs for group in groups for logs in group if len(logs) > 1]
    means = [np.array([np.median(logs) for logs in group]) for group in groups if len(group) > 1]
    if not pairs or not means:
        return None
    within = float(np.mean([logs.var(ddof=1) for logs in pairs]))
    of_steps = within / float(np.mean([len(logs) for logs in pairs]))
    between = max(float(np.mean([values.var(ddof=1) for values in means])) - of_steps, LEAST_BETWEEN * of_steps)
    return Spread(math.sqrt(between), math.sqrt(within)) if between > 0 else None


def best_steps(spread: Spread, start_s: float, step_s: float, precision: float) -> int:
    """How many steps a launch should measure, to have intervals narrow enough in the least time.

    Args:
        spread: of the log ratios.
        start_s: seconds of a launch besides its measured steps.
        step_s: seconds of a step.
        precision: width of the interval, high / low - 1, that is narrow enough.
    """
    steps = math.sqrt(start_s / step_s) * spread.within / spread.between
    half_width = math.log1p(precision) / 2
    left = FIRST_LOOK * (half_width / float(quantile(FIRST_LOOK - 1, (1 + CONFIDENCE) / 2))) ** 2 - spread.between**2
    enough = spread.within**2 / left if left > 0 else math.inf
    return max(LEAST_STEPS, math.ceil(min(steps, enough)))
