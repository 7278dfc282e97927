"""The one placement most worth trying next, by a forecast from what the run measured.

Only words of the grammar are suggested, that a plan for the run's devices and workload would accept, and none whose
layout the run has tried. A suggestion changes where work happens, never what is computed: engines that run ahead on
older weights are suggested only where the run has such, with the same settings. It must be expected to beat the
fastest placement of the run by more than the smallest effect of interest, and by more than the forecast errs on the
placements that were run.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from pydantic import ValidationError

from placebench.compare.comparison import Comparison
from placebench.compare.explain.phase_times import step_model
from placebench.compare.measure.placements import RunSide
from placebench.compare.metrics import STEP_TIME
from placebench.compare.read.run import Run
from placebench.errors import UsageError
from placebench.predict.interval import PredictionClass, class_error
from placebench.predict.possible import possible_placements
from placebench.predict.step import StepModel
from placebench.spec.devices import Device, devices_per_node
from placebench.spec.placement import Placement
from placebench.spec.text import few, plural, quantity, row
from placebench.spec.workload import Workload

# Pools are divided into at most this many parts, so that a thousand devices do not make a thousand candidates.
MOST_PARTS = 64
MOST_SHOWN = 5
NOTHING_LEFT = "No other standard or split placement fits these devices and this batch."

REPLICAS_ALONE = (
    "No suggestion: only replicas were measured, and their phases do not tell how long other placements take."
)


@dataclass(frozen=True)
class Forecast:
    """What a placement's step is expected to take."""

    placement: str
    """Its word."""
    expected_s: float
    """Seconds by the forecast."""
    measured_s: float | None
    """Seconds as measured; None where it was not run."""
    left_out_s: float | None = None
    """Seconds by the forecast from the run's other placements alone; None where they tell too little."""


@dataclass(frozen=True)
class Suggestion:
    """What to try next."""

    placement: str | None
    """The word; None where nothing is expected to be faster, or nothing can be said."""
    text: str
    """The advice, or why there is none, in one or two sentences."""
    forecasts: tuple[Forecast, ...] = ()
    """The placements that were run, then the most promising of the others."""


def suggest(comparison: Comparison) -> Suggestion | None:
    """Find what to try next to the placements of a run; None where nothing was measured that tells of it."""
    if comparison.run is None:
        return None
    record = comparison.run.record
    measured = [side for side in comparison.placements if side.estimate(STEP_TIME.key).n]
    if not measured:
        return None
    if record.job:
        return _of_job(comparison.run, measured)
    try:
        workload = Workload.model_validate(record.workload)
        tried = {side.name: side.placement.placement for side in measured}
    except (KeyError, TypeError, ValueError, UsageError, ValidationError):
        return Suggestion(None, "No suggestion: this version cannot plan the run's workload and devices.")
    ran = tuple(_ran(measured, tried, workload))
    known = step_model(measured, workload)
    if known is None:
        return Suggestion(None, REPLICAS_ALONE, ran)
    if not known.phases.can_scale:
        return Suggestion(None, _add_another(comparison.run, measured), ran)
    others = _candidates(known, tried, record.devices, workload)
    best = min(measured, key=lambda side: side.value(STEP_TIME.key))
    error = _error(known, ran, tried, tried[best.name])
    forecasts = (*ran, *(forecast for forecast, _ in others[:MOST_SHOWN]))
    if not others:
        return Suggestion(None, f"Measured: {few(tried, ', ')}. {NOTHING_LEFT}", forecasts)
    forecast, placement = others[0]
    ratio = forecast.expected_s / best.value(STEP_TIME.key)
    expected_s, fastest = row("s", forecast.expected_s, best.value(STEP_TIME.key))
    expected = f"about {expected_s} a step, against {fastest} in {best.name}"
    if ratio * (1 + max(error, comparison.min_effect)) >= 1:
        text = f"No other placement is expected to beat {best.name}. The next best is {forecast.placement}: {expected}."
        return Suggestion(None, text, forecasts)
    text = f"Try next: {forecast.placement}. Expected: {expected}{_because(measured, tried, placement)}."
    if not known.covers(placement):
        text += " This is a rough forecast: one of its pools is smaller or larger than any that was measured."
    return Suggestion(forecast.placement, text, forecasts)


def _of_job(run: Run, measured: Sequence[RunSide]) -> Suggestion | None:
    """What the placements tell of each other where the job is the user's own: which others it takes is not known."""
    try:
        ran = tuple(_ran(measured, {side.name: side.placement.placement for side in measured}, None))
    except (KeyError, TypeError, ValueError, UsageError):
        return None  # placements of a newer version, or none that a step can be walked under
    if all(one.left_out_s is None for one in ran):
        return None
    return Suggestion(
        None, f"What other placements would take: placebench predict --from {run.folder.path.name} --placements …", ran
    )


def _ran(measured: Sequence[RunSide], tried: Mapping[str, Placement], workload: Workload | None) -> Iterator[Forecast]:
    """The placements that were run, where those of their kind, replicas or not, tell how phases take longer or less."""
    models = {kind: step_model(measured, workload, of_replicas=kind) for kind in (False, True)}
    for side in measured:
        of_replicas = bool(side.placement.scaling)
        known = models[of_replicas]
        if known is None or not _tells_sizes(known):
            continue
        others = step_model([one for one in measured if one is not side], workload, of_replicas=of_replicas)
        placement, step_s = tried[side.name], side.value(STEP_TIME.key)
        if (expected_s := _expected_s(known, placement)) is not None:
            alone = _expected_s(others, placement) if others and _tells_sizes(others) else None
            yield Forecast(side.name, expected_s, step_s, alone)


