"""A calibration from the finished launches of a run: what each placement's phases took, beside what they had to do."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from statistics import stdev
from typing import Any

import numpy as np
import pandas as pd
from pydantic import ValidationError

from placebench.compare.measure.cores import core_loops
from placebench.compare.measure.placements import RunSide
from placebench.compare.metrics import GAP, OFF_PATH, PATH, STEP_TIME, UNATTRIBUTED, phase_metric
from placebench.compare.read.run import KERNEL_TIMES, Launch, Run
from placebench.errors import UsageError
from placebench.record.calibration_file import CalibrationFile, MeasuredCase, MeasuredPhase, StepCounts
from placebench.record.folder import Status, resuming
from placebench.spec.devices import devices_per_node
from placebench.spec.phases import GEN, PHASE, PHASE_ORDER
from placebench.spec.workload import Workload, placed_workload

_TOKENS = "perf/total_num_tokens"
_COUNTS = {name: f"perf/{name}" for name in ("attention_length", "decode_steps", "decode_context_tokens")}


def calibrate_by(run: Run, sides: Sequence[RunSide]) -> CalibrationFile:
    """What the finished placements of a run measured.

    Raises:
        UsageError: none of them has a finished launch whose phases are known.
    """
    cases = tuple(case for side in sides if (case := measured_case(side)))
    record = run.record
    if not cases:
        if why := run.why_unreadable():
            raise UsageError(f"{run.folder.path}: it cannot be read: {why}")
        has_done = any(launch.status is Status.DONE for launch in run.launches)
        go_on = "" if has_done else f"go on with {resuming(run.folder.path)}, or "
        raise UsageError(f"{run.folder.path}: it has no finished launch with times of phases: {go_on}name another run")
    device = record.devices[0]
    return CalibrationFile(
        source=run.folder.path.name,
        hostname=_text(record.host.get("hostname")),
        cpu_model=_text(record.host.get("cpu_model")),
        cores=len(record.host.get("usable_cores", ())) or None,
        kind=device.kind,
        device=device.name,
        device_count=len(record.devices),
        nodes=len(devices_per_node(record.devices)),
        device_bytes=min(one.memory_bytes for one in record.devices),
        device_cores=len(device.cores),
        driver=_text(record.host.get("driver")),
        versions=record.versions,
        commit=_text((record.git or {}).get("commit")),
        workload={} if record.job else record.workload,
        command=record.command if record.job else (),
        cases=cases,
    )


def measured_case(side: RunSide) -> MeasuredCase | None:
    """What a placement measured; None where no launch of it is finished, or none tells what its phases took."""
    phases = tuple(_phases(side))
    steps = {number: seconds for number, seconds in side.by_round(STEP_TIME.key).items() if seconds > 0}
    if not phases or not steps:
        return None
    logs = np.log(list(steps.values()))
    loops = core_loops(side.run, side.launches)
    # Where no span says which phase comes next, what none of them took is a gap.
    gaps = [side.value(name) for name in ([GAP + name for name in side.keys(GAP)] or [UNATTRIBUTED.key])]
    return MeasuredCase(
        name=side.placement.name,
        workload=_placed(side),
        models=side.run.record.models,
        counts=_counts(side.launches),
        tokens=_tokens(side.launches),
        pools=len(side.placement.pools),
        step_s=side.value(STEP_TIME.key),
        gap_s=max(0.0, sum(gaps)) if gaps and isfinite(sum(gaps)) else None,
        core_loop_s=float(pd.concat(loops).mean()) if loops else None,
        launches=len(steps),
        launch_sd=stdev(logs) if len(logs) > 1 else None,
        round_steps=steps,
        phases=phases,
    )


def _placed(side: RunSide) -> dict[str, Any]:
    """The workload as the placement ran it; empty of a job of the user's."""
    try:
        workload = Workload.model_validate(side.run.record.workload)
    except ValidationError:
        return dict(side.run.record.workload)
    if side.run.record.job:
        return {}
    return placed_workload(workload, side.placement.placement).model_dump(mode="json")


def _phases(side: RunSide) -> Iterator[MeasuredPhase]:
    """Each phase from its first device's start to its last one's end, with what was traced of it."""
    traced = _traced(side.launches)
    rollout = side.run.record.workload.get("rollout", {})
    shared_by = side.placement.tensor_parallel or rollout.get("tensor_parallel_size", 1)
    names = {*side.keys(PATH), *side.keys(OFF_PATH)} or {*side.keys("phase/")}
    for name in (name for name in PHASE_ORDER if name in names):
        whole = [side.value(prefix + name) for prefix in (PATH, OFF_PATH) if name in side.keys(prefix)]
        seconds = sum(whole) if whole else side.value(phase_metric(name).key)
        # Where no span says who worked on it, it is as asked; placements that are the user's own may not say it.
        asked = side.placement.placement.roles.get(role) if (role := PHASE[name].role) else None
        pool, kernels = side.role_pool(name) or asked, traced.get(name)
        if not isfinite(seconds) or seconds < 0:
            continue  # no launch tells of it
        yield MeasuredPhase(
            name=name,
            devices=len(side.placement.pools[pool]) if pool else 0,
            tensor_parallel=shared_by if name == GEN else 1,
            seconds=seconds,
            kernel_s=kernels["kernel_s"] + kernels["copy_s"] if kernels else None,
            collective_s=kernels["collective_s"] if kernels else None,
        )


def _traced(launches: Sequence[Launch]) -> Mapping[str, Mapping[str, float]]:
    """What ran on the devices in the phases of the traced step, mean of devices and launches."""
    frames = [launch.kernels for launch in launches if len(launch.kernels)]
    if not frames:
        return {}
    means = pd.concat(frames).groupby("phase")[list(KERNEL_TIMES)].mean()
    return {str(phase): {str(key): float(value) for key, value in row.items()} for phase, row in means.iterrows()}


def _counts(launches: Sequence[Launch]) -> StepCounts | None:
    """What the sequences of a step were, mean of the measured steps; None where the job did not count them."""
    steps = _measured_steps(launches)
    wanted = {"tokens": _TOKENS, **_COUNTS}
    if steps.empty or not {*wanted.values()} <= {*steps.columns}:
        return None
    found = {name: float(steps[column].mean()) for name, column in wanted.items()}
    found["context_tokens"] = found.pop("decode_context_tokens")
    return StepCounts(**found) if all(value > 0 for value in found.values()) else None


def _tokens(launches: Sequence[Launch]) -> float | None:
    """The tokens of a step, mean of the measured steps; None where they were not counted."""
    steps = _measured_steps(launches)
    found = float(steps[_TOKENS].mean()) if _TOKENS in steps.columns else 0.0
    return found if found > 0 else None


def _measured_steps(launches: Sequence[Launch]) -> pd.DataFrame:
    return pd.concat([launch.steps[launch.steps.index > launch.last_warmup_step] for launch in launches])


def _text(value: object) -> str | None:
    """A fact that is a text; None for what an older version, or nobody, has recorded otherwise."""
    return value if isinstance(value, str) else None
