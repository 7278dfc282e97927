"""The verdict in words and the reason for it, both computed from the measurements.

The reason divides the difference of the step times along the critical paths (`breakdown`): phases that take longer or
less long, work that is hidden beside the path, time between phases. Each is named only where it is decided, that is
where the rounds agree on its sign, and large enough to matter; what is not named is told as the rest.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from placebench.compare.breakdown import PartChange, PathPart, StepChange, step_change
from placebench.compare.comparison import Comparison, PlacementResult, launches_compared
from placebench.compare.measure.critical_path import BESIDE
from placebench.compare.measure.metrics import STEP_TIME
from placebench.compare.measure.steps import NO_PHASE, OWN_POOL
from placebench.compare.read.run import Run
from placebench.compare.statistics.estimates import Estimate, Ratio, Verdict
from placebench.spec.text import in_seconds, interval, listing, plural, quantity, ratio, seconds_interval, threshold

# Shares of the step from which a cause, and a device's waiting, are worth a word.
NOTABLE = 0.01
NOTABLE_WAIT = 0.05
MOST_NAMED = 3
# Difference of logarithms from which a ratio is noticed not to be that of the two values beside it.
RATIO_APART = 0.02

Side: TypeAlias = tuple[Run, PlacementResult]

NOTHING = "no single cause of a difference is decided"


def headline(comparison: Comparison, other: PlacementResult) -> str:
    """The verdict on the step time in one sentence."""
    first = comparison.first
    without = [result.name for result in (first, other) if not result.launches]
    if without:
        verb = "has" if len(without) == 1 else "have"
        return f"{other.name} against {first.name}: nothing to compare, {listing(without)} {verb} no finished launch."
    found = other.ratios.get(STEP_TIME.key)
    if found is None:
        return f"{other.name} against {first.name}: nothing to compare, the step times are missing."
    lead = verdict_words(found.verdict, other.name, first.name, comparison.min_effect)
    before, now = (side.value(STEP_TIME.key) for side in launches_compared(first, other)[:2])
    factor = ratio(found.value, found.low, found.high)
    times = f"{in_seconds(now)} against {in_seconds(before)}"
    return f"{lead}: a step takes {factor} times as long, {times} ({basis(found, (before, now))})."


def verdict_words(verdict: Verdict, other: str, first: str, min_effect: float) -> str:
    """What a verdict on a time or a throughput says of two sides, by their names; `min_effect` is a fraction."""
    return {
        Verdict.SLOWER: f"{other} is slower than {first}",
        Verdict.FASTER: f"{other} is faster than {first}",
        Verdict.SAME: f"{other} and {first} are the same within {threshold(min_effect)}",
    }.get(verdict, f"Undecided whether {other} or {first} is faster")


def alone(result: PlacementResult) -> str:
    """The step time of a placement that is compared with nothing, in one sentence."""
    step = result.estimate(STEP_TIME.key)
    if not result.launches:
        return f"{result.name} has no finished launch."
    if not step.n:
        return f"{result.name}: no step time is known: no finished launch has spans of its measured steps."
    basis = f"95 % interval {seconds_interval(step.low, step.high)}, " if step.n > 1 else ""
    return f"{result.name}: a step takes {in_seconds(step.value)} ({basis}{plural(step.n, 'launch', 'launches')})."


def reasons(comparison: Comparison, other: PlacementResult) -> tuple[str, ...]:
    """Why the placement's step takes longer or less long than the first's: one or two sentences, none without data."""
    return why((comparison.run, comparison.first), (comparison.run, other))


def why(first: Side, other: Side, *, paired: bool = True) -> tuple[str, ...]:
    """The same of placements that may be of different runs.

    Args:
        first: the first placement and its run.
        other: the other and its run.
        paired: whether launches of the same round belong together, as in one run.
    """
    found = other[1].ratios.get(STEP_TIME.key)
    if found is None:
        return ()
    before, now, _ = launches_compared(first[1], other[1], interleaved=paired)
    sentences = [_weigh(found.verdict, before, now, paired=paired)]
    sides = ((first[0], before), (other[0], now))
    if waits := waiting(*max(sides, key=lambda side: _longest_idle_share(side[1]))):
        sentences.append(waits)
    return tuple(sentences)


def waiting(run: Run, result: PlacementResult) -> str | None:
    """Which pool's devices wait longest, and for what; None when none waits a notable part of the step."""
    if _longest_idle_share(result) < NOTABLE_WAIT:
        return None
    step = result.value(STEP_TIME.key)
    pool = max(result.placement.pools, key=lambda name: result.pool_idle(name))
    idle = result.pool_idle(pool)
    causes = {cause: result.value(f"wait/{pool}/{cause}") for cause in result.keys(f"wait/{pool}/")}
    longest = _most([(cause, seconds) for cause, seconds in _by_size(causes) if seconds >= NOTABLE * step])
    parts = [f"{in_seconds(seconds)} {_cause(cause)}" for cause, seconds in longest]
    rest = idle - sum(seconds for _, seconds in longest)
    if _is_notable(rest, result):
        parts.append(f"{in_seconds(rest)} in other waits")
    share = quantity(idle / step, "1")
    waits = f"{_who(run, result, pool)} {in_seconds(idle)} of the {in_seconds(step)} step ({share})"
    return f"In {result.name}, {waits}: {listing(parts)}."