def _error(known: StepModel, ran: Sequence[Forecast], tried: Mapping[str, Placement], best: Placement) -> float:
    """By how much forecasts err, as a fraction: on the placements that were run, without replicas."""
    like = [one for one in ran if not tried[one.placement].scaling]
    error = max((abs(one.expected_s / one.measured_s - 1) for one in like if one.measured_s), default=inf)
    if not known.phases.has_sizes:  # what it errs by shows in no placement that it knows
        found = class_error(PredictionClass.SAME_RUN, is_host_bound=known.step(best).is_host_bound)
        error = max(error, found.mean)
    return error


def _tells_sizes(known: StepModel) -> bool:
    """Whether pools of other sizes can be expected: as phases scale, or by work that is known and the device's peak."""
    by_work = known.phases.workload is not None and known.phases.peak is not None
    return known.phases.has_sizes or by_work


def _expected_s(known: StepModel, placement: Placement) -> float | None:
    """Seconds of a step; None where a phase of it was never measured, and the peak of the devices is not known."""
    try:
        return known.step(placement).seconds
    except LookupError:
        return None


def _add_another(run: Run, measured: Sequence[RunSide]) -> str:
    """With one size of each pool nothing is known of how phases scale; replicas, whose phases are others, tell none."""
    known = [side for side in measured if not side.placement.scaling]
    sizes = {len(devices) for side in known for devices in side.placement.pools.values()}
    words = "split" if max(sizes) == len(run.devices) else "standard"
    more = f", such as {words}," if words not in {side.name for side in measured} and len(run.devices) > 1 else ""
    aside = "" if len(known) == len(measured) else ", not counting replicas"
    return (
        f"No suggestion yet: every phase was measured on one number of devices only{aside}. Add a placement whose pools"
        f" have other sizes{more} to see how phases scale."
    )


def _candidates(
    known: StepModel, tried: Mapping[str, Placement], devices: Sequence[Device], workload: Workload
) -> list[tuple[Forecast, Placement]]:
    """Layouts that a plan would accept and the run has not tried, the fastest by the forecast first."""
    layouts = [_layout(placement) for placement in tried.values()]
    found = []
    words = list(dict.fromkeys(_words(devices_per_node(devices), tried)))
    for word, bound in possible_placements(words, devices, workload):
        placement = bound.placement
        if _layout(placement) not in layouts and (expected_s := _expected_s(known, placement)) is not None:
            layouts.append(_layout(placement))
            found.append((Forecast(word, expected_s, None), placement))
    return sorted(found, key=lambda one: one[0].expected_s)


def _words(nodes: Sequence[int], tried: Mapping[str, Placement]) -> Iterator[str]:
    """Words that use all devices: one pool, two pools of all sizes, and the sides of engines that the run has."""
    total = sum(nodes)
    yield from ("standard", "split", "split@nodes")
    sizes = range(max(1, total // MOST_PARTS), total, max(1, total // MOST_PARTS))
    yield from (f"split:{actor}+{total - actor}" for actor in sizes)
    for word, placement in tried.items():
        _, *settings = word.split("/")
        if placement.has_engines and word.startswith("learners:") and len(nodes) == 1:
            shared_by = placement.tensor_parallel or 1
            for engines in range(1, total // shared_by):
                tail = f"xtp{shared_by}" if shared_by > 1 else ""
                rest = "".join(f"/{setting}" for setting in settings)
                yield f"learners:{total - engines * shared_by}+engines:{engines}{tail}{rest}"


def _layout(placement: Placement) -> tuple[object, ...]:
    """What makes a placement run as it does, whatever it is called."""
    sizes = {pool.name: pool.counts for pool in placement.pools}
    roles = tuple((role, sizes[pool], list(sizes).index(pool)) for role, pool in sorted(placement.roles.items()))
    overlap = placement.overlap if len(placement.pools) > 1 else None
    return (
        roles,
        overlap,
        placement.staleness,
        placement.inflight_updates,
        placement.tensor_parallel,
        placement.scaling,
    )


def _because(measured: Sequence[RunSide], tried: Mapping[str, Placement], placement: Placement) -> str:
    """Who waits in the placement of the run that is most like it, and what changes for them."""
    alike = [
        side
        for side in measured
        if len(placement.pools) > 1
        and {pool.name for pool in placement.pools} == set(side.placement.pools)
        and placement.roles == tried[side.name].roles
    ]
    if not alike:
        return ""
    nearest = min(alike, key=lambda side: side.value(STEP_TIME.key))
    step = nearest.value(STEP_TIME.key)
    idle = {pool: nearest.pool_idle(pool) / step for pool in nearest.placement.pools}
    pool = max(idle, key=lambda name: idle[name])
    now = next(one.size for one in placement.pools if one.name == pool)
    before = len(nearest.placement.pools[pool])
    if now >= before:
        return ""
    share, spared = quantity(idle[pool], "1"), plural(before - now, "device")
    return f", because in {nearest.name} the devices of {pool} wait {share} of the step and {spared} can be spared"
