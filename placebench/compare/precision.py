"""How precise a run's headline intervals are so far: all that `--rounds auto` looks at."""

import math
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from placebench.compare.run import Run, load_run
from placebench.compare.statistics import Better, LaunchValue, compare, estimate

TOKENS = "perf/total_num_tokens"


def headline_width(path: Path, rounds: int) -> float:
    """How far the ends of the widest headline interval lie apart, high / low - 1; infinite where one has no interval.

    The headlines are step time and tokens/s of each placement over those of the first, or of the only one by itself.

    Args:
        path: the run's folder.
        rounds: how many of its rounds to look at, from the first on.

    Raises:
        UsageError: the folder is not a run's, or a file in it is damaged.
    """
    run = load_run(path)
    numbers = [_headlines(run, placement.name, rounds) for placement in run.placements]
    return max((high / low - 1 if low > 0 else math.inf for low, high in _intervals(numbers)), default=math.inf)


def _headlines(run: Run, placement: str, rounds: int) -> tuple[dict[int, LaunchValue], ...]:
    """Step times of the finished launches by round, and tokens/s where the job counts tokens."""
    times: dict[int, LaunchValue] = {}
    rates: dict[int, LaunchValue] = {}
    for launch in run.done(placement):
        if launch.round <= rounds:
            seconds = launch.step_seconds[launch.step_seconds.index > launch.last_warmup_step]
            times[launch.round] = seconds
            if TOKENS in launch.steps:
                rates[launch.round] = launch.steps[TOKENS].reindex(seconds.index) / seconds
    return (times, rates) if rates else (times,)


def _intervals(numbers: list[tuple[dict[int, LaunchValue], ...]]) -> Iterator[tuple[float, float]]:
    first, *others = numbers
    if not others:
        for values in first:
            found = estimate([value.median() if isinstance(value, pd.Series) else value for value in values.values()])
            yield _ends(found.low, found.high)
    for other in others:
        for before, now in zip(first, other, strict=False):
            ratio = compare(before, now, Better.NEITHER)
            yield (0.0, math.inf) if ratio is None else _ends(ratio.low, ratio.high)


def _ends(low: float, high: float) -> tuple[float, float]:
    return (0.0, math.inf) if math.isnan(low) else (low, high)
