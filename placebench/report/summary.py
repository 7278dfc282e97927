"""From a comparison to the content of `summary.json`."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import pandas as pd

from placebench import __version__
from placebench.compare.breakdown import PartChange, absent, path_parts, step_change
from placebench.compare.breakdown import PathPart as MeasuredPart
from placebench.compare.comparison import Comparison, PlacementResult
from placebench.compare.engines import slower_side
from placebench.compare.explain.caveats import caveats, load_meaning
from placebench.compare.explain.gains import OverlapGain as MeasuredGain
from placebench.compare.explain.gains import overlap_gains, told_gains
from placebench.compare.explain.reasons import alone, headline, reasons, waiting
from placebench.compare.explain.suggestion import suggest
from placebench.compare.measure.efficiency import basis
from placebench.compare.measure.metrics import Metric, controller_metric, device_metrics, wait_metrics
from placebench.compare.read.launches import launch_times
from placebench.compare.read.run import KERNEL_TIMES, Launch
from placebench.compare.scaling import ScalingResult, measure_scaling
from placebench.compare.statistics.estimates import CONFIDENCE
from placebench.compare.statistics.estimates import Ratio as MeasuredRatio
from placebench.compare.statistics.measured import Measured
from placebench.record.folder import Status
from placebench.report.calibration import noise_on_record, summarize_calibration
from placebench.report.method import interval_of_ratios, values_of_steps
from placebench.report.schema import (
    DeviceSummary,
    Difference,
    Factor,
    Forecast,
    KernelTimes,
    LaunchSummary,
    Method,
    OverlapGain,
    PathPart,
    PhaseInPool,
    PhaseOnDevice,
    PlacementSummary,
    Quantity,
    Ratio,
    ResumptionSummary,
    Sampled,
    ScalingSummary,
    Suggestion,
    Summary,
)


def summarize(comparison: Comparison) -> Summary:
    """Put a comparison into the form of `summary.json`."""
    run = comparison.run
    record = run.record
    gains = overlap_gains(comparison)
    told = told_gains(gains, comparison.first.name)
    placements = tuple(_placement(comparison, result, told.get(result.name, ())) for result in comparison.results)
    values = {one.name: _launch_values(one, result) for one, result in zip(placements, comparison.results, strict=True)}
    return Summary(
        placebench=__version__,
        name=run.name,
        status=record.status,
        started=record.started,
        ended=record.ended,
        command=record.command,
        resumptions=tuple(ResumptionSummary(**one.model_dump()) for one in record.resumptions),
        done=len(run.launches) - len(run.missing),
        planned=len(run.launches),
        method=Method(
            confidence=CONFIDENCE,
            min_effect=comparison.min_effect,
            warmup_steps=record.warmup_steps,
            steps_before=record.steps_before,
            load=load_meaning(comparison),
            efficiency=basis(run),
            noise=noise_on_record(comparison),
            steps=f"{values_of_steps(comparison.results[1:], comparison.metrics)}; hidden, idle and waiting time: their"
            " share of the step",
            interval=interval_of_ratios(comparison.results[1:]),
        ),
        workload=record.workload,
        host=record.host,
        versions=record.versions,
        git=record.git,
        warnings=caveats(comparison),
        calibration=summarize_calibration(comparison),
        placements=placements,
        scaling=tuple(_scaling(found) for found in measure_scaling(comparison)),
        overlap_gains=tuple(map(overlap_gain, gains)),
        launches=tuple(_launch(launch, values[launch.placement].get(launch.round, {})) for launch in run.launches),
        suggestion=_suggestion(comparison),
    )


def _suggestion(comparison: Comparison) -> Suggestion | None:
    found = suggest(comparison)
    if found is None:
        return None
    forecasts = tuple(Forecast(**asdict(forecast)) for forecast in found.forecasts)
    return Suggestion(placement=found.placement, text=found.text, forecasts=forecasts)


def _placement(comparison: Comparison, result: PlacementResult, gains: tuple[str, ...]) -> PlacementSummary:
    verdict, why = _verdict(comparison, result)
    return PlacementSummary(
        name=result.name,
        pools=dict(result.placement.pools),
        roles=dict(result.placement.roles),
        overlap=result.placement.overlap,
        launches=len(result.launches),
        headline=verdict,
        reasons=(*why, *gains),
        quantities=quantities(result, comparison.metrics),
        controller_view=quantities(result, (controller_metric(phase) for phase in comparison.phases)),
        overlaps=times(result, "overlap/"),
        waits=times(result, "wait/"),
        critical_path=critical_path(None if result is comparison.first else comparison.first, result),
        devices=tuple(_device(comparison, result, device) for device in result.placement.devices),
        phases_in_pools=_phases_in_pools(result),
        phases_on_devices=_phases_on_devices(result),
        kernels=_kernels(result),
    )


def _verdict(comparison: Comparison, result: PlacementResult) -> tuple[str | None, tuple[str, ...]]:
    """Headline and reasons: of every placement against the first, or of the only one by itself.

    The first of several has no headline, and of reasons only what is said of it alone: which of its sides waits.
    """
    side = slower_side(result, result.placement.staleness)
    sides = (side,) if side else ()
    if result is not comparison.first:
        return headline(comparison, result), (*reasons(comparison, result), *sides)
    if len(comparison.results) > 1:
        return None, sides
    waits = waiting(comparison.run, result)
    return alone(result), ((waits,) if waits else ()) + sides


def quantities(result: Measured, metrics: Iterable[Metric]) -> tuple[Quantity, ...]:
    """Numbers of one side with their ratios to the first."""
    return tuple(_quantity(result, metric) for metric in metrics)


def _quantity(result: Measured, metric: Metric) -> Quantity:
    found = result.estimate(metric.key)
    # A share has no values above 1, so its interval has none either.
    high = min(found.high, 1.0) if metric.unit == "1" and found.value <= 1 else found.high
    return Quantity(
        key=metric.key,
        label=metric.label,
        unit=metric.unit,
        better=metric.better,
        value=found.value,
        low=found.low,
        high=high,
        n=found.n,
        ratio=_ratio(result.ratios.get(metric.key)),
    )


def _ratio(found: MeasuredRatio | None) -> Ratio | None:
    if found is None:
        return None
    return Ratio(
        value=found.value,
        low=found.low,
        high=found.high,
        pairs=found.pairs,
        p_value=found.p_value,
        needed=found.needed,
        corrected_for=found.corrected_for,
        verdict=found.verdict,
    )


def _scaling(found: ScalingResult) -> ScalingSummary:
    return ScalingSummary.model_validate(
        {
            "placement": found.result.name,
            "base": found.base.name,
            "scaling": found.kind,
            "devices": len(found.result.placement.devices),
            "base_devices": len(found.base.placement.devices),
            "speedup": _ratio(found.speedup),
            "efficiency": _ratio(found.efficiency),
        }
    )


def overlap_gain(found: MeasuredGain) -> OverlapGain:
    """The factors of a placement with more overlap."""
    return OverlapGain(
        placement=found.result.name,
        base=found.base.name,
        split=_factor(found.split) if found.split else None,
        overlap=_factor(found.overlap),
        together=_factor(found.together) if found.together else None,
    )


def _factor(found: MeasuredRatio) -> Factor:
    return Factor(value=found.value, low=found.low, high=found.high, pairs=found.pairs)


def times(result: PlacementResult, prefix: str) -> tuple[Quantity, ...]:
    """Numbers that a placement has for itself, largest first: overlaps and waits."""
    keys = sorted(result.keys(prefix), key=lambda key: -result.value(prefix + key))
    return quantities(result, (Metric(prefix + key, key, "s", "") for key in keys))


def critical_path(
    first: PlacementResult | None, result: PlacementResult, *, paired: bool = True
) -> tuple[PathPart, ...]:
    """The parts of the step, against the first placement's where there is one and both have any."""
    change = step_change(first, result, paired=paired) if first else None
    if change is None:
        return tuple(_path_part(part, None) for part in path_parts(result))
    own = {(part.phase, part.is_gap): part for part in path_parts(result)}
    return tuple(
        _path_part(own.get((part.phase, part.is_gap), absent(part.phase, is_gap=part.is_gap)), _difference(part))
        for part in change.parts
    )


