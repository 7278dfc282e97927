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
    out: Path, work: Mapping[str, Any], launches: Sequence[tuple[str, int]], devices: Sequence[Device]
) -> Expectation | None:
    """The duration by the newest finished run of the same work; None when there is none under `out`.

    Seed and number of steps may differ; the step count scales the part of a launch that is steps.

    Args:
        out: folder of the runs.
        work: what a launch does, as `RunFile.work` says it.
        launches: those to come: the placement's name, and how many steps are run.
        devices: all that the run may use.
    """
    for path in sorted(out.glob("*/run.json"), reverse=True):
        known: dict[str, list[_Costs]] = {}
        for name, costs in _comparable_launches(path, work, devices):
            known.setdefault(name, []).append(costs)
        if known.keys() >= {name for name, _ in launches}:
            seconds = sum(fmean(one.of(steps) for one in known[name]) for name, steps in launches)
            return Expectation(seconds, f"as in {path.parent.name}")
    return None


@dataclass(frozen=True)
class _Costs:
    """Where the seconds of a finished launch went."""

    around: float
    """Before and after its steps."""
    step: float
    """In one of them."""

    def of(self, steps: int) -> float:
        """Seconds of a launch of so many steps."""
        return self.around + steps * self.step


def _comparable_launches(path: Path, work: Mapping[str, Any], devices: Sequence[Device]) -> list[tuple[str, _Costs]]:
    """Placement and costs of every finished launch of a run, if it did the same work."""
    try:
        run = RunFile.read(path)
        if _same(run.work) != _same(work) or _which(run.devices) != _which(devices):
            return []
        # With `--rounds auto` later rounds may have other steps than the first, and a checkpoint's are not run again.
        return [
            (launch.placement, _Costs(wall.total_s - wall.steps_s, wall.steps_s / steps))
            for launch in run.launches
            if launch.status is Status.DONE
            and (wall := launch.wall).steps_s is not None
            and (steps := run.steps_in(launch.round) - run.steps_before) > 0
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


def expect_from_steps(launches: Sequence[tuple[float, int]], source: str) -> Expectation:
    """The duration of launches by the predicted step of each, seconds, and how many are run."""
    return Expectation(sum(_START_S + steps * seconds for seconds, steps in launches), source)


def expect_from_arithmetic(
    workload: Workload, shapes: JobShapes, devices: Sequence[Device], steps: Sequence[int]
) -> Expectation:
    """The duration of launches of so many steps each by counting operations: right within a factor of a few."""
    a_step = step_flops(workload, shapes) / reachable_flops(devices)
    return Expectation(len(steps) * _START_S + sum(steps) * a_step, "rough, from the number of operations")


def reachable_flops(devices: Sequence[Device]) -> float:
    """FLOP/s that the devices together are taken to reach; see the constants above."""
    cores = {core for device in devices for core in device.cores}
    gpus = [device_peak(device.name) for device in devices if device.kind == "gpu"]
    return CORE_FLOPS * len(cores) + _GPU_SHARE * sum(peak.flops if peak else _UNKNOWN_GPU_PEAK for peak in gpus)
