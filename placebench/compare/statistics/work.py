"""Whether two placements had the same work, and what the step time says when they had not.

Work is the real tokens of a step. A placement does not change what is computed, yet responses that stop at their end
drift apart once rounding has changed one token. Steps whose tokens differ are not paired, and the step time is
adjusted:

    ln step = launch + β · ln tokens        (least squares over all steps, each launch with its own level)
    d       = median over steps i of ln(other_i / first_i) − β · ln(tokens of other_i / tokens of first_i)

β lies between 0, time that does not depend on tokens, and 1, time per token. Where the tokens of a launch vary too
little to tell β, it is 1: the step time is normalized by tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeAlias

import numpy as np
import pandas as pd

from placebench.compare.statistics.estimates import Ratio, compare
from placebench.compare.statistics.verdicts import MIN_EFFECT, Better, Verdict

Series: TypeAlias = "pd.Series[float]"

# Steps with tokens closer than this have the same work, and launches with less spread than this do not tell β.
SAME_TOKENS = 0.01
FEWEST_STEPS = 10


@dataclass(frozen=True)
class UnequalWork:
    """The step times of two placements with different work."""

    tokens: Ratio
    """Tokens of a step, other over first."""
    exponent: float
    """Β, by how many percent a step takes longer for one percent more tokens."""
    fitted: bool
    """Whether the exponent is from a regression; else it is 1."""
    adjusted: Ratio
    """The ratio of the step times with the difference in tokens taken out."""

    def agreed(self, step: Ratio) -> Ratio:
        """The ratio of the step times as measured, with its verdict where the adjusted one has the same."""
        return step if step.verdict is self.adjusted.verdict else replace(step, verdict=Verdict.UNDECIDED)


def unequal_work(
    first: Mapping[int, pd.DataFrame],
    other: Mapping[int, pd.DataFrame],
    min_effect: float = MIN_EFFECT,
    *,
    paired: bool = True,
) -> UnequalWork | None:
    """Whether steps differ in tokens, and the step time adjusted for it.

    Args:
        first: measured steps of each launch of the first placement by round: columns `step_time` (s) and `tokens`,
            indexed by step.
        other: the same of the other placement.
        min_effect: smallest effect of interest, as a fraction.
        paired: whether launches of the same round belong together.

    Returns:
        None where the work is equal, or not known.
    """
    first, other = _known(first), _known(other)
    if not first or not other or _same_tokens(first, other, paired):
        return None
    exponent, fitted = _exponent([*first.values(), *other.values()])
    means = [{number: float(steps["tokens"].mean()) for number, steps in side.items()} for side in (first, other)]
    times = [
        {number: steps["step_time"] / steps["tokens"] ** exponent for number, steps in side.items()}
        for side in (first, other)
    ]
    tokens = compare(means[0], means[1], Better.NEITHER, min_effect, paired=paired)
    adjusted = compare(times[0], times[1], Better.LESS, min_effect, paired=paired)
    return None if tokens is None or adjusted is None else UnequalWork(tokens, exponent, fitted, adjusted)


def _known(side: Mapping[int, pd.DataFrame]) -> dict[int, pd.DataFrame]:
    """The launches that have steps with time and tokens, with these steps alone."""
    known = {}
    for number, steps in side.items():
        if {"step_time", "tokens"} <= set(steps.columns):
            kept = steps[["step_time", "tokens"]].dropna()
            kept = kept[(kept > 0).all(axis=1)]
            if len(kept):
                known[number] = kept
    return known


def _same_tokens(first: Mapping[int, pd.DataFrame], other: Mapping[int, pd.DataFrame], paired: bool) -> bool:
    """Whether step i has the same tokens in both launches of a pair: typically, and all steps together.

    Without pairs, every launch of the one is held against every launch of the other; where these have no step in
    common, their mean against the other's.
    """
    pairs = [(number, number) for number in first.keys() & other.keys()] if paired else []
    more = pd.concat(
        [other[second]["tokens"] / first[number]["tokens"] - 1 for number, second in pairs or product(first, other)]
    ).dropna()
    if more.empty:
        means = [np.mean([steps["tokens"].mean() for steps in side.values()]) for side in (first, other)]
        return bool(abs(means[1] / means[0] - 1) <= SAME_TOKENS)
    return float(more.abs().median()) <= SAME_TOKENS and abs(float(more.mean())) <= SAME_TOKENS


def _exponent(launches: list[pd.DataFrame]) -> tuple[float, bool]:
    """β, and whether it is from the regression."""
    apart = pd.concat([np.log(steps) - np.log(steps).mean() for steps in launches])
    times, tokens = apart["step_time"].to_numpy(), apart["tokens"].to_numpy()
    if len(apart) < FEWEST_STEPS or tokens.std() <= SAME_TOKENS:
        return 1.0, False
    return float(np.clip(tokens @ times / (tokens @ tokens), 0.0, 1.0)), True