def _path_part(part: MeasuredPart, difference: Difference | None) -> PathPart:
    return PathPart(
        phase=part.phase,
        kind="gap" if part.is_gap else "phase",
        on_path_s=part.on_path,
        off_path_s=part.off_path,
        imbalance_s=part.imbalance,
        difference=difference,
    )


def _difference(part: PartChange) -> Difference:
    rounds = part.rounds
    return Difference(
        value=part.difference,
        low=rounds.low,
        high=rounds.high,
        rounds=rounds.n,
        first_on_path_s=part.first.on_path,
        first_off_path_s=part.first.off_path,
        other_on_path_s=part.other.on_path,
        other_off_path_s=part.other.off_path,
    )


def _device(comparison: Comparison, result: PlacementResult, device: str) -> DeviceSummary:
    pool = str(result.placement.pool_of(device))
    return DeviceSummary(
        id=device,
        label=comparison.run.labels[device],
        pool=pool,
        estimated_memory_bytes=comparison.run.record.memory_estimates(result.name).get(pool),
        quantities=tuple(quantity for quantity in quantities(result, device_metrics(device)) if quantity.n),
        waits=tuple(quantity for quantity in quantities(result, wait_metrics(device)) if quantity.n),
    )


def _phases_in_pools(result: PlacementResult) -> tuple[PhaseInPool, ...]:
    return tuple(
        PhaseInPool(pool=row.pool, devices=row.devices, **_sampled(row)) for row in result.phase_pools.itertuples()
    )


def _phases_on_devices(result: PlacementResult) -> tuple[PhaseOnDevice, ...]:
    return tuple(
        PhaseOnDevice(device=row.device, samples=row.samples, n=row.launches, **_sampled(row))
        for row in result.phase_devices.itertuples()
    )


def _sampled(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in Sampled.model_fields}


def _kernels(result: PlacementResult) -> tuple[KernelTimes, ...]:
    frames = [launch.kernels for launch in result.launches if len(launch.kernels)]
    if not frames:
        return ()
    means = pd.concat(frames).groupby("phase", sort=False)[list(KERNEL_TIMES)].mean()
    rows = ({"phase": phase, **times} for phase, times in means.iterrows())
    return tuple(KernelTimes.model_validate(row) for row in rows)


def _launch_values(placement: PlacementSummary, result: PlacementResult) -> dict[int, dict[str, float]]:
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
        for number, value in result.by_round(key).items():
            values.setdefault(number, {})[key] = value
    return values


def _launch(launch: Launch, values: dict[str, float]) -> LaunchSummary:
    done = launch.status is Status.DONE
    times = launch_times(launch) if done else None
    return LaunchSummary(
        round=launch.round,
        placement=launch.placement,
        status=launch.status,
        error=None if done else launch.error,
        steps=times.steps if times else len(launch.steps),
        warmup_steps=launch.warmup_steps if done else None,
        startup_s=times.startup_s if times else None,
        steps_s=times.steps_s if times else None,
        trace_s=times.trace_s if times else None,
        stop_s=times.stop_s if times else None,
        values=values,
    )