def _who(run: Run, result: PlacementResult, pool: str) -> str:
    devices = result.placement.pools[pool]
    if len(devices) == 1:
        return f"{run.labels[devices[0]]} ({pool}) waits"
    return f"the {len(devices)} devices of {pool} wait, on average,"


@dataclass(frozen=True)
class _Clause:
    """One cause and the seconds by which it makes the other placement's step longer; below 0 shorter."""

    text: str
    seconds: float


def _weigh(verdict: Verdict, first: PlacementResult, other: PlacementResult, *, paired: bool) -> str:
    """What the placement gains and pays on its critical path, in the order that leads up to the verdict."""
    change = step_change(first, other, paired=paired)
    if change is None:
        return "Why is not known: there are no spans of the measured steps."
    clauses = [*_hidden_clauses(change, first, other), *_phase_clauses(change, first, other)]
    clauses += _gap_clauses(change, first)
    gains, costs = ([one.text for one in clauses if (one.seconds < 0) is gain] for gain in (True, False))
    total = _sum(change, clauses, first)
    if verdict is Verdict.UNDECIDED:
        measured = "; ".join([*gains, *costs]) or NOTHING
        return f"The reason is as undecided as the step time; measured: {measured}{total}."
    if verdict is Verdict.FASTER:
        sides, joint = (costs, gains), ", but "
    else:
        sides, joint = (gains, costs), ", but " if verdict is Verdict.SLOWER else ", which is made up for: "
    told = joint.join("; ".join(side) for side in sides if side)
    if not told:
        return f"{NOTHING.capitalize()}."
    if told.startswith(("on ", "in ", "done in ")):  # others begin with a placement's name
        told = told[0].upper() + told[1:]
    return f"{told}{total}."


def _sum(change: StepChange, clauses: Sequence[_Clause], first: PlacementResult) -> str:
    """How the causes add up to the difference of the step times, where it is worth a word."""
    rest = change.difference - sum(clause.seconds for clause in clauses)
    if not clauses:
        return ""
    more = f"; the rest {_longer(rest)}" if _is_notable(abs(rest), first) else ""
    is_summed = _is_notable(abs(change.difference), first) and (more or len(clauses) > 1)
    return f"{more}: {_longer(change.difference)} in all" if is_summed else more


def _longer(seconds: float) -> str:
    return f"{in_seconds(abs(seconds))} {'longer' if seconds > 0 else 'shorter'}"


def _hidden_clauses(change: StepChange, first: PlacementResult, other: PlacementResult) -> Iterator[_Clause]:
    """What the placement that hides more work beside its critical path hides."""
    hidden = [sum(part.off_path for part in side) for side in _phases(change)]
    more = hidden[1] - hidden[0]
    if not _is_notable(abs(more), first) or not _has_a_sign(change.hidden):
        return
    most, least = (other, first) if more > 0 else (first, other)
    beside = [(pair, seconds) for pair, seconds in _by_size(_beside(most)) if _is_notable(seconds, most)]
    text = f"{most.name} hides {in_seconds(max(hidden))} beside its critical path"
    if beside:  # what lies beside a gap is beside no phase
        text += f" ({_name(beside)})"
    if _is_notable(min(hidden), least):
        text += f", {least.name} {in_seconds(min(hidden))}"
    yield _Clause(text, -more)


def _beside(result: PlacementResult) -> dict[str, float]:
    """What is hidden beside what; of two phases that hide each other in turn, the one hidden more is named first."""
    seconds: dict[str, float] = {}
    for pair, hidden in _by_size({pair: result.value(BESIDE + pair) for pair in result.keys(BESIDE)}):
        phase, on_path = pair.split("+")
        turned = f"{on_path} beside {phase}"
        seconds[turned if turned in seconds else f"{phase} beside {on_path}"] = seconds.get(turned, 0.0) + hidden
    return seconds


def _phases(change: StepChange) -> tuple[list[PathPart], list[PathPart]]:
    return [part.first for part in change.phases], [part.other for part in change.phases]


def _phase_clauses(change: StepChange, first: PlacementResult, other: PlacementResult) -> Iterator[_Clause]:
    """Phases that take decidedly more, and decidedly less, time; those on the same change of devices in one clause."""
    groups: dict[tuple[bool, str], list[PartChange]] = {}
    for part in change.phases:
        if _is_notable(abs(part.longer), first) and _has_a_sign(part.whole_rounds):
            devices = _change_of_devices(part.first.phase, first, other)
            groups.setdefault((part.longer < 0, devices), []).append(part)
    for (shorter, devices), parts in sorted(groups.items(), key=lambda group: group[0][0], reverse=True):
        yield _Clause(
            f"{devices}, {_tell(parts, 'less' if shorter else 'longer', first)}", sum(part.longer for part in parts)
        )


