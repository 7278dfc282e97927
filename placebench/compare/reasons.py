"""The verdict in words and the reason for it, both computed from the measurements.

What a placement hides by overlap, and who waits for what, are measurements of one placement and are stated as such.
That a phase takes longer or less long in one placement is a comparison: it is said only where its ratio is decided.
"""

from collections.abc import Mapping

from placebench.compare.comparison import Comparison, PlacementResult
from placebench.compare.metrics import HIDDEN, STEP_TIME, UNATTRIBUTED, phase_metric
from placebench.compare.statistics import Ratio, Verdict
from placebench.compare.steps import NO_PHASE, OWN_POOL
from placebench.compare.text import interval, listing, number, plural, quantity, ratio

# Shares of the step from which a cause, and a device's waiting, are worth a word.
NOTABLE = 0.01
NOTABLE_WAIT = 0.05
MOST_NAMED = 3

DECIDED = (Verdict.FASTER, Verdict.SLOWER)


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
    lead = {
        Verdict.SLOWER: f"{other.name} is slower than {first.name}",
        Verdict.FASTER: f"{other.name} is faster than {first.name}",
        Verdict.SAME: f"{other.name} and {first.name} are the same within {quantity(comparison.min_effect, '1')}",
    }.get(found.verdict, f"Undecided whether {other.name} or {first.name} is faster")
    times = f"{_seconds(other.value(STEP_TIME.key))} against {_seconds(first.value(STEP_TIME.key))}"
    factor = ratio(found.value, found.low, found.high)
    return f"{lead}: a step takes {factor} times as long, {times} ({_basis(first, other, found)})."


def alone(result: PlacementResult) -> str:
    """The step time of a placement that is compared with nothing, in one sentence."""
    step = result.estimate(STEP_TIME.key)
    if not step.n:
        return f"{result.name} has no finished launch."
    basis = f"95 % interval {interval(step.low, step.high)} s, " if step.n > 1 else ""
    return f"{result.name}: a step takes {_seconds(step.value)} ({basis}{plural(step.n, 'launch', 'launches')})."


def reasons(comparison: Comparison, other: PlacementResult) -> tuple[str, ...]:
    """Why the placement's step takes longer or less long than the first's: one or two sentences, none without data."""
    first = comparison.first
    found = other.ratios.get(STEP_TIME.key)
    if found is None:
        return ()
    sentences = [_weigh(found.verdict, first, other)]
    if waits := waiting(comparison, max((first, other), key=_longest_idle_share)):
        sentences.append(waits)
    return tuple(sentences)


def waiting(comparison: Comparison, result: PlacementResult) -> str | None:
    """Which pool's devices wait longest, and for what; None when none waits a notable part of the step."""
    if not result.launches or _longest_idle_share(result) < NOTABLE_WAIT:
        return None
    step = result.value(STEP_TIME.key)
    pool = max(result.placement.pools, key=lambda name: _pool_idle(result, name))
    idle = _pool_idle(result, pool)
    causes = {cause: result.value(f"wait/{pool}/{cause}") for cause in result.keys(f"wait/{pool}/")}
    longest = [cause for cause, seconds in _by_size(causes) if seconds >= NOTABLE * step][:MOST_NAMED]
    parts = listing(f"{_seconds(causes[cause])} {_cause(cause)}" for cause in longest)
    share = quantity(idle / step, "1")
    waits = f"{_who(comparison, result, pool)} {_seconds(idle)} of the {_seconds(step)} step ({share})"
    return f"In {result.name}, {waits}: {parts}."


def _who(comparison: Comparison, result: PlacementResult, pool: str) -> str:
    devices = result.placement.pools[pool]
    if len(devices) == 1:
        return f"{comparison.run.devices[devices[0]].label} ({pool}) waits"
    return f"the {len(devices)} devices of {pool} wait, on average,"


def _weigh(verdict: Verdict, first: PlacementResult, other: PlacementResult) -> str:
    """What the placement gains and pays against the first, in the order that leads up to the verdict."""
    gains, costs = _balance(first, other)
    if verdict is Verdict.UNDECIDED:
        measured = "; ".join([*gains, *costs]) or _nothing(first, other)
        return f"The reason is as undecided as the step time; measured: {measured}."
    if verdict is Verdict.FASTER:
        sides, joint = (costs, gains), ", but "
    else:
        sides, joint = (gains, costs), ", but " if verdict is Verdict.SLOWER else ", which is made up for: "
    told = joint.join("; ".join(side) for side in sides if side)
    return f"{told or _nothing(first, other).capitalize()}."


def _nothing(first: PlacementResult, other: PlacementResult) -> str:
    if any(_is_notable(result.value(HIDDEN.key), result) for result in (first, other)):
        return "neither a phase nor the overlap differs by a decided amount"
    return "no phase differs by a decided amount, and overlap hides nothing"


