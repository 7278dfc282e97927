"""Who waits: devices of a pool outside phases and, for the host, inside them; engines and learners for each other."""

from collections.abc import Mapping, Sequence

from placebench.compare.measure.placements import RunSide
from placebench.compare.measure.waits import first_trace, waited
from placebench.compare.metrics import (
    ENGINE_WAIT,
    LAG,
    NO_PHASE,
    NOTABLE,
    OWN_POOL,
    STEP_TIME,
    TRAINER_WAIT,
    phase_metric,
)
from placebench.compare.read.run import KERNEL_TIMES
from placebench.compare.side import Side
from placebench.spec.text import Scale, listing, number, quantity, scale

# Share of the step from which the waiting of a device or a side is worth a word.
NOTABLE_WAIT = 0.05
MOST_NAMED = 3


def waiting(side: RunSide) -> str | None:
    """Which pool's devices wait longest, and for what; None when none waits a notable part of the step."""
    if not longest_idle_share(side) >= NOTABLE_WAIT:
        return None
    step = side.value(STEP_TIME.key)
    pool = max(side.placement.pools, key=side.pool_idle)
    idle = side.pool_idle(pool)
    causes = {cause: side.value(f"wait/{pool}/{cause}") for cause in side.keys(f"wait/{pool}/")}
    longest = most_named([(cause, seconds) for cause, seconds in by_size(causes) if seconds >= NOTABLE * step])
    told = parts_scale(side)
    parts = [f"{told.text(seconds)} {_cause(cause)}" for cause, seconds in longest]
    rest = idle - sum(seconds for _, seconds in longest)
    if is_notable(rest, side):
        parts.append(f"{told.text(rest)} in other waits")
    share = quantity(idle / step, "1")
    waits = f"{_who(side, pool)} {told.text(idle)} of the {told.text(step)} step ({share})"
    return f"In {side.name}, {waits}: {listing(parts)}."


def slower_side(side: Side, staleness: int) -> str | None:
    """Engines or learners, whichever wait, and so where a device more would help; None without engines of their own."""
    if not side.estimate(TRAINER_WAIT.key).n:
        return None
    step, told = side.value(STEP_TIME.key), parts_scale(side)
    waits = {"learners": side.value(TRAINER_WAIT.key), "engines": side.value(ENGINE_WAIT.key)}
    text = (
        f"In {side.name}, learners wait {told.text(waits['learners'])} of the {told.text(step)} step for"
        f" sequences, and engines {told.text(waits['engines'])} for weights and prompts"
    )
    if not staleness:
        return f"{text}. At staleness 0 they take turns."
    text += f"; the weights that generate are {number(side.value(LAG.key))} updates old"
    spare = max(waits, key=lambda name: waits[name])
    if waits[spare] < NOTABLE_WAIT * step:
        return f"{text}. Neither waits long for the other."
    slower = "engines" if spare == "learners" else "learners"
    return f"{text}. The {slower} are slower: another device helps most there."


def host_bound(side: RunSide) -> str | None:
    """In which phases devices wait for the host, and how long: what the traced step's kernels leave of a phase.

    None where no step was traced, and where no phase waits a notable part of the step.
    """
    trace = first_trace(side.launches)
    waits = dict[str, float]()
    for phase, rows in trace[trace["span_s"] > 0].groupby("phase"):
        name, devices = str(phase), rows["device"].nunique()
        # The seconds of one device, whose spans may be several.
        traced = {key: float(rows[key].sum()) / devices for key in KERNEL_TIMES}
        waits[name] = waited(side.value(phase_metric(name).key), traced) * traced["no_kernel_s"]
    least = NOTABLE_WAIT * side.value(STEP_TIME.key)
    longest = most_named(by_size({phase: wait for phase, wait in waits.items() if wait >= least}))
    told = parts_scale(side)
    shares = {phase: wait / side.value(phase_metric(phase).key) for phase, wait in longest}
    parts = [f"{told.text(wait)} in {phase} ({quantity(shares[phase], '1')} of it)" for phase, wait in longest]
    return (
        f"In {side.name}, devices wait for the host (as seen in one traced step): {listing(parts)}." if parts else None
    )


def parts_scale(*sides: Side) -> Scale:
    """How the parts of these sides' steps are told in a sentence: all in one unit, as exactly as the steps."""
    return scale("s", [side.value(STEP_TIME.key) for side in sides])


def longest_idle_share(side: RunSide) -> float:
    """Share of the step that the devices of the longest waiting pool wait; 0 without a measured step.

    NaN where no span says when devices work.
    """
    if not side.estimate(STEP_TIME.key).n:
        return 0.0
    return max(side.pool_idle(pool) for pool in side.placement.pools) / side.value(STEP_TIME.key)


def is_notable(seconds: float, side: Side) -> bool:
    """Whether seconds of a side's step are worth a word."""
    return seconds >= NOTABLE * side.value(STEP_TIME.key)


def by_size(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    """Names with their seconds, the most first."""
    return sorted(seconds.items(), key=lambda entry: -entry[1])


def most_named(found: Sequence[tuple[str, float]]) -> Sequence[tuple[str, float]]:
    """The first of a list: all but those too many to name; one more is named, as that takes no more room."""
    return found if len(found) <= MOST_NAMED + 1 else found[:MOST_NAMED]


def _who(side: RunSide, pool: str) -> str:
    devices = side.placement.pools[pool]
    if len(devices) == 1:
        return f"{side.run.labels[devices[0]]} ({pool}) waits"
    return f"the {len(devices)} devices of {pool} wait, on average,"


def _cause(cause: str) -> str:
    known = {NO_PHASE: "while no phase runs", OWN_POOL: "for other devices of the pool"}
    return known.get(cause, f"for {cause}")