def _tell(parts: Sequence[PartChange], word: str, first: PlacementResult) -> str:
    phases = _by_size({part.first.phase: abs(part.longer) for part in parts})
    if len(phases) == 1:
        ((phase, one),) = phases
        told = f"{phase} takes {in_seconds(one)} {word}"
    else:
        told = f"phases take {in_seconds(sum(seconds for _, seconds in phases))} {word} ({_name(phases)})"
    uneven = sum(part.other.imbalance - part.first.imbalance for part in parts)
    if word == "longer" and _is_notable(uneven, first):
        told += f", {in_seconds(uneven)} of it for the slowest device"
    return told


def _gap_clauses(change: StepChange, first: PlacementResult) -> Iterator[_Clause]:
    """Time between the phases of the path, in which the controller works."""
    more = sum(part.difference for part in change.parts if part.first.is_gap)
    if _is_notable(abs(more), first) and _has_a_sign(change.gaps):
        yield _Clause(f"{in_seconds(abs(more))} {'more' if more > 0 else 'less'} passes between phases", more)


def _has_a_sign(difference: Estimate) -> bool:
    """Whether the rounds agree that a difference is above, or below, 0; so it is said where there is one round."""
    return not (difference.low <= 0 <= difference.high)


def _change_of_devices(phase: str, first: PlacementResult, other: PlacementResult) -> str:
    before, now = (_devices_of(phase, result) for result in (first, other))
    if before is None or now is None:
        return f"done in {(other if before is None else first).name} alone"
    if before and now:
        return f"on {plural(now, 'device')} {'as before' if now == before else f'instead of {before}'}"
    places = [f"on {plural(count, 'device')}" if count else "in the controller" for count in (now, before)]
    return " instead of ".join(dict.fromkeys(places))


def _devices_of(phase: str, result: PlacementResult) -> int | None:
    """How many devices work on a phase; 0 for the controller's own, None for one that the placement has not."""
    if not any((launch.spans["phase"] == phase).any() for launch in result.launches):
        return None
    pool = result.role_pool(phase)
    return len(result.placement.pools[pool]) if pool else 0


def _longest_idle_share(result: PlacementResult) -> float:
    """Share of the step that the devices of the longest waiting pool wait; 0 where no step was measured."""
    if not result.estimate(STEP_TIME.key).n:
        return 0.0
    return max(result.pool_idle(pool) for pool in result.placement.pools) / result.value(STEP_TIME.key)


def _cause(cause: str) -> str:
    known = {NO_PHASE: "while no phase runs", OWN_POOL: "for other devices of the pool"}
    return known.get(cause, f"for {cause}")


def _is_notable(seconds: float, result: PlacementResult) -> bool:
    return seconds >= NOTABLE * result.value(STEP_TIME.key)


def _by_size(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda entry: -entry[1])


def _most(found: Sequence[tuple[str, float]]) -> Sequence[tuple[str, float]]:
    """The first of a list: all but those too many to name; one more is named, as that takes no more room."""
    return found if len(found) <= MOST_NAMED + 1 else found[:MOST_NAMED]


def _name(found: Sequence[tuple[str, float]]) -> str:
    """Names with their seconds, and how many more there are."""
    named = [f"{name} {in_seconds(seconds)}" for name, seconds in _most(found)]
    if more := len(found) - len(named):
        named.append(f"{more} more")
    return listing(named)


def basis(found: Ratio, values: tuple[float, float], *, interleaved: bool = True) -> str:
    """On what a ratio rests: its interval and the launches.

    Args:
        found: the ratio.
        values: those of the first and of the other side that stand beside it.
        interleaved: whether pairs were to be expected, so that it is told where there are none.
    """
    before, now = found.launches
    launches = f"{plural(now, 'launch', 'launches')} each" if now == before else f"{now} and {before} launches"
    more = "" if found.needed is None else f"; about {found.needed} each would decide"
    if found.corrected_for is not None:
        more = f"; undecided when corrected for {found.corrected_for} comparisons"
    if abs(math.log(values[1] / values[0] / found.value)) > RATIO_APART:
        more += "; the ratio is of steps paired one by one"
    if math.isnan(found.low):
        return f"{launches if now == before else '1 launch of one of them'}, so no interval{more}"
    ends = f"95 % interval {interval(found.low, found.high)}"
    if found.pairs and found.pairs < max(before, now):
        return f"{ends}, {found.pairs} rounds with both{more}"
    if not found.pairs and interleaved:
        return f"Welch's {ends}, {launches}, not paired{more}"
    return f"{ends}, {launches}{more}"