def _balance(first: PlacementResult, other: PlacementResult) -> tuple[list[str], list[str]]:
    """Clauses on what makes the placement's step shorter than the first's, and on what makes it longer."""
    gains, costs = _overlap_clauses(first, other)
    shorter, longer = _phase_clauses(first, other)
    gains += shorter
    costs += longer
    more = other.value(UNATTRIBUTED.key) - first.value(UNATTRIBUTED.key)
    decided = other.ratios.get(UNATTRIBUTED.key)
    if decided and decided.verdict in (Verdict.HIGHER, Verdict.LOWER) and _is_notable(abs(more), first):
        clause = f"{_seconds(abs(more))} {'more' if more > 0 else 'less'} passes between phases"
        (costs if more > 0 else gains).append(clause)
    return gains, costs


def _overlap_clauses(first: PlacementResult, other: PlacementResult) -> tuple[list[str], list[str]]:
    """What the placement that hides more time hides; nothing where both do and it is undecided which hides more."""
    hidden = other.value(HIDDEN.key), first.value(HIDDEN.key)
    found = other.ratios.get(HIDDEN.key)
    undecided = found is not None and found.verdict not in (Verdict.HIGHER, Verdict.LOWER)
    if undecided or not _is_notable(abs(hidden[0] - hidden[1]), first):
        return [], []
    more, less = (other, first) if hidden[0] > hidden[1] else (first, other)
    pairs = {pair: more.value(f"overlap/{pair}") for pair in more.keys("overlap/")}
    named = [
        f"{' beside '.join(pair.split('+'))} ({_seconds(seconds)})"
        for pair, seconds in _by_size(pairs)
        if _is_notable(seconds, more)
    ]
    clause = f"{more.name} hides {_seconds(max(hidden))} a step by overlap: {listing(named[:MOST_NAMED])}"
    if _is_notable(min(hidden), less):
        clause += f"; {less.name} hides {_seconds(min(hidden))}"
    return ([clause], []) if more is other else ([], [clause])


def _phase_clauses(first: PlacementResult, other: PlacementResult) -> tuple[list[str], list[str]]:
    """Phases that take decidedly less, and decidedly more, time; those on the same change of devices in one clause."""
    shorter: dict[str, dict[str, float]] = {}
    longer: dict[str, dict[str, float]] = {}
    for phase in first.keys("phase/"):
        found = other.ratios.get(phase_metric(phase).key)
        more = other.value(phase_metric(phase).key) - first.value(phase_metric(phase).key)
        if found is not None and found.verdict in DECIDED and _is_notable(abs(more), first):
            change = _change_of_devices(phase, first, other)
            (longer if more > 0 else shorter).setdefault(change, {})[phase] = abs(more)
    return _tell(shorter, "less"), _tell(longer, "longer")


def _tell(phases: Mapping[str, Mapping[str, float]], word: str) -> list[str]:
    clauses = []
    for change, seconds in phases.items():
        (largest, most), *rest = _by_size(seconds)
        named = [f"{largest} takes {_seconds(most)} {word}"]
        named += [f"{phase} {_seconds(more)}" for phase, more in rest[: MOST_NAMED - 1]]
        if len(rest) >= MOST_NAMED:
            named.append(
                f"{plural(len(rest) - MOST_NAMED + 1, 'more phase')} up to {_seconds(rest[MOST_NAMED - 1][1])}"
            )
        clauses.append(f"{change}, {listing(named)}")
    return clauses


def _change_of_devices(phase: str, first: PlacementResult, other: PlacementResult) -> str:
    now, before = (_devices_of(phase, result) for result in (other, first))
    if now and before and now != before:
        return f"on {plural(now, 'device')} instead of {before}"
    return f"on {plural(now, 'device')} as before" if now else "in the controller"


def _devices_of(phase: str, result: PlacementResult) -> int:
    """How many devices work on a phase; 0 for the controller's own."""
    pool = result.role_pool(phase)
    return len(result.placement.pools[pool]) if pool else 0


def _longest_idle_share(result: PlacementResult) -> float:
    """Share of the step that the devices of the longest waiting pool wait; 0 without launches."""
    if not result.launches:
        return 0.0
    return max(_pool_idle(result, pool) for pool in result.placement.pools) / result.value(STEP_TIME.key)


def _pool_idle(result: PlacementResult, pool: str) -> float:
    """Idle seconds a step of a pool's devices, their mean."""
    devices = result.placement.pools[pool]
    return sum(result.value(f"idle/{device}") for device in devices) / len(devices)


def _cause(cause: str) -> str:
    known = {NO_PHASE: "while no phase runs", OWN_POOL: "for other devices of the pool"}
    return known.get(cause, f"for {cause}")


def _is_notable(seconds: float, result: PlacementResult) -> bool:
    return seconds >= NOTABLE * result.value(STEP_TIME.key)


def _by_size(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda entry: -entry[1])


def _basis(first: PlacementResult, other: PlacementResult, found: Ratio) -> str:
    """On what a ratio rests: its interval and the launches."""
    launches = {len(first.launches), len(other.launches), found.pairs}
    if launches == {1}:
        return "1 launch each, so no interval"
    if found.pairs < 2:
        return f"{plural(found.pairs, 'round')} with both, so no interval"
    basis = f"{found.pairs} launches each" if len(launches) == 1 else f"{found.pairs} rounds with both"
    return f"95 % interval {interval(found.low, found.high)}, {basis}"


def _seconds(value: float) -> str:
    return f"{number(value, 3 if value >= 1 else 2)} s"
