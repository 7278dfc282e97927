"""From a comparison to the content of `summary.json`."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import pandas as pd

from placebench.compare.comparison import Comparison
from placebench.compare.explain.breakdown import PartChange, PathPart, absent, path_parts, step_change
from placebench.compare.explain.caveats import caveats, load_meaning
from placebench.compare.explain.gains import OverlapGain, gain_sentences, overlap_gains
from placebench.compare.explain.headlines import alone, headline
from placebench.compare.explain.placing import differences
from placebench.compare.explain.reasons import reasons
from placebench.compare.explain.scaling import ScalingResult, measure_scaling
from placebench.compare.explain.suggestion import suggest
from placebench.compare.explain.waiting import host_bound, slower_side, waiting
from placebench.compare.measure.efficiency import basis
from placebench.compare.measure.observed import Arrangement
from placebench.compare.measure.placements import RunSide
from placebench.compare.metrics import Metric, controller_metric, device_metrics, pool_metrics, wait_metrics
from placebench.compare.read.launches import launch_times, run_times
from placebench.compare.read.run import KERNEL_TIMES, Launch, Run
from placebench.compare.side import LaunchSource, Side
from placebench.compare.statistics.estimates import CONFIDENCE
from placebench.record.folder import Status
from placebench.report.method import interval_of_ratios, values_of_steps
from placebench.report.noise import noise_on_record, summarize_calibration
from placebench.report.placement_schema import (
    ArrangementSummary,
    DeviceSummary,
    DifferenceSummary,
    KernelSummary,
    PathPartSummary,
    PhaseInPoolSummary,
    PhaseOnDeviceSummary,
    PlacementSummary,
    PlaceSummary,
    QuantitySummary,
    RatioSummary,
    RoleOnDeviceSummary,
    SampledSummary,
)
from placebench.report.schema import (
    FactSummary,
    LaunchSummary,
    MethodSummary,
    OverlapGainSummary,
    ResumptionSummary,
    RunTimesSummary,
    ScalingSummary,
    SourceSummary,
    SuggestionSummary,
    Summary,
)
from placebench.spec.text import plural
from placebench.version import __version__

Sampled = TypeVar("Sampled", SampledSummary, RoleOnDeviceSummary)


def summarize(comparison: Comparison, warmup_steps: int = 0, command: tuple[str, ...] = ()) -> Summary:
    """Put a comparison into the form of `summary.json`.

    Args:
        comparison: of a run, or of chosen sides.
        warmup_steps: of chosen sides, the first steps of each log that are left out of the numbers.
        command: of chosen sides, the command line.
    """
    run, gains = comparison.run, overlap_gains(comparison)
    sentences = gain_sentences(gains, comparison.first.name)
    placements = tuple(_placement(comparison, side, sentences.get(side.name, ())) for side in comparison.sides)
    about = _about_run(comparison, run, placements) if run else _about_sides(comparison, warmup_steps, command)
    suggestion = suggest(comparison)
    return Summary(
        **about,
        placebench=__version__,
        warnings=caveats(comparison),
        placements=placements,
        scaling=tuple(map(_scaling, measure_scaling(comparison))),
        overlap_gains=tuple(map(_overlap_gain, gains)),
        suggestion=SuggestionSummary.model_validate(suggestion) if suggestion else None,
        facts=tuple(map(FactSummary.model_validate, comparison.facts)),
    )


def _about_run(comparison: Comparison, run: Run, placements: Iterable[PlacementSummary]) -> dict[str, Any]:
    """What the summary of a run has of it besides its placements."""
    record, first, times = run.record, comparison.placements[0], run_times(run)
    values = {one.name: _launch_values(one, side) for one, side in zip(placements, comparison.placements, strict=True)}
    return {
        "name": run.name,
        "status": record.status,
        "started": record.started,
        "ended": record.ended,
        "command": record.command,
        "resumptions": tuple(map(ResumptionSummary.model_validate, record.resumptions)),
        "done": len(run.launches) - len(run.missing),
        "planned": len(run.launches),
        "method": MethodSummary(
            confidence=CONFIDENCE,
            min_effect=comparison.min_effect,
            warmup_steps=record.warmup_steps,
            steps_before=record.steps_before,
            load=load_meaning(first),
            efficiency=basis(run),
            noise=noise_on_record(first, comparison.min_effect),
            steps=f"{values_of_steps(comparison)}; hidden, idle and waiting time: their share of the step",
            chosen_steps=record.auto.choice.sentence if record.auto and record.auto.choice else None,
            interval=interval_of_ratios(comparison),
        ),
        "workload": record.workload,
        "job": record.job.spec if record.job else {},
        "host": record.host,
        "versions": record.versions,
        "git": record.git,
        "calibration": summarize_calibration(comparison),
        "times": RunTimesSummary.model_validate(times) if times else None,
        "launches": tuple(_launch(run, one, values[one.placement].get(one.round, {})) for one in run.launches),
    }


def _about_sides(comparison: Comparison, warmup_steps: int, command: tuple[str, ...]) -> dict[str, Any]:
    """What the summary of chosen sides has besides them: of their runs and logs no more than where they are."""
    first, *others = comparison.sides
    launches = [
        (side, number, launch)
        for side in comparison.sides
        for number, launch in enumerate(side.background.sources, start=1)
    ]
    return {
        "kind": "comparison",
        "name": f"{' and '.join(side.name for side in others)} against {first.name}" if others else first.name,
        "status": Status.DONE,
        "started": None,
        "ended": None,
        "command": command,
        "done": len(launches),
        "planned": len(launches),
        "method": MethodSummary(
            confidence=CONFIDENCE,
            min_effect=comparison.min_effect,
            warmup_steps=warmup_steps,
            load="of runs: as their own reports say",
            efficiency=(),
            steps=f"{values_of_steps(comparison)}; {_left_out(comparison, warmup_steps)}",
            interval=interval_of_ratios(comparison),
        ),
        "workload": {},
        "host": {},
        "versions": {},
        "git": None,
        "launches": tuple(_launch_of_side(side, number, launch) for side, number, launch in launches),
        "sources": tuple(
            SourceSummary(
                arm=side.name, source=launch.path, format=launch.format, steps=launch.steps, measured=launch.measured
            )
            for side, _, launch in launches
        ),
    }


def _left_out(comparison: Comparison, warmup_steps: int) -> str:
    texts = []
    if len(comparison.placements) < len(comparison.sides):
        texts.append(f"the warm-up of each log, at least {plural(warmup_steps, 'step')},")
    if comparison.placements:
        texts.append("the warm-up steps of each run")
    return f"{' and '.join(texts)} left out"


def _placement(comparison: Comparison, side: Side, gains: tuple[str, ...]) -> PlacementSummary:
    verdict, why = _verdict(comparison, side)
    known = side if isinstance(side, RunSide) else None
    # Of chosen sides, devices and what the samples say of them stand in their own reports.
    sampled = known if comparison.run else None
    placement = known.placement if known else None
    return PlacementSummary(
        name=side.name,
        pools=dict(placement.pools) if placement else {},
        roles=dict(placement.roles) if placement else {},
        overlap=placement.overlap if placement else "",
        tensor_parallel=placement.tensor_parallel if placement else None,
        launches=side.launch_count,
        headline=verdict,
        reasons=(*why, *gains),
        quantities=_quantities(side, comparison.metrics),
        controller_view=_quantities(side, map(controller_metric, comparison.phases)) if comparison.run else (),
        overlaps=_times(side, "overlap/"),
        waits=_times(side, "wait/"),
        critical_path=_critical_path(comparison.first, side),
        devices=tuple(_device(sampled, device) for device in sampled.placement.devices) if sampled else (),
        phases_in_pools=_rows(PhaseInPoolSummary, sampled.phase_pools) if sampled else (),
        phases_on_devices=_rows(PhaseOnDeviceSummary, sampled.phase_devices) if sampled else (),
        kernels=_kernels(sampled) if sampled else (),
        observed=tuple(_arrangement(sampled, one) for one in sampled.arrangements) if sampled else (),
        parts=_quantities(side, comparison.parts),
    )


def _verdict(comparison: Comparison, side: Side) -> tuple[str | None, tuple[str, ...]]:
    """Headline and reasons: of every side against the first, or of the only one by itself.

    The first of several has no headline, and of reasons only what is said of it alone: that engines or learners wait,
    or devices for the host.
    """
    known = side if isinstance(side, RunSide) else None
    ends = tuple(filter(None, (slower_side(known, known.placement.staleness), host_bound(known)))) if known else ()
    if side is not comparison.first:
        return headline(comparison, side), (*reasons(comparison, side), *ends)
    if comparison.others:
        return None, ends
    waits = waiting(known) if known else None
    return alone(comparison), ((waits,) if waits else ()) + ends


def _quantities(side: Side, metrics: Iterable[Metric]) -> tuple[QuantitySummary, ...]:
    """Numbers of one side with their ratios to the first."""
    return tuple(_quantity(side, metric) for metric in metrics)


def _quantity(side: Side, metric: Metric) -> QuantitySummary:
    found, ratio = side.estimate(metric.key), side.ratios.get(metric.key)
    # A share has no values above 1, so its interval has none either.
    high = min(found.high, 1.0) if metric.unit == "1" and found.value <= 1 else found.high
    return QuantitySummary(
        key=metric.key,
        label=metric.label,
        unit=metric.unit,
        better=metric.better,
        value=found.value,
        low=found.low,
        high=high,
        n=found.n,
        ratio=RatioSummary.model_validate(ratio) if ratio else None,
    )


def _scaling(found: ScalingResult) -> ScalingSummary:
    return ScalingSummary.model_validate(
        {
            "placement": found.side.name,
            "base": found.base.name,
            "scaling": found.kind,
            "devices": len(found.side.placement.devices),
            "base_devices": len(found.base.placement.devices),
            "speedup": found.speedup,
            "efficiency": found.efficiency,
        }
    )


def _overlap_gain(found: OverlapGain) -> OverlapGainSummary:
    return OverlapGainSummary.model_validate(
        {
            "placement": found.side.name,
            "base": found.base.name,
            "split": found.split,
            "overlap": found.overlap,
            "together": found.together,
        }
    )


def _times(side: Side, prefix: str) -> tuple[QuantitySummary, ...]:
    """Numbers that a placement has for itself, largest first: overlaps and waits."""
    keys = sorted(side.keys(prefix), key=lambda key: -side.value(prefix + key))
    return _quantities(side, (Metric(prefix + key, key, "s", "") for key in keys))


def _critical_path(first: Side, side: Side) -> tuple[PathPartSummary, ...]:
    """The parts of the step, against the first side's where it is another and both have any."""
    change = step_change(first, side) if side is not first else None
    if change is None:
        return tuple(_path_part(part, None) for part in path_parts(side))
    own = {(part.phase, part.is_gap): part for part in path_parts(side)}
    return tuple(
        _path_part(own.get((part.phase, part.is_gap), absent(part.phase, is_gap=part.is_gap)), _difference(part))
        for part in change.parts
    )


