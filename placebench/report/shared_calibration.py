"""A calibration from what `summary.json` keeps of a run that was shared without its raw files."""

from collections.abc import Iterator
from contextlib import suppress
from math import log, sqrt
from pathlib import Path
from statistics import fmean

from pydantic import ValidationError

from placebench.compare.metrics import STEP_TIME, TOKENS
from placebench.compare.statistics.estimates import quantile
from placebench.errors import UsageError
from placebench.record.calibration_file import CalibrationFile, MeasuredCase, MeasuredPhase
from placebench.report.kept import read_summary
from placebench.report.placement_schema import PlacementSummary, QuantitySummary
from placebench.report.schema import Summary
from placebench.spec.phases import GEN, PHASE, PHASE_ORDER
from placebench.spec.placement import Placement
from placebench.spec.shapes import JobShapes, job_shapes
from placebench.spec.words import parse_placement
from placebench.spec.workload import Workload, placed_workload


def shared_calibration(path: Path) -> CalibrationFile:
    """What the placements of a run measured, by its summary.

    Raises:
        UsageError: it is no run, or none of its placements tells what its phases took.
    """
    summary = read_summary(path)
    if summary.kind != "run":
        raise UsageError(f"{path}: is the report of a comparison, not a run: name the runs that it was made of")
    try:
        return _calibration(summary, str(Path(*path.parts[-2:])))
    except (KeyError, TypeError, ValueError):
        raise UsageError(
            f"{path}: its summary.json does not tell what its phases took, and on which devices: name another run"
        ) from None


def _calibration(summary: Summary, source: str) -> CalibrationFile:
    cases = tuple(case for one in summary.placements if (case := _case(summary, one)))
    gpus, cores = summary.host.get("gpus") or [], len(summary.host.get("usable_cores", ()))
    device_count = max(sum(map(len, one.pools.values())) for one in summary.placements)
    nodes = _nodes(summary)
    # What is known of a host is known of the node that the run was started on.
    on_node = max(1, device_count // nodes)
    return CalibrationFile(
        source=source,
        hostname=summary.host.get("hostname"),
        cpu_model=summary.host.get("cpu_model"),
        cores=cores or None,
        kind="gpu" if gpus else "cpu",
        device=gpus[0]["name"] if gpus else str(summary.host.get("cpu_model")),
        device_count=device_count,
        nodes=nodes,
        device_bytes=gpus[0]["memory_bytes"] if gpus else (summary.host.get("memory_bytes") or 0) // on_node,
        device_cores=0 if gpus else cores // on_node,
        driver=summary.host.get("driver"),
        versions=summary.versions,
        commit=(summary.git or {}).get("commit"),
        workload={} if summary.job else summary.workload,
        command=summary.command if summary.job else (),
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
        gap_s=max(0.0, sum(gaps)) if gaps else None,
        tokens=_tokens(summary, placement),
        launches=max(1, placement.launches),
        launch_sd=_spread(step),
        round_steps={
            one.round: seconds
            for one in summary.launches
            if one.placement == placement.name and (seconds := one.values.get(STEP_TIME.key))
        },
        phases=phases,
    )


def _tokens(summary: Summary, placement: PlacementSummary) -> float | None:
    """The tokens of a step, mean of the launches; None where they were not counted."""
    found = [
        tokens
        for one in summary.launches
        if one.placement == placement.name
        and (tokens := (one.values.get(STEP_TIME.key) or 0.0) * (one.values.get(TOKENS.key) or 0.0))
    ]
    return fmean(found) if found else None


def _nodes(summary: Summary) -> int:
    """How many nodes the devices of its placements are on: of several, labels of devices begin with the node's name."""
    labels = {device.label for one in summary.placements for device in one.devices}
    return max(1, len({label.rpartition("/")[0] for label in labels}))


def _placed(summary: Summary, placement: PlacementSummary) -> dict[str, object]:
    """The workload as the placement ran it, with replicas and engines of its own; empty of a job of the user's."""
    workload = summary.workload
    if not workload or summary.job:
        return {}
    if word := _read(placement.name):
        with suppress(ValidationError):  # a version that had other keys
            workload = placed_workload(Workload.model_validate(workload), word).model_dump(mode="json")
    shared_by = {"tensor_parallel_size": _engine_size(summary, placement)}
    return workload | {"rollout": {**workload.get("rollout", {}), **shared_by}}


def _engine_size(summary: Summary, placement: PlacementSummary) -> int:
    """Devices that share an engine: as recorded, else by the placement's word, else by the workload."""
    word = _read(placement.name)
    known = placement.tensor_parallel or (word.tensor_parallel if word else None)
    return known or int(summary.workload.get("rollout", {}).get("tensor_parallel_size", 1))


def _read(word: str) -> Placement | None:
    """The placement that a word names; None for that of a file."""
    try:
        return parse_placement(word, None)
    except UsageError:
        return None


def _models(summary: Summary) -> JobShapes | None:
    if not summary.workload or summary.job:
        return None
    try:
        return job_shapes(Workload.model_validate(summary.workload))
    except (ValidationError, UsageError):
        return None


def _phases(summary: Summary, placement: PlacementSummary) -> Iterator[MeasuredPhase]:
    # A table of several placements has rows of zeros for what one of them does not do.
    whole = {
        one.phase: seconds
        for one in placement.critical_path
        if one.kind == "phase" and (seconds := one.on_path_s + one.off_path_s)
    }
    traced = {one.phase: one for one in placement.kernels}
    shared_by = _engine_size(summary, placement)
    for name in (name for name in PHASE_ORDER if name in whole):
        role, kernels = PHASE[name].role, traced.get(name)
        yield MeasuredPhase(
            name=name,
            devices=len(placement.pools[placement.roles[role]]) if role else 0,
            tensor_parallel=shared_by if name == GEN else 1,
            seconds=whole[name],
            kernel_s=kernels.kernel_s + kernels.copy_s if kernels else None,
            collective_s=kernels.collective_s if kernels else None,
        )


def _spread(step: QuantitySummary) -> float | None:
    """The launches' standard deviation, from their interval; see `compare.statistics.estimates`."""
    if step.n < 2 or not step.low or not step.high:
        return None
    return log(step.high / step.low) / 2 / float(quantile(step.n - 1, 0.975)) * sqrt(step.n)
