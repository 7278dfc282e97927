"""The reason for a verdict in words, computed from the measurements.

It divides the difference of the step times along the critical paths (`breakdown`): phases that take longer or
less long, work that is hidden beside phases of the path, time between phases without such work. Each is named where it
is large enough to matter, with `PERHAPS` where the rounds do not agree on its sign; what is not named is summed up as
the rest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from placebench.compare.comparison import Comparison
from placebench.compare.explain.breakdown import PartChange, StepChange, path_parts, step_change
from placebench.compare.explain.waiting import by_size, is_notable, longest_idle_share, most_named, parts_scale, waiting
from placebench.compare.measure.placements import RunSide
from placebench.compare.metrics import BESIDE, END, STEP_TIME, phase_metric
from placebench.compare.pairing import launches_compared
from placebench.compare.side import Side
from placebench.compare.statistics.estimates import Estimate
from placebench.compare.statistics.verdicts import Verdict
from placebench.spec.text import AGAINST, UNCERTAIN, Scale, listing, plural
from placebench.telemetry.spans import CONTROLLER

# By which a part may exceed the whole that it makes up.
ROUNDED = 1e-6

NOTHING = "no single cause stands out"
# Before seconds of which the rounds do not tell whether they are more or less than 0.
PERHAPS = "perhaps "


def reasons(comparison: Comparison, other: Side) -> tuple[str, ...]:
    """Why a side's step takes longer or less long than the first's: one or two sentences, none without spans."""
    first = comparison.first
    found = other.ratios.get(STEP_TIME.key)
    if found is None or not isinstance(first, RunSide) or not isinstance(other, RunSide):
        return ()
    before, now, _ = launches_compared(first, other)
    if not any(launch.has_phases for side in (before, now) for launch in side.launches):
        return _by_the_log(before, now)
    waits = waiting(max((before, now), key=longest_idle_share))
    return (_weigh(found.verdict, before, now), *([waits] if waits else []))


def _by_the_log(first: RunSide, other: RunSide) -> tuple[str, ...]:
    """Phases that decidedly take other times where the job's log alone times them; nothing where there is none."""
    changes, told = {}, parts_scale(first, other)
    for phase in other.keys("phase/"):
        key = phase_metric(phase).key
        found, more = other.ratios.get(key), other.value(key) - first.value(key)
        if found and found.verdict in (Verdict.FASTER, Verdict.SLOWER) and is_notable(abs(more), first):
            changes[f"{told.text(abs(more))} {'longer' if more > 0 else 'less'} for {phase}"] = abs(more)
    named = [text for text, _ in most_named(by_size(changes))]
    return (f"By the job's log, {other.name} takes {listing(named)}.",) if named else ()


@dataclass(frozen=True)
class _Clause:
    """One cause and the seconds by which it makes the other placement's step longer; below 0 shorter."""

    text: str
    seconds: float


def _weigh(verdict: Verdict, first: RunSide, other: RunSide) -> str:
    """What the placement gains and pays on its critical path, in the order that leads up to the verdict."""
    change = step_change(first, other)
    if change is None:
        silent = [side.name for side in (first, other) if not path_parts(side)]
        return f"The reason is not known: no spans say what devices of {listing(silent)} did in the measured steps."
    told = parts_scale(first, other)
    clauses = [*_hidden_clauses(change, first, other, told), *_phase_clauses(change, first, other, told)]
    clauses += _gap_clauses(change, first, told)
    total = _sum(change, clauses, first, told)
    if verdict is Verdict.UNDECIDED:
        largest = sorted(clauses, key=lambda one: -abs(one.seconds))
        return f"{UNCERTAIN}{'; '.join(one.text for one in largest) or NOTHING}{total}."
    gains, costs = ([one.text for one in clauses if (one.seconds < 0) is gain] for gain in (True, False))
    if verdict is Verdict.FASTER:
        sides, joint = (costs, gains), AGAINST
    else:
        sides, joint = (gains, costs), AGAINST if verdict is Verdict.SLOWER else ", and in return "
    text = joint.join("; ".join(side) for side in sides if side)
    if not text:
        return f"{NOTHING.capitalize()}."
    if text.startswith(("on ", "in ", "done in ")):  # others begin with a placement's name
        text = text[0].upper() + text[1:]
    return f"{text}{total}."


def _sum(change: StepChange, clauses: Sequence[_Clause], first: RunSide, told: Scale) -> str:
    """How the causes add up to the difference of the step times, where it is worth a word."""
    rest = change.difference - sum(clause.seconds for clause in clauses)
    if not clauses:
        return ""
    more = f"; all else takes {_longer(rest, told)}" if is_notable(abs(rest), first) else ""
    is_summed = is_notable(abs(change.difference), first) and (more or len(clauses) > 1)
    return f"{more}. In all, a step takes {_longer(change.difference, told)}" if is_summed else more


def _longer(seconds: float, told: Scale) -> str:
    return f"{told.text(abs(seconds))} {'longer' if seconds > 0 else 'less'}"


def _hidden_clauses(change: StepChange, first: RunSide, other: RunSide, told: Scale) -> Iterator[_Clause]:
    """What the placement that hides more work beside the phases of its critical path hides."""
    hidden = [sum(_beside(side).values()) for side in (first, other)]
    more = hidden[1] - hidden[0]
    if not is_notable(abs(more), first):
        return
    most, least = (other, first) if more > 0 else (first, other)
    beside = by_size(_beside(most))
    count = sum(is_notable(seconds, most) for _, seconds in beside)
    text = f"{most.name} overlaps {_perhaps(change.hidden)}{told.text(max(hidden))} of work"
    if count:
        text += f" ({_name(beside, told, count)})"
    if is_notable(min(hidden), least):
        text += f", {least.name} {told.text(min(hidden))}"
    yield _Clause(text, -more)


