"""What a reader must know of sides that are compared: launches that are no pairs, and steps of unequal work."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator

from placebench.compare.comparability import fact_text, has_other_lengths, has_other_work, has_unknown_work
from placebench.compare.comparison import Comparison
from placebench.compare.explain.gains import OverlapGain
from placebench.compare.explain.work_figures import both_figures, more_tokens, work_figures
from placebench.compare.measure.placements import RunSide
from placebench.compare.metrics import STEP_TIME, TOKENS, TOKENS_PER_DEVICE
from placebench.compare.side import Side
from placebench.compare.statistics.estimates import Ratio
from placebench.spec.text import listing, number, plural

DRIFT = "if the machine changed in between, that shows as a difference"
UNKNOWN_DRIFT = "if they did not and the machine changed in between, that shows as a difference"


def few_launches(comparison: Comparison) -> Iterator[str]:
    """That a side has a single launch, which tells nothing of how launches differ."""
    if not comparison.others or min(side.launch_count for side in comparison.sides) != 1:
        return
    what, advice = "an arm", "give several logs an arm."
    if comparison.run:
        planned = Counter(launch.placement for launch in comparison.run.launches)
        what = "a placement"
        advice = "use --rounds 3 or more." if min(planned.values()) == 1 else "--resume runs what is missing."
    yield f"Only 1 launch of {what}, so no interval and no verdict: {advice}"


def not_interleaved(comparison: Comparison) -> Iterator[str]:
    """That launches of two sides did not take turns, or may not have."""
    first = comparison.first
    apart = [other for other in comparison.others if not first.shares_rounds(other)]
    # Logs do not say when their launches were: whoever has written them may have let them take turns.
    runs = [other.name for other in apart if first.home and other.home]
    if runs:
        yield f"The launches of {listing(runs)} did not take turns with those of {first.name}: {DRIFT}."
    if logs := [other.name for other in apart if other.name not in runs]:
        yield f"It is not known whether launches of {listing(logs)} and {first.name} took turns: {UNKNOWN_DRIFT}."


def pairing(first: Side, other: Side) -> Iterator[str]:
    """What rounds that one of two placements of a run has lost mean for the comparison."""
    step = other.ratios.get(STEP_TIME.key)
    if step is None or not isinstance(first, RunSide) or not isinstance(other, RunSide):
        return
    if first.shares_rounds(other):
        if 0 < step.pairs < max(step.launches):
            yield (
                f"{other.name} against {first.name}: ratios, critical paths and the reason come from the"
                f" {plural(step.pairs, 'round')} that {'has' if step.pairs == 1 else 'have'} both. All other values"
                " come from all launches of each."
            )
        yield from _drift(first, other, step)


def weak_scaling(first: RunSide, other: RunSide) -> Iterator[str]:
    """That replicas with a batch each make steps of unequal work."""
    if first.grows or other.grows:
        yield (
            f"Weak scaling: a step of {other.name} is {number(other.tokens)} tokens, one of {first.name}"
            f" {number(first.tokens)}; compare tokens/s, not the time of a step."
        )


def unequal_work(first: Side, other: Side, advice: str = "") -> Iterator[str]:
    """That the steps of one have more tokens than those of the other."""
    step = other.ratios.get(STEP_TIME.key)
    if other.work and step:
        yield f"{_tokens_of_both(first, other)} {work_figures(step, other.work)}{advice}"


def other_work(first: Side, other: Side) -> Iterator[str]:
    """What to mind where the steps of two sides do not tell whether they are the same work."""
    if has_other_work(first, other):
        texts = [fact_text(side.background.facts["tokens a step"]) for side in (other, first)]
        yield f"Unequal work: {other.name} had {texts[0]} tokens a step, {first.name} {texts[1]}: compare tokens/s."
    elif has_unknown_work(first, other) and has_other_lengths(first, other):
        texts = [fact_text(side.background.facts["mean response length"]) for side in (other, first)]
        yield (
            f"Unequal work: responses of {other.name} have {texts[0]} tokens on average, of {first.name} {texts[1]}:"
            " step times do not tell which is faster."
        )
    elif has_unknown_work(first, other):
        unknown = [side for side in (first, other) if "tokens a step" not in side.background.facts]
        silent = [side.name for side in unknown if not side.estimate(TOKENS.key).n]
        counts = f"{listing(silent)} {'does' if len(silent) == 1 else 'do'} not count tokens"
        if not silent:
            counts = f"of {listing(side.name for side in unknown)} the tokens of single steps are not known"
        yield f"A step may be more work for one than for the other: {counts}."


def doubtful_gains(gains: Iterable[OverlapGain], advice: str = "") -> Iterator[str]:
    """What lost rounds and unequal work mean for the factors of overlap; no pair has the first placement in it.

    Args:
        gains: the factors.
        advice: how to make work equal, behind every line about work that is not.
    """
    for gain in gains:
        # Every second round is reversed: where two of three placements keep their order, all three do.
        whose = "all three" if gain.split and gain.rounds else "both"
        yield from _drift(gain.base, gain.side, gain.overlap, whose)
        if gain.work:
            yield (
                f"{_tokens_of_both(gain.base, gain.side)} ({more_tokens(gain.work)}): the overlap's factor is"
                f" {both_figures(gain.overlap, gain.work)}.{advice}"
            )


def unequal_pools(first: RunSide, other: RunSide) -> Iterator[str]:
    """That two placements of a run use different numbers of devices."""
    before, now = (side.placement.devices for side in (first, other))
    if len(now) != len(before):
        advice = ": compare tokens/s/device, not the time of a step" if _both_count_tokens(first, other) else ""
        yield f"{other.name} uses {plural(len(now), 'device')} and {first.name} {len(before)}{advice}."


def unequal_devices(first: Side, other: Side) -> Iterator[str]:
    """That two sides of any runs and logs ran on different numbers of devices, or that these are not known."""
    counts = [side.background.facts.get("devices") for side in (other, first)]
    if None in counts:
        if other.work:
            yield "On how many devices each ran is not known: --devices A,B compares tokens/s/device."
    elif counts[0] != counts[1]:
        what = "device" if str(counts[0]) == "1" else "devices"
        advice = ": compare tokens/s/device" if _both_count_tokens(first, other) else ""
        yield f"{other.name} has {counts[0]} {what} and {first.name} {counts[1]}{advice}."


def _drift(first: RunSide, other: RunSide, step: Ratio, whose: str = "both") -> Iterator[str]:
    """That lost rounds let a drift of the machine into the ratio of two step times.

    Args:
        first: one placement.
        other: another of its run.
        step: the ratio, over the rounds that both have.
        whose: launches, in words, that each of these rounds has.
    """
    rounds = [number for number in first.measured_rounds if number in other.measured_rounds]
    if not step.pairs:
        if math.isnan(step.low):
            return
        common = f"only {plural(len(rounds), 'round')}" if rounds else "no round"
        yield (
            f"{other.name} and {first.name} have {common} in common, so their launches cannot be compared in pairs:"
            f" {DRIFT}. --resume runs what is missing."
        )
        return
    order = dict(enumerate(first.run.record.order, start=1))
    names = {side.placement.name: side.name for side in (first, other)}
    went_first = {min(names, key=order[number].index) for number in rounds if number in order}
    if len(rounds) > 1 and len(went_first) == 1:
        earlier = names.pop(went_first.pop())
        (later,) = names.values()
        yield (
            f"In every round that has {whose}, {earlier} ran before {later}: {DRIFT}. --resume runs what is missing."
        )


def _tokens_of_both(first: Side, other: Side) -> str:
    return f"Unequal work: {other.name} had {number(other.tokens)} tokens a step, {first.name} {number(first.tokens)}"


def _both_count_tokens(first: Side, other: Side) -> bool:
    """Whether a throughput can be compared where the time of a step says little."""
    return all(side.estimate(TOKENS_PER_DEVICE.key).n for side in (first, other))
