"""How precise a run's headline intervals are so far: all that `--rounds auto` looks at."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from placebench.compare.measure.metrics import STEP_TIME, TOKENS, Metric
from placebench.compare.read.run import Run
from placebench.compare.read.run_reading import load_run
from placebench.compare.statistics.estimates import estimate, middle
from placebench.compare.statistics.pairing import pair
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
    run = load_run(path)
    sides = [_Side(placement, _steps(run, placement, rounds)) for placement in run.placements]
    metrics = (STEP_TIME, TOKENS) if all(side.counts_tokens for side in sides) else (STEP_TIME,)
    return max((high / low - 1 if low > 0 else math.inf for low, high in _intervals(sides, metrics)), default=math.inf)


@dataclass(frozen=True)
class _Side:
    """The headline numbers of a placement.

    Attributes:
        placement: the placement.
        steps: columns `step_time`, `tokens` and `tokens_per_s`, the latter two where the job counts tokens, of the
            measured steps of each finished launch, by round.
    """

    placement: RunPlacement
    steps: Mapping[int, pd.DataFrame]

    @property
    def counts_tokens(self) -> bool:
        return any("tokens" in steps for steps in self.steps.values())

    @property
    def work_steps(self) -> Mapping[int, pd.DataFrame]:
        return {} if self.placement.scaling == Scaling.WEAK else self.steps

    def by_round(self, key: str) -> dict[int, float]:
        return {number: middle(steps) for number, steps in self.by_step(key).items()}

    def by_step(self, key: str) -> "dict[int, pd.Series[float]]":
        return {number: steps[key] for number, steps in self.steps.items() if key in steps}


def _steps(run: Run, placement: RunPlacement, rounds: int) -> dict[int, pd.DataFrame]:
    found = {}
    for launch in run.done(placement.name):
        if launch.round <= rounds:
            seconds = launch.step_seconds[launch.step_seconds.index > launch.last_warmup_step]
            found[launch.round] = pd.DataFrame({STEP_TIME.key: seconds})
            if COUNTED in launch.steps:
                tokens = launch.steps[COUNTED].reindex(seconds.index)
                found[launch.round] = found[launch.round].assign(**{"tokens": tokens, TOKENS.key: tokens / seconds})
    return found


def _intervals(sides: Sequence[_Side], metrics: Sequence[Metric]) -> Iterator[tuple[float, float]]:
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
