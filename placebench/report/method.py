"""What values, ratios and their intervals are, in words."""

from collections.abc import Sequence

from placebench.compare.comparison import Comparison
from placebench.compare.metrics import (
    DROPPED,
    ENERGY,
    ENGINE_TOKENS,
    LAG,
    LOAD,
    MEMORY,
    QUEUE,
    TOKENS_PER_J,
    TRAINER_TOKENS,
)
from placebench.compare.side import Side
from placebench.spec.text import listing

BY_STEP = (
    "the t interval over the log ratios of launches of the same round, each the median over steps paired one by one,"
    " or that of the launches' values where the ratio is launch by launch"
)
# As `by_step` of a placement decides.
BY_VALUE = (
    "launch by launch for hidden, idle and waiting time, load, memory, energy, MFU at its clock, rates and queues of"
    " engines and learners, and what is 0 in a step"
)
# Counters and flows go on from step to step, so that only their sums over all steps are exact: no medians.
MEANS_OF_STEPS = (LOAD, ENERGY, TOKENS_PER_J, TRAINER_TOKENS, ENGINE_TOKENS, QUEUE, LAG, DROPPED)
BY_LAUNCH = (
    "the t interval over the log ratios of launches of the same round, each of medians, as their steps had unequal work"
)
NO_PAIRS = "Welch's t interval over launches, as those of different runs or rounds are no pairs"


def values_of_steps(comparison: Comparison) -> str:
    """What a value says of a launch's steps, and where a ratio is not one value over the other."""
    measured = {metric.key for metric in comparison.metrics}
    value = "median of the measured steps of a launch"
    if means := [metric.label for metric in MEANS_OF_STEPS if metric.key in measured]:
        value += f", of {listing(means)} the mean over them"
    if MEMORY.key in measured:
        value += f", of {MEMORY.label} the highest sample"
    if BY_STEP in _ways(comparison.others):
        return f"{value}; ratio: of its steps paired one by one, not of the medians, but {BY_VALUE}"
    return value


def interval_of_ratios(comparison: Comparison) -> str:
    """How the intervals of ratios to the first side came about, each side named where it is not the same for all."""
    ways = _ways(comparison.others)
    if len(ways) < 2:
        return next(iter(ways), BY_STEP)
    return "; ".join(f"of {listing(names)} {way}" for way, names in ways.items())


def _ways(others: Sequence[Side]) -> dict[str, list[str]]:
    """The ways that the ratios came about, each with the names of the sides compared by it."""
    ways: dict[str, list[str]] = {}
    for other in others:
        found = [ratio.pairs for ratio in other.ratios.values() if ratio]
        if found:
            way = (BY_LAUNCH if other.work else BY_STEP) if max(found) else NO_PAIRS
            ways.setdefault(way, []).append(other.name)
    return ways