def _path_part(part: PathPart, difference: DifferenceSummary | None) -> PathPartSummary:
    return PathPartSummary(
        phase=part.phase,
        kind="gap" if part.is_gap else "phase",
        on_path_s=part.on_path,
        off_path_s=part.off_path,
        imbalance_s=part.imbalance,
        difference=difference,
    )


def _difference(part: PartChange) -> DifferenceSummary:
    rounds = part.rounds
    return DifferenceSummary(
        value=part.difference,
        low=rounds.low,
        high=rounds.high,
        rounds=rounds.n,
        first_on_path_s=part.first.on_path,
        first_off_path_s=part.first.off_path,
        other_on_path_s=part.other.on_path,
        other_off_path_s=part.other.off_path,
    )


def _device(side: RunSide, device: str) -> DeviceSummary:
    pool = str(side.placement.pool_of(device))
    return DeviceSummary(
        id=device,
        label=side.run.labels[device],
        pool=pool,
        estimated_memory_bytes=side.run.record.memory_estimates(side.placement.name).get(pool),
        quantities=tuple(quantity for quantity in _quantities(side, device_metrics(device)) if quantity.n),
        waits=tuple(quantity for quantity in _quantities(side, wait_metrics(device)) if quantity.n),
    )


def _rows(model: type[Sampled], table: pd.DataFrame) -> tuple[Sampled, ...]:
    return tuple(map(model.model_validate, table.rename(columns={"launches": "n"}).itertuples()))