def _beside(side: RunSide) -> dict[str, float]:
    """What is hidden beside what; of two phases that hide each other in turn, the one hidden more is named first."""
    seconds: dict[str, float] = {}
    for pair, hidden in by_size({pair: side.value(BESIDE + pair) for pair in side.keys(BESIDE)}):
        phase, on_path = pair.split("+")
        turned = f"{on_path} beside {phase}"
        seconds[turned if turned in seconds else f"{phase} beside {on_path}"] = seconds.get(turned, 0.0) + hidden
    return seconds


def _phase_clauses(change: StepChange, first: RunSide, other: RunSide, told: Scale) -> Iterator[_Clause]:
    """Phases that take notably more, and notably less, time; those on the same change of devices in one clause."""
    groups: dict[tuple[bool, str], list[PartChange]] = {}
    for part in change.phases:
        if is_notable(abs(part.longer), first):
            devices = _change_of_devices(part.first.phase, first, other)
            groups.setdefault((part.longer < 0, devices), []).append(part)
    for (shorter, devices), parts in sorted(groups.items(), key=lambda group: group[0][0], reverse=True):
        yield _Clause(
            f"{devices}, {_format_change(parts, 'less' if shorter else 'longer', first, told)}",
            sum(part.longer for part in parts),
        )


def _format_change(parts: Sequence[PartChange], word: str, first: RunSide, told: Scale) -> str:
    phases = by_size({part.first.phase: abs(part.longer) for part in parts})
    perhaps = {part.first.phase: _perhaps(part.whole_rounds) for part in parts}
    if len(phases) == 1:
        ((phase, one),) = phases
        text = f"{phase} takes {perhaps[phase]}{told.text(one)} {word}"
    else:
        named = _name([(f"{phase} {perhaps[phase]}".rstrip(), seconds) for phase, seconds in phases], told)
        text = f"phases take {told.text(sum(seconds for _, seconds in phases))} {word} ({named})"
    uneven = sum(part.other.imbalance - part.first.imbalance for part in parts)
    if word == "longer" and is_notable(uneven, first):
        text += f", {told.text(uneven)} of it for the slowest device"
    return text


def _gap_clauses(change: StepChange, first: RunSide, told: Scale) -> Iterator[_Clause]:
    """Time between the phases of the path, in which the controller works and nothing else."""
    more = change.gaps.value
    if is_notable(abs(more), first):
        text = f"{_perhaps(change.gaps)}{told.text(abs(more))} {'more' if more > 0 else 'less'} passes between phases"
        yield _Clause(text + _where_most(change, told), more)


def _where_most(change: StepChange, told: Scale) -> str:
    """Which gap has at least half of what passes more, or less, between phases; nothing where none has."""
    more = change.gaps.value
    largest = max(change.gap_parts, key=lambda part: part.longer * more, default=None)
    # Work beside a gap is no time between phases, so that one gap can change by more than all.
    if largest is None or not 0.5 <= largest.longer / more <= 1.0 + ROUNDED:
        return ""
    share = f"{told.text(abs(largest.longer))} of it"
    if told.rounded(largest.longer) == told.rounded(more):
        share = "all of it"
    return f", {share} {f'at the {END}' if largest.phase == END else f'before {largest.phase}'}"


def _perhaps(difference: Estimate) -> str:
    """Nothing where the rounds agree that a difference is above, or below, 0; so where there is one round."""
    return PERHAPS if difference.low <= 0 <= difference.high else ""


def _change_of_devices(phase: str, first: RunSide, other: RunSide) -> str:
    before, now = (_devices_of(phase, side) for side in (first, other))
    if before is None or now is None:
        return f"done in {(other if before is None else first).name} alone"
    if before and now:
        return f"on {plural(now, 'device')} {'as before' if now == before else f'instead of {before}'}"
    places = [f"on {plural(count, 'device')}" if count else "in the controller" for count in (now, before)]
    return " instead of ".join(dict.fromkeys(places))


def _devices_of(phase: str, side: RunSide) -> int | None:
    """How many devices work on a phase; 0 for the controller's own, None for one that the placement has not."""
    spans = [launch.spans for launch in side.launches]
    places = {device for one in spans for device in one.loc[one["phase"] == phase, "device"]}
    if not places:
        return None
    pool = side.role_pool(phase)
    # A job of the user's need not say which pools its roles have.
    return len(side.placement.pools[pool]) if pool else len(places - {CONTROLLER})


def _name(found: Sequence[tuple[str, float]], told: Scale, most: int | None = None) -> str:
    """Names with their seconds, of which so many at most are worth it, and those of all others together."""
    shown = most_named(found[:most])
    named = [f"{name} {told.text(seconds)}" for name, seconds in shown]
    # What is shown is to add up to the sum that stands before it, which is rounded, too.
    rest = told.rounded(sum(seconds for _, seconds in found)) - sum(told.rounded(seconds) for _, seconds in shown)
    count = len(found) - len(shown)
    if count and told.rounded(rest) > 0:
        named.append(f"{plural(count, 'other')} {told.text(rest)}")
    return listing(named)
