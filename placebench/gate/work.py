"""Unequal work: a number as measured, and at equal tokens.

A run may have had other tokens a step than its baseline: other code gives other responses. A number that is worse only
for that is no regression, and one that is worse in spite of it must not pass in silence. So it is as in a comparison of
placements: a verdict needs both to agree, the number as measured and with the difference in tokens taken out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pandas as pd

from placebench.compare.measure.metrics import STEP_TIME, Metric
from placebench.compare.statistics.estimates import Better, compare
from placebench.compare.statistics.work import UnequalWork, unequal_work
from placebench.gate.baseline import MeasuredPlacement

TOKENS = "tokens"


@dataclass(frozen=True)
class OtherWork:
    """The work of a placement in the run, where it is not the same as in the baseline.

    Attributes:
        before: tokens of a step in the baseline, mean of its launches.
        now: the same in the run.
        found: what tokens do to a step's time, and as `adjusted` the number's ratio at equal tokens; None for a number
            that is judged as measured alone.
    """

    before: float
    now: float
    found: UnequalWork | None


def other_work(
    metric: Metric, better: Better, before: MeasuredPlacement, now: MeasuredPlacement, effect: float, *, paired: bool
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
    sides = [_steps(side, use_steps=before.has_steps and now.has_steps) for side in (before, now)]
    work = unequal_work(sides[0], sides[1], effect, paired=paired)
    if work is None:
        return None
    tokens = [float(pd.Series([steps[TOKENS].mean() for steps in side.values()]).mean()) for side in sides]
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
    values = [_at_equal_tokens(side, metric.key, power) for side in (before, now)]
    adjusted = compare(values[0], values[1], better, effect, paired=paired)
    return replace(other, found=replace(work, adjusted=adjusted) if adjusted else None)


def _steps(side: MeasuredPlacement, *, use_steps: bool) -> Mapping[int, pd.DataFrame]:
    """Time and tokens of the steps of each launch; of a baseline that has no steps, the launch's typical step."""
    if use_steps:
        rows = {
            number: {step: (time, tokens) for step, time, tokens in steps}
            for number, steps in enumerate(side.steps, start=1)
        }
    else:
        times, tokens = side.values(STEP_TIME.key), side.values(TOKENS)
        rows = {number: {0: (time, tokens[number])} for number, time in times.items() if number in tokens}
    columns = [STEP_TIME.key, TOKENS]
    return {
        number: pd.DataFrame.from_dict(steps, orient="index", columns=columns, dtype=float)
        for number, steps in rows.items()
    }


def _at_equal_tokens(side: MeasuredPlacement, key: str, power: float) -> dict[int, float]:
    tokens = side.values(TOKENS)
    return {
        number: value / tokens[number] ** power
        for number, value in side.values(key).items()
        if tokens.get(number, 0.0) > 0
    }
