"""What the phases of a step take on any number of devices, from what was measured.

In this order: what was measured of the same work on as many devices; of the same work on other numbers, by what its
kernels and the rest of it take, or without a trace of kernels and with several numbers measured by a + b/n (Amdahl
1967), fitted with neither a nor b below 0; else by the parts of `predict.parts`, scaled to all that was measured, and
corrected by what was measured of nearly the same work on as many devices (`predict.nearby`). What is shipped counts as
the same work only where no run has it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from math import inf, isnan, log, nan
from statistics import fmean
from typing import Any

import numpy as np

from placebench.predict.amdahl import amdahl_seconds
from placebench.predict.estimating import Observation, estimate_factors
from placebench.predict.gaps import StepGaps, step_gaps
from placebench.predict.kernels import engine_kernels
from placebench.predict.known import is_shipped
from placebench.predict.measured import Measured, engine_size, measured_phases, sequences_at_once
from placebench.predict.nearby import Neighbor, correction, distance
from placebench.predict.parts import CPU_SPREAD, Array, PhaseParts, factors_of, parts_of, split
from placebench.predict.peaks import DevicePeak, cpu_peak, device_peak
from placebench.predict.work import RankWork, counted, phase_shape, phase_work, workload_of_case
from placebench.record.calibration_file import CalibrationFile, MeasuredCase, MeasuredPhase, StepCounts
from placebench.spec.devices import Device
from placebench.spec.phases import GEN, HAND_OVER, PHASE, Activity
from placebench.spec.placement import Role
from placebench.spec.shapes import JobShapes, ModelShape
from placebench.spec.workload import Workload

# What of the workload a phase of a step does not depend on, or depends on by its placement.
_FREE_KEYS = {"seed", "steps", "warmup_steps", "trace_kernels", "optimizer"}


class Basis(StrEnum):
    """What the time of a phase rests on."""

    MEASURED = "measured"
    """This work on as many devices."""
    SCALED = "scaled"
    """This work on other numbers of devices."""
    MODELLED = "modelled"
    """Other work."""


@dataclass(frozen=True)
class PhaseSeconds:
    """What a phase takes, in seconds; the first three are NaN where neither a trace nor a model tells them."""

    kernels: float
    """With a kernel running that computes."""
    exposed: float
    """With collectives alone."""
    host: float
    """With nothing on the devices."""
    total: float
    """From its first device's start to its last one's end."""
    basis: Basis


def _work(workload: Workload) -> dict[str, Any]:
    """What decides over the work of each phase of a step: losses and their weights do not."""
    content = workload.model_dump(exclude=_FREE_KEYS)
    content["rollout"].pop("tensor_parallel_size")
    content["algorithm"] = workload.algorithm.epochs, workload.algorithm.has_critic
    return content


@dataclass
class PhaseModel:
    """Times of the phases of one workload.

    Args:
        workload: the job, as its placement runs it; None for a job of the user's, of which nothing but itself is known.
        shapes: of its models; None where they are not known.
        calibrations: what was measured.
        device: one of those that are asked about. Where its peak is not known, only what was measured of the same work
            can be scaled.
        per_node: devices of a node.
        core_loop_s: CPU time of the sampler's loop on the cores that are asked about (`telemetry.core_pace`); None for
            those that were measured, on average.
    """

    workload: Workload | None
    shapes: JobShapes | None
    calibrations: Sequence[CalibrationFile]
    device: Device
    per_node: int = 8
    core_loop_s: float | None = None
    _known: dict[tuple[str, int, int, int], PhaseSeconds] = field(default_factory=dict, repr=False)
    _factors: dict[tuple[str, ModelShape | None, bool], Array] = field(default_factory=dict, repr=False)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The phases of a step, in order: those measured of this work, else those that the workload has."""
        measured = {name for name, found in self._all.items() if any(one.is_same for one in found)}
        hands_over = {*HAND_OVER} if self._sleeps else set()
        return tuple(
            name
            for name, phase in PHASE.items()
            if (
                name in measured | hands_over
                if measured
                else (phase.activity is not Activity.HAND_OVER or name in hands_over)
                and (phase.role is not Role.CRITIC or self.workload is None or self.workload.algorithm.has_critic)
            )
        )

    @cached_property
    def has_sizes(self) -> bool:
        """Whether any phase of this work was measured on more than one number of devices."""
        return any(len(self.measured_sizes(name)) > 1 for name in self.names)

    @property
    def can_scale(self) -> bool:
        """Whether what was measured tells how phases scale: on several numbers of devices, or by traced kernels."""
        return self.has_sizes or (self.peak is not None and any(file.is_traced for file in self.calibrations))

    def measured_sizes(self, name: str) -> frozenset[int]:
        """The numbers of devices on which a phase of this work was measured."""
        return frozenset(one.phase.devices for one in self._all.get(name, ()) if one.is_same)

    @cached_property
    def peak(self) -> DevicePeak | None:
        """What the device can do at best; None where that is not known."""
        return device_peak(self.device.name) if self.device.kind == "gpu" else cpu_peak(len(self.device.cores))

    @property
    def is_gpu(self) -> bool:
        """Whether the devices are GPUs."""
        return self.device.kind == "gpu"

    @property
    def _sleeps(self) -> bool:
        if self.workload is None or not self.is_gpu:
            return False
        return self.workload.rollout.backend == "vllm" and self.workload.rollout.sleep

    def seconds(
        self, phase_name: str, devices: int, *, nodes: int | None = None, tensor_parallel: int = 1
    ) -> PhaseSeconds:
        """What a phase takes on a pool of so many devices.

        Args:
            phase_name: of `names`.
            devices: of its pool; anything for the controller's own phases.
            nodes: on which these are, and those that they send to; None for as few as hold so many.
            tensor_parallel: devices that share an engine.
        """
        key = self._key(phase_name, devices, nodes, tensor_parallel)
        if key not in self._known:
            self._known[key] = self._find(*key)
        return self._known[key]

    def _key(self, name: str, devices: int, nodes: int | None, shared_by: int) -> tuple[str, int, int, int]:
        devices = 0 if PHASE[name].role is None else devices
        nodes = max(1, -(-devices // self.per_node)) if nodes is None or not devices else nodes
        return name, devices, nodes, shared_by if name == GEN else 1

    def _find(self, name: str, devices: int, nodes: int, shared_by: int) -> PhaseSeconds:
        same = [one for one in self._measured(name) if one.is_same and engine_size(one.phase) == shared_by]
        # What is shipped was measured on another host: what a run has of the same work goes before it.
        same = [one for one in same if not one.is_shipped] or same
        alike = [one for one in same if one.crosses == (nodes > 1)]
        if exact := [one for one in alike if one.phase.devices == devices]:
            return _mean([self._on_cores(name, one) for one in exact])
        is_traced = any(one.phase.kernel_s is not None for one in alike)
        sizes = {one.phase.devices for one in alike}
        if not is_traced and len(sizes) > 1:
            return _amdahl(alike, devices)
        if (work := self._work(name, devices, nodes, shared_by)) is None:
            if not same:
                raise LookupError(name)
            return _amdahl(alike or same, devices)
        parts = self._parts_of(work)
        found = split(parts, self._scaled(name, of_same=bool(same)))
        by, basis = (1.0, Basis.SCALED) if same else (self._correction(name, work, parts.names), Basis.MODELLED)
        return PhaseSeconds(by * found.kernels, by * found.exposed, by * found.host, by * found.total, basis)

    def _on_cores(self, name: str, one: Measured) -> MeasuredPhase:
        """What was measured; where cores are asked about, what it would have been on them, as its parts would be."""
        if self.core_loop_s is None or one.parts is None:
            return one.phase
        times = self._cores_take / one.cores_took
        factors = self._scaled(name, of_same=True)
        there, here = (split(parts, factors).total for parts in (one.parts, one.parts.on_cores(times)))
        return one.phase.model_copy(update={"seconds": one.phase.seconds * here / there}) if there else one.phase

    def _correction(self, name: str, work: RankWork, names: tuple[str, ...]) -> float:
        """What launches of nearly this work say of what the formulas give."""
        factors = self._scaled(name, of_same=False)
        return correction(
            Neighbor(apart, log(one.phase.seconds / total))
            for one in self._measured(name)
            if one.is_of_launch and one.is_of_device and one.work and one.parts and one.phase.seconds > 0
            if (apart := distance(work, one.work)) < inf
            if one.parts.names == names and (total := split(one.parts, factors).total) > 0
        )

    def host_share(self, phase_name: str, devices: int, *, nodes: int | None = None, tensor_parallel: int = 1) -> float:
        """Share of a phase with nothing on the devices: as traced, else by its parts; NaN where nothing tells them."""
        found = self.seconds(phase_name, devices, nodes=nodes, tensor_parallel=tensor_parallel)
        host, total = found.host, found.total
        key = self._key(phase_name, devices, nodes, tensor_parallel)
        if isnan(host) and (work := self._work(*key)) is not None:
            is_same = any(one.is_same for one in self._measured(phase_name))
            modelled = split(self._parts_of(work), self._scaled(phase_name, of_same=is_same))
            host, total = modelled.host, modelled.total
        return float(host / total) if total else 0.0

    def _scaled(self, name: str, *, of_same: bool) -> Array:
        """The factors of a phase's parts: by the same work alone where some was measured, else by all like phases."""
        function = self._is_function(name)
        shape = phase_shape(PHASE[name], self.shapes) if self.shapes else None
        kind = name if of_same or function or name in HAND_OVER else str(PHASE[name].activity)
        key = (kind, shape, of_same)
        if key not in self._factors:
            beliefs = factors_of(PHASE[name].activity, is_function=function)
            alike = (name,) if of_same else self._alike(name)
            measured = [one for other in alike for one in self._measured(other) if one.is_same or not of_same]
            spread = 0.0 if self.is_gpu else CPU_SPREAD
            self._factors[key] = estimate_factors(beliefs, _observations(measured, tuple(beliefs), shape), spread)
        return self._factors[key]

    def _alike(self, name: str) -> tuple[str, ...]:
        """The phases that do the same kind of work, itself among them; a hand-over is like no other."""
        if name in HAND_OVER:
            return (name,)
        kind = (PHASE[name].activity, self._is_function(name))
        return tuple(other for other in PHASE if (PHASE[other].activity, self._is_function(other)) == kind)

    def _is_function(self, name: str) -> bool:
        return name == "reward" and (self.shapes is None or self.shapes.reward is None)

    def _measured(self, name: str) -> Iterator[Measured]:
        yield from self._all.get(name, ())

    @cached_property
    def _all(self) -> Mapping[str, list[Measured]]:
        """All that was measured, by phase."""
        found: dict[str, list[Measured]] = {}
        for file in self.calibrations:
            of_device = self._is_of_device(file)
            phases = measured_phases(
                file,
                is_of_device=of_device,
                is_shipped=is_shipped(file),
                is_same=self.is_same,
                cores_took=self._cores_took,
            )
            for one in phases:
                found.setdefault(one.phase.name, []).append(one)
        return found

    def _cores_took(self, case: MeasuredCase) -> float:
        """How many times as long cores took while a case was measured as on average; 1 where nothing tells."""
        return case.core_loop_s / self._loop_s if case.core_loop_s and self._loop_s else 1.0

    @property
    def _cores_take(self) -> float:
        """How many times as long the cores that are asked about take."""
        return self.core_loop_s / self._loop_s if self.core_loop_s and self._loop_s else 1.0

    @cached_property
    def _loop_s(self) -> float | None:
        """The loop's time, mean of the cases; None where no Python, or several, had measured it.

        And None on CPU devices, whose cores do all of the work, each placement's own share of it.
        """
        loops = [
            (_minor(file.versions.get("python")), case.core_loop_s)
            for file in self.calibrations
            for case in file.cases
            if case.core_loop_s and file.kind == "gpu"
        ]
        if len({python for python, _ in loops}) != 1:
            return None
        return fmean(seconds for _, seconds in loops)

    def _is_of_device(self, file: CalibrationFile) -> bool:
        """Whether devices like those that are asked about were measured."""
        cores = len(self.device.cores)
        return file.device == self.device.name and (self.is_gpu or not file.device_cores or file.device_cores == cores)

    def is_same(self, case: MeasuredCase) -> bool:
        """Whether a case is of the work that is asked about, on whatever devices."""
        workload = workload_of_case(case)
        if workload is None or self.workload is None:
            return workload is None and self.workload is None
        return _work(workload) == _work(self.workload)

    @cached_property
    def counts(self) -> StepCounts | None:
        """What the sequences of a step are, as counted of this work or of one with as long ones; None without."""
        return counted(self.workload, *self._cases)

    @property
    def step_tokens(self) -> float | None:
        """The tokens of a step of this work; None where nobody counted."""
        if self.counts:
            return self.counts.tokens
        return next((case.tokens for case in self._cases[0] if case.tokens), None)

    @cached_property
    def gaps(self) -> StepGaps:
        """What a step takes beside its phases."""
        return step_gaps(*self._cases, self.workload.batch.size if self.workload else 0)

    @cached_property
    def _cases(self) -> tuple[list[MeasuredCase], list[MeasuredCase]]:
        """The cases of this work, shipped ones only where no other is there, and those of other work."""
        same, shipped, others = list[MeasuredCase](), list[MeasuredCase](), list[MeasuredCase]()
        for file in self.calibrations:
            of_same = shipped if is_shipped(file) else same
            for case in file.cases:
                (of_same if self.is_same(case) else others).append(case)
        return same or shipped, others

    @property
    def same_cases(self) -> Sequence[MeasuredCase]:
        """The cases of this work that its times are made of."""
        return self._cases[0]

    def _work(self, name: str, devices: int, nodes: int, shared_by: int) -> RankWork | None:
        """What a phase has to do; None where that is not known, or not what its devices can do at best."""
        if self.peak is None or self.shapes is None or self.workload is None:
            return None
        return phase_work(
            name,
            self.workload,
            self.shapes,
            devices,
            tensor_parallel=shared_by,
            nodes=nodes,
            counts=self.counts,
            at_once=sequences_at_once(name, self.workload, self.shapes, devices, shared_by, self.device.memory_bytes),
        )

    def _parts_of(self, work: RankWork) -> PhaseParts:
        assert self.shapes is not None
        assert self.peak is not None
        engine = engine_kernels(self.shapes.actor, self.device.name, self.peak, work.shared_by)
        parts = parts_of(work, self.peak, engine, is_function=self._is_function(work.phase.name))
        return parts.on_cores(self._cores_take)


def _minor(version: str | None) -> str:
    """Of a version, what decides how fast a loop is."""
    return ".".join((version or "").split(".")[:2])


def _mean(phases: Sequence[MeasuredPhase]) -> PhaseSeconds:
    """The mean of what was measured; kernels and collectives of those that were traced."""
    total = float(np.mean([one.seconds for one in phases]))
    traced = [one for one in phases if one.kernel_s is not None]
    if not traced:
        return PhaseSeconds(nan, nan, nan, total, Basis.MEASURED)
    kernels = float(np.mean([one.kernel_s or 0.0 for one in traced]))
    exposed = float(np.mean([one.collective_s or 0.0 for one in traced]))
    host = max(0.0, total - kernels - exposed)
    return PhaseSeconds(min(kernels, total), min(exposed, total), host, total, Basis.MEASURED)


def _amdahl(phases: Sequence[Measured], devices: int) -> PhaseSeconds:
    total = amdahl_seconds([(one.phase.devices, one.phase.seconds) for one in phases], devices)
    return PhaseSeconds(nan, nan, nan, total, Basis.SCALED)


def _observations(measured: Sequence[Measured], parts: tuple[str, ...], shape: ModelShape | None) -> list[Observation]:
    """What measured phases that have these parts tell of them, those of a model of this shape above all."""
    # A launch has processes beside it that hold its host up; where launches tell of it, a benchmark does not.
    has_launches = any(one.is_of_launch for one in measured)
    return [
        Observation(
            one.parts,
            one.phase.seconds if one.is_of_launch or not has_launches else None,
            one.phase.kernel_s,
            one.phase.collective_s,
            one.work.shape == shape,
        )
        for one in measured
        # What a function judged has other parts than what a model judges.
        if one.work and one.parts and one.parts.names == parts and one.phase.seconds > 0
    ]
