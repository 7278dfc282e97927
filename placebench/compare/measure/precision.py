"""What a run's launches say so far: how precise its headline intervals are, and how its steps compare."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from placebench.compare.metrics import STEP_TIME, TOKENS, Metric
from placebench.compare.pairing import pair
from placebench.compare.read.launches import run_times
from placebench.compare.read.run import Run
from placebench.compare.read.run_reading import load_run
from placebench.compare.side import Side
from placebench.compare.statistics.allocation import best_steps, spread_of
from placebench.compare.statistics.estimates import Floats, Ratio, compare, estimate, middle
from placebench.spec.auto_rounds import PILOT_ROUNDS, AutoRounds, StepChoice
from placebench.spec.bound import RunPlacement
from placebench.spec.phases import STEP
from placebench.spec.placement import Scaling
from placebench.spec.text import factor, quantity

COUNTED = "perf/total_num_tokens"
# Rounds after which a ratio is told as it was then.
_MOST_SHOWN = 100


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


def choose_steps(path: Path) -> StepChoice | None:
    """How many steps the launches of a run should have, by what those of its first rounds cost and how they vary.

    Args:
        path: the run's folder.

    Returns:
        None where fewer than two of the rounds have been finished.

    Raises:
        UsageError: the folder is not a run's, or a file in it is damaged.
    """
    run = load_run(path, with_samples=False)
    times = run_times(run)
    sides = [_side(run, placement, PILOT_ROUNDS) for placement in run.placements]
    spread = spread_of(list(_logs(sides)))
    launches, steps = sum(side.launch_count for side in sides), sum(len(side.steps) for side in sides)
    if times is None or spread is None or not times.measured_s:
        return None
    precision = run.record.auto.precision if run.record.auto else AutoRounds.precision
    start_s = max(times.start_s + times.warmup_s + times.end_s, 0.0) / launches
    step_s = times.measured_s / steps
    measured = best_steps(spread, start_s, step_s, precision)
    if run.record.job:  # its command may have no more
        measured = min(measured, run.record.steps - run.record.warmup_steps - run.record.steps_before)
    return StepChoice(measured, start_s, step_s, spread.between, spread.within)


def _logs(sides: Sequence[Side]) -> Iterator[list[Floats]]:
    """Of each side the logs of its launches' steps over those of the first, pair by pair; of the only one as it is."""
    first, *others = (side.steps_by_round for side in sides)
    for other in others:
        yield [_log(other[number] / first[number]) for number in sorted(first.keys() & other.keys())]
    if not others:
        yield [_log(steps) for steps in first.values()]


def _log(steps: pd.DataFrame) -> Floats:
    seconds = steps[STEP_TIME.key].to_numpy(dtype=np.float64)
    return np.asarray(np.log(seconds[np.isfinite(seconds) & (seconds > 0)]))


def compared_so_far(path: Path, placement: str) -> str | None:
    """In words, how long a step of a placement's newest launch took, and how steps compare so far.

    The ratios are those of the launches' medians in rounds that both have, without what the report does besides:
    those of this placement, and where it is the first, of all others to it.

    Args:
        path: the run's folder.
        placement: the placement that has just finished a launch.

    Returns:
        None where its launches have no times of steps.

    Raises:
        UsageError: the folder is not a run's, or a file in it is damaged.
    """
    run = load_run(path)
    first, *others = (bound.name for bound in run.placements)
    times = {name: _medians(run, name) for name in (first, *others)}
    if not times[placement]:
        return None
    compared = others if placement == first else [placement]
    ratios = {name: compare(times[first], times[name], STEP_TIME.better) for name in compared if times[name]}
    texts = [f"{name} against {first} {factor(one.value, one.low, one.high)}" for name, one in ratios.items() if one]
    step = f"step {quantity(list(times[placement].values())[-1], STEP_TIME.unit)}"
    return f"{step}; so far {', '.join(texts)}" if texts else step


def narrowing(
    first: Mapping[int, float], other: Mapping[int, float], min_effect: float
) -> tuple[tuple[int, Ratio], ...]:
    """How the ratio of two placements' step times has become known, round by round, as `compared_so_far` has it.

    Args:
        first: the step time of each launch of the first placement, by round, seconds.
        other: the same of the other placement.
        min_effect: smallest effect of interest, as a fraction.

    Returns:
        After each round that both have, or after evenly spread ones where they are many, the ratio of all until then.
    """
    common = sorted(set(first) & set(other))
    shown = common[:: -(-len(common) // _MOST_SHOWN) or 1]
    found = []
    for number in dict.fromkeys([*shown, *common[-1:]]):
        before, now = ({known: value for known, value in side.items() if known <= number} for side in (first, other))
        if one := compare(before, now, STEP_TIME.better, min_effect):
            found.append((number, one))
    return tuple(found)


def _medians(run: Run, placement: str) -> dict[int, float]:
    """The median step of each launch that is done, by round, seconds, as its job has printed it."""
    column = f"timing_s/{STEP}"
    steps = {launch.round: launch.steps for launch in run.done(placement)}
    measured = {
        number: frame[column].iloc[run.record.warmup_steps :] for number, frame in steps.items() if column in frame
    }
    return {number: float(seconds.median()) for number, seconds in measured.items() if len(seconds)}


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
