"""The verdict in one sentence, with what it rests on."""

import math

from placebench.compare.comparability import has_other_work
from placebench.compare.comparison import Comparison
from placebench.compare.metrics import LOG_CLOCK, STEP_TIME, TOKENS_PER_DEVICE, Metric
from placebench.compare.pairing import launches_compared
from placebench.compare.side import Side
from placebench.compare.statistics.estimates import Ratio
from placebench.compare.statistics.verdicts import Verdict
from placebench.spec.text import change, listing, plural, scale_of, threshold

# Difference of logarithms from which a ratio is noticed not to be that of the two values beside it.
RATIO_APART = 0.02


def headline(comparison: Comparison, other: Side) -> str:
    """The verdict in one sentence: on the step time, or on tokens/s/device where the work of a step is another."""
    first = comparison.first
    metric = _deciding(first, other)
    found = other.ratios.get(metric.key)
    if found is None:
        return f"{other.name} against {first.name}: {_why_none(comparison, other)}"
    lead = _verdict_words(found.verdict, other.name, first.name, comparison.min_effect)
    estimates = [side.estimate(metric.key) for side in launches_compared(first, other)[:2]]
    values, told = [one.value for one in estimates], scale_of(metric.unit, *estimates, ratio=found)
    before, now = map(told.text, values)
    more, _ = change(found.value, found.low, found.high)
    what = {
        STEP_TIME: f"a step takes {more} time, ",
        LOG_CLOCK: f"a step takes {more} time by the logs' clock, ",
        TOKENS_PER_DEVICE: f"{more} tokens/s/device, ",
    }[metric]
    # Placements of one run are alike in all that others are doubted for.
    is_forced = comparison.doubts and not first.shares_rounds(other)
    forced = "Compared by force, so this means little: " if is_forced else ""
    grounds = _basis(found, (values[0], values[1]), interleaved=first.shares_rounds(other))
    return f"{forced}{lead}: {what}{now} instead of {before} ({grounds})."


def alone(comparison: Comparison) -> str:
    """The step time of a side that is compared with nothing, in one sentence."""
    side = comparison.first
    step = side.estimate(STEP_TIME.key)
    if not side.launch_count:
        return f"{side.name} has no finished launch."
    if not step.n:
        if comparison.run is None:
            return f"{side.name} gives no step time."
        return f"{side.name}: the step time is not known, as no finished launch recorded its measured steps."
    told = scale_of("s", step)
    ends = f"95 % interval {told.ends(step.low, step.high)}, " if step.n > 1 else ""
    return f"{side.name}: a step takes {told.text(step.value)} ({ends}{plural(step.n, 'launch', 'launches')})."


def _deciding(first: Side, other: Side) -> Metric:
    """The number that the verdict is on; see `headline`."""
    if has_other_work(first, other) and other.ratios.get(TOKENS_PER_DEVICE.key):
        return TOKENS_PER_DEVICE
    by_clock = any(side.background.step_is_sum for side in (first, other))
    return LOG_CLOCK if by_clock and other.ratios.get(LOG_CLOCK.key) else STEP_TIME


def _why_none(comparison: Comparison, other: Side) -> str:
    """Why there is no verdict on a side."""
    sides = (comparison.first, other)
    if comparison.run is None:
        silent = [side.name for side in sides if not side.estimate(STEP_TIME.key).n] or ["one of them"]
        verb = "gives" if len(silent) == 1 else "give"
        return f"no verdict, as {listing(silent)} {verb} no step time."
    if without := [side.name for side in sides if not side.launch_count]:
        verb = "has" if len(without) == 1 else "have"
        return f"nothing to compare, as {listing(without)} {verb} no finished launch."
    return "nothing to compare, as the step times are missing."


def _verdict_words(verdict: Verdict, other: str, first: str, min_effect: float) -> str:
    """What a verdict on a time or a throughput says of two sides, by their names; `min_effect` is a fraction."""
    return {
        Verdict.SLOWER: f"{other} is slower than {first}",
        Verdict.FASTER: f"{other} is faster than {first}",
        Verdict.SAME: f"{other} and {first} are the same within {threshold(min_effect)}",
    }.get(verdict, f"Undecided whether {other} or {first} is faster")


def _basis(found: Ratio, values: tuple[float, float], *, interleaved: bool = True) -> str:
    """On what a ratio rests: its interval and the launches.

    Args:
        found: the ratio.
        values: those of the first and of the other side that stand beside it.
        interleaved: whether pairs were to be expected, so that it is said where there are none.
    """
    before, now = found.launches
    launches = f"{plural(now, 'launch', 'launches')} each" if now == before else f"{now} and {before} launches"
    more = "" if found.needed is None else f"; about {found.needed} each would decide"
    if found.corrected_for is not None:
        more = f"; undecided when corrected for {found.corrected_for} comparisons"
    if abs(math.log(values[1] / values[0] / found.value)) > RATIO_APART:
        more += "; measured on paired steps, not on these two medians"
    if math.isnan(found.low):
        return f"{launches if now == before else '1 launch of one of them'}, so no interval{more}"
    ends = f"95 % interval {change(found.value, found.low, found.high)[1]}"
    if found.pairs and found.pairs < max(before, now):
        return f"{ends}, {found.pairs} rounds with both{more}"
    if not found.pairs and interleaved:
        return f"Welch's {ends}, {launches}, not paired{more}"
    return f"{ends}, {launches}{more}"
