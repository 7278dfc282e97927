"""How precise a run's headline intervals are so far: all that `--rounds auto` looks at."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from placebench.compare.metrics import STEP_TIME, TOKENS, Metric
from placebench.compare.pairing import pair
from placebench.compare.read.run import Run
from placebench.compare.read.run_reading import load_run
from placebench.compare.side import Side
from placebench.compare.statistics.estimates import estimate, middle
from placebench.spec.bound import RunPlacement
from placebench.spec.placement import Scaling

COUNTED = "perf/total_num_tokens"


def headline_width(path: Path, rounds: int) -> float:
    """How far the ends of the widest headline interval lie apart, high / low - 1; infinite where one has no interval.

    The headlines are step time and tokens/s of each placement over those of the first, or of the only one by itself,
    with the intervals that the report would give after so many rounds.

    Args:
        path: the run's folder.
        rounds: how many of its rounds to look at, from the first on.

    Raises:
        UsageError: the folder is not a run's, or a file in it is damaged.
    """
    run = load_run(path, with_samples=False)
    sides = [_side(run, placement, rounds) for placement in run.placements]
    metrics = (STEP_TIME, TOKENS) if all(TOKENS.key in side.steps for side in sides) else (STEP_TIME,)
    return max((high / low - 1 if low > 0 else math.inf for low, high in _intervals(sides, metrics)), default=math.inf)


def _side(run: Run, placement: RunPlacement, rounds: int) -> Side:
    """The headline numbers of a placement in some rounds: step time and, where the job counts tokens, tokens/s."""
    steps, values = [], {}
    for launch in run.done(placement.name):
        if launch.round <= rounds:
            seconds = launch.step_seconds[launch.step_seconds.index > launch.last_warmup_step]
            found = pd.DataFrame({STEP_TIME.key: seconds})
            if COUNTED in launch.steps:
                tokens = launch.steps[COUNTED].reindex(seconds.index)
                found = found.assign(**{"tokens": tokens, TOKENS.key: tokens / seconds})
            values[launch.round] = found.apply(middle)
            steps.append(found.rename_axis("step").reset_index().assign(round=launch.round))
    return Side(
        name=placement.name,
        launch_values=pd.DataFrame.from_dict(values, orient="index"),
        steps=pd.concat(steps, ignore_index=True) if steps else pd.DataFrame(),
        home=run.folder.path,
        grows=placement.scaling == Scaling.WEAK,
    )


def _intervals(sides: Sequence[Side], metrics: Sequence[Metric]) -> Iterator[tuple[float, float]]:
    first, *others = sides
    if not others:
        for metric in metrics:
            alone = estimate(list(first.by_round(metric.key).values()))
            yield _ends(alone.low, alone.high)
    for other in others:
        pairing = pair(first, other)
        for metric in metrics:
            ratio = pairing.ratio(metric)
            yield (0.0, math.inf) if ratio is None else _ends(ratio.low, ratio.high)


def _ends(low: float, high: float) -> tuple[float, float]:
    return (0.0, math.inf) if math.isnan(low) else (low, high)
