"""A calibration from what `summary.json` keeps of a run that was shared without its raw files."""

from collections.abc import Iterator
from math import log, sqrt
from pathlib import Path

from pydantic import ValidationError

from placebench.compare.metrics import STEP_TIME
from placebench.errors import UsageError
from placebench.record.calibration_file import CalibrationFile, MeasuredCase, MeasuredPhase
from placebench.report.kept import read_summary
from placebench.report.placement_schema import PlacementSummary, QuantitySummary
from placebench.report.schema import Summary
from placebench.spec.phases import PHASE, PHASE_ORDER
from placebench.spec.shapes import JobShapes, job_shapes
from placebench.spec.workload import Workload


def shared_calibration(path: Path) -> CalibrationFile:
    """What the placements of a run measured, by its summary.

    Raises:
        UsageError: it is no run, or none of its placements tells what its phases took.
    """
    summary = read_summary(path)
    if summary.kind != "run":
        raise UsageError(f"{path}: is no run but the report of a comparison: name the runs that it was made of")
    try:
        return _calibration(summary, f"{path.parent.name}/{path.name}")
    except (KeyError, TypeError, ValueError):
        raise UsageError(f"{path}: its summary.json does not tell what its phases took, and on which devices") from None


def _calibration(summary: Summary, source: str) -> CalibrationFile:
    cases = tuple(case for one in summary.placements if (case := _case(summary, one)))
    gpus, cores = summary.host.get("gpus") or [], len(summary.host.get("usable_cores", ()))
    device_count = max(sum(map(len, one.pools.values())) for one in summary.placements)
    return CalibrationFile(
        source=source,
        hostname=summary.host.get("hostname"),
        cpu_model=summary.host.get("cpu_model"),
        cores=cores or None,
        kind="gpu" if gpus else "cpu",
        device=gpus[0]["name"] if gpus else str(summary.host.get("cpu_model")),
        device_count=device_count,
        device_bytes=gpus[0]["memory_bytes"] if gpus else summary.host.get("memory_bytes") or 0,
        device_cores=0 if gpus else cores // device_count,
        driver=summary.host.get("driver"),
        versions=summary.versions,
        commit=(summary.git or {}).get("commit"),
        cases=cases,
    )


def _case(summary: Summary, placement: PlacementSummary) -> MeasuredCase | None:
    step = next((one for one in placement.quantities if one.key == STEP_TIME.key), None)
    phases = tuple(_phases(summary, placement))
    if step is None or not step.value or not phases:
        return None
    gaps = [one.on_path_s for one in placement.critical_path if one.kind == "gap"]
    return MeasuredCase(
        name=placement.name,
        workload=_placed(summary, placement),
        models=_models(summary),
        pools=len(placement.pools),
        step_s=step.value,
        gap_s=sum(gaps) if gaps else None,
        launches=max(1, placement.launches),
        launch_sd=_spread(step),
        phases=phases,
    )


def _placed(summary: Summary, placement: PlacementSummary) -> dict[str, object]:
    """The workload as the placement ran it: replicas hold whole models."""
    if placement.name.startswith("ddp:"):
        return summary.workload | {"sharding": "replicate"}
    return summary.workload


def _models(summary: Summary) -> JobShapes | None:
    try:
        return job_shapes(Workload.model_validate(summary.workload))
    except (ValidationError, UsageError):
        return None


def _phases(summary: Summary, placement: PlacementSummary) -> Iterator[MeasuredPhase]:
    whole = {one.phase: one.on_path_s + one.off_path_s for one in placement.critical_path if one.kind == "phase"}
    traced = {one.phase: one for one in placement.kernels}
    shared_by = summary.workload.get("rollout", {}).get("tensor_parallel_size", 1)
    for name in (name for name in PHASE_ORDER if name in whole):
        role, kernels = PHASE[name].role, traced.get(name)
        yield MeasuredPhase(
            name=name,
            devices=len(placement.pools[placement.roles[role]]) if role else 0,
            tensor_parallel=shared_by,
            seconds=whole[name],
            kernel_s=kernels.kernel_s + kernels.copy_s if kernels else None,
            collective_s=kernels.collective_s if kernels else None,
        )


def _spread(step: QuantitySummary) -> float | None:
    """The launches' standard deviation, from their interval; see `compare.statistics.estimates`."""
    if step.n < 2 or not step.low or not step.high:
        return None
    from scipy.stats import t

    return log(step.high / step.low) / 2 / float(t.ppf(0.975, step.n - 1)) * sqrt(step.n)
