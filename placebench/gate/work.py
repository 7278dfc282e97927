"""Unequal work: a number as measured, and at equal tokens.

A run may have had other tokens a step than its baseline: other code gives other responses. A number that is worse only
for that is no regression, and one that is worse in spite of it must not pass in silence. So it is as in a comparison of
placements: a verdict needs both to agree, the number as measured and with the difference in tokens taken out.
"""

from dataclasses import dataclass, replace

import pandas as pd

from placebench.compare.metrics import STEP_TIME, Metric
from placebench.compare.side import Side
from placebench.compare.statistics.estimates import compare
from placebench.compare.statistics.verdicts import Better
from placebench.compare.statistics.work import UnequalWork, unequal_work

TOKENS = "tokens"


@dataclass(frozen=True)
class OtherWork:
    """The work of a placement in the run, where it is not the same as in the baseline."""

    before: float
    """Tokens of a step in the baseline, mean of its launches."""
    now: float
    """Tokens of a step in the run, mean of its launches."""
    found: UnequalWork | None
    """What tokens do to a step's time, and as `adjusted` the number's ratio at equal tokens; None for a number that is
    judged as measured alone."""


def other_work(
    metric: Metric, better: Better, before: Side, now: Side, effect: float, *, paired: bool
) -> OtherWork | None:
    """How a placement's work differs from the baseline's, and one of its numbers at equal tokens.

    The step time is adjusted as in a comparison of placements, by a regression of its steps on their tokens, and rates
    of tokens accordingly. Of other times and of energy there are no steps on record: they are taken per token, which
    is the most that they can depend on tokens. Memory is judged as measured.

    Args:
        metric: the number.
        better: which side of it is better.
        before: the baseline's placement.
        now: the run's.
        effect: smallest effect of interest, as for `compare`.
        paired: whether launches of both are pairs.

    Returns:
        None where the work is equal, or not known.
    """
    sides = (before, now)
    has_steps = all(len(side.steps) for side in sides)
    steps = [side.work_steps if has_steps else _typical_steps(side) for side in sides]
    work = unequal_work(steps[0], steps[1], effect, paired=paired)
    if work is None:
        return None
    tokens = [float(pd.Series([one[TOKENS].mean() for one in by_launch.values()]).mean()) for by_launch in steps]
    other = OtherWork(tokens[0], tokens[1], work)
    if metric.key == STEP_TIME.key:
        return other
    if metric.unit.startswith("tokens/"):
        power = work.exponent - 1
    elif metric.unit in ("s", "J"):
        power = 1.0
        work = replace(work, exponent=1.0, fitted=False)
    else:
        return replace(other, found=None)
    values = [_at_equal_tokens(side, metric.key, power) for side in sides]
    adjusted = compare(values[0], values[1], better, effect, paired=paired)
    return replace(other, found=replace(work, adjusted=adjusted) if adjusted else None)


def _typical_steps(side: Side) -> dict[int, pd.DataFrame]:
    """Time and tokens of each launch's typical step, of a baseline that has no steps."""
    columns = [STEP_TIME.key, TOKENS]
    if not set(columns) <= set(side.launch_values):
        return {}
    known = side.launch_values[columns].dropna()
    return {int(str(number)): known.loc[[number]].reset_index(drop=True) for number in known.index}


def _at_equal_tokens(side: Side, key: str, power: float) -> dict[int, float]:
    tokens = side.by_round(TOKENS)
    return {
        number: value / tokens[number] ** power
        for number, value in side.by_round(key).items()
        if tokens.get(number, 0.0) > 0
    }
