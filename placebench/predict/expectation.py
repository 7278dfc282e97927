"""How long a run will take: from an earlier run of the same work where there is one, else by arithmetic."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from placebench.predict.peaks import CORE_FLOPS, device_peak
from placebench.record.folder import Status
from placebench.record.run_file import RunFile
from placebench.spec.devices import Device
from placebench.spec.phases import PHASES
from placebench.spec.placement import Role
from placebench.spec.shapes import JobShapes
from placebench.spec.workload import Workload

# What training jobs of this kind reach of a peak, and the peak of a GPU that is not known; both rough.
_GPU_SHARE = 0.2
_UNKNOWN_GPU_PEAK = 100e12
_START_S = 15.0


@dataclass(frozen=True)
class Expectation:
    """Expected duration of a run."""

    seconds: float
    """Seconds of all launches together."""
    source: str
    """Where the figure comes from, in words."""


def expect_from_runs(
    out: Path, work: Mapping[str, Any], steps: int, devices: Sequence[Device], placements: Sequence[str]
) -> Expectation | None:
    """The duration by the newest finished run of the same work; None when there is none under `out`.

    Seed and number of steps may differ; the step count scales the part of a launch that is steps.

    Args:
        out: folder of the runs.
        work: what a launch does, as `RunFile.work` says it.
        steps: of a launch.
        devices: all that the run may use.
        placements: names of the placements of the launches to come, one entry a launch.
    """
    for path in sorted(out.glob("*/run.json"), reverse=True):
        launches = _comparable_launches(path, work, steps, devices)
        seconds = {name: fmean(one for placement, one in launches if placement == name) for name, _ in launches}
        if seconds.keys() >= set(placements):
            return Expectation(sum(seconds[name] for name in placements), f"as in {path.parent.name}")
    return None


def _comparable_launches(
    path: Path, work: Mapping[str, Any], steps: int, devices: Sequence[Device]
) -> list[tuple[str, float]]:
    """Placement and expected seconds of every finished launch of a run, if it did the same work."""
    try:
        run = RunFile.read(path)
        if _same(run.work) != _same(work) or _which(run.devices) != _which(devices):
            return []
        longer = steps / run.steps
        return [
            (launch.placement, launch.wall.total_s + (longer - 1) * launch.wall.steps_s)
            for launch in run.launches
            if launch.status is Status.DONE and launch.wall.steps_s is not None
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []  # a run of another version, or a damaged one, says nothing about this one


def _which(devices: Sequence[Device]) -> list[Device]:
    """Devices without their memory, of which an earlier version or driver may say another size."""
    return [replace(device, memory_bytes=0) for device in devices]


def _same(work: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same for launches to take as long."""
    parts = work.get("job", work)
    return {key: value for key, value in parts.items() if key not in ("seed", "steps", "warmup_steps", "placements")}


def step_flops(workload: Workload, shapes: JobShapes) -> float:
    """Floating-point operations of one step over all devices.

    2N a token for a forward pass and 6N for one with its backward pass, N parameters (Kaplan et al. 2020,
    arXiv:2001.08361, section 2.1), of every phase that passes over the sequences; attention's own products and
    recomputation are left out. Nothing of a critic where none is trained, nor of a reward that is a function.
    """
    batch, algorithm = workload.batch, workload.algorithm
    tokens = batch.size * (batch.max_prompt_length + batch.max_response_length)
    actor = shapes.actor.parameters
    parameters = {
        Role.ACTOR: actor,
        Role.ROLLOUT: actor,
        Role.REF: actor,
        Role.CRITIC: shapes.critic.critic_parameters if algorithm.has_critic else 0,
        Role.REWARD: shapes.reward.critic_parameters if shapes.reward else 0,
    }
    passed = sum(
        phase.activity.passes * (algorithm.epochs if phase.trains else 1) * parameters[phase.role]
        for phase in PHASES
        if phase.role
    )
    return float(tokens * 2 * passed)


def expect_from_steps(seconds: Sequence[float], steps: int, source: str) -> Expectation:
    """The duration of launches by the predicted step of each, seconds, and how many steps they have."""
    return Expectation(sum(_START_S + steps * one for one in seconds), source)


def expect_from_arithmetic(
    workload: Workload, shapes: JobShapes, devices: Sequence[Device], launches: int
) -> Expectation:
    """The duration of so many launches by counting operations: right within a factor of a few."""
    seconds = workload.steps * step_flops(workload, shapes) / reachable_flops(devices)
    return Expectation(launches * (_START_S + seconds), "rough, from the number of operations")


def reachable_flops(devices: Sequence[Device]) -> float:
    """FLOP/s that the devices together are taken to reach; see the constants above."""
    cores = {core for device in devices for core in device.cores}
    gpus = [device_peak(device.name) for device in devices if device.kind == "gpu"]
    return CORE_FLOPS * len(cores) + _GPU_SHARE * sum(peak.flops if peak else _UNKNOWN_GPU_PEAK for peak in gpus)