def _arrangement(side: RunSide, found: Arrangement) -> ArrangementSummary:
    # placebench's own job has its pools where they were put, so that the numbers of a device are of one pool.
    differs = side.run.record.job is not None and len(side.arrangements) > 1
    return ArrangementSummary(
        rounds=found.rounds,
        roles=_rows(RoleOnDeviceSummary, found.seen),
        pools=tuple(_places(side.of_rounds(found.rounds))) if differs else (),
        differences=tuple(differences(side, found)),
    )


def _places(side: RunSide) -> Iterator[PlaceSummary]:
    """The pools of launches that have them on the same devices."""
    for pool, devices in side.placed(side.launches[0]).pools.items():
        known = (one for one in _quantities(replace(side, ratios={}), pool_metrics(pool)) if one.n)
        yield PlaceSummary(pool=pool, devices=devices, quantities=tuple(known))


def _kernels(side: RunSide) -> tuple[KernelSummary, ...]:
    frames = [launch.kernels for launch in side.launches if len(launch.kernels)]
    if not frames:
        return ()
    means = pd.concat(frames).groupby("phase", sort=False)[list(KERNEL_TIMES)].mean()
    return tuple(map(KernelSummary.model_validate, means.reset_index().itertuples()))


def _launch_values(placement: PlacementSummary, side: RunSide) -> dict[int, dict[str, float]]:
    """What each launch of a placement measured, by round: the numbers that the summary has of the placement."""
    listed = (
        placement.quantities,
        placement.controller_view,
        placement.overlaps,
        placement.waits,
        *(device.quantities for device in placement.devices),
        *(device.waits for device in placement.devices),
    )
    values: dict[int, dict[str, float]] = {}
    for key in (found.key for quantities in listed for found in quantities):
        for number, value in side.by_round(key).items():
            values.setdefault(number, {})[key] = value
    return values


def _launch(run: Run, launch: Launch, values: dict[str, float]) -> LaunchSummary:
    done = launch.status is Status.DONE
    times = launch_times(launch, run.wall(launch)) if done else None
    return LaunchSummary(
        round=launch.round,
        placement=launch.placement,
        status=launch.status,
        error=None if done else launch.error,
        steps=times.steps if times else launch.steps_done,
        warmup_steps=launch.warmup_steps if done else None,
        startup_s=times.startup_s if times else None,
        steps_s=times.steps_s if times else None,
        trace_s=times.trace_s if times else None,
        stop_s=times.stop_s if times else None,
        values=values,
    )


def _launch_of_side(side: Side, number: int, launch: LaunchSource) -> LaunchSummary:
    # Steps that a pause was a part of are not measured either; logs know none.
    known = side.launches[number - 1] if isinstance(side, RunSide) else None
    warmup_steps = known.warmup_steps if known else launch.steps - launch.measured
    return LaunchSummary(
        round=number, placement=side.name, status=Status.DONE, error=None, steps=launch.steps,
        warmup_steps=warmup_steps, startup_s=None, steps_s=None, stop_s=None,
    )  # fmt: skip
