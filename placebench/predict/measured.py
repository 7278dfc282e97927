"""The phases that calibrations have measured, each with the work that it did and what the work consists of."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf

from placebench.predict.kernels import engine_kernels
from placebench.predict.memory.engine import engine_room
from placebench.predict.parts import PhaseParts, parts_of
from placebench.predict.peaks import DevicePeak, cpu_peak, device_peak
from placebench.predict.work import RankWork, phase_work, workload_of_case
from placebench.record.calibration_file import CalibrationFile, MeasuredCase, MeasuredPhase
from placebench.spec.phases import GEN, PHASE
from placebench.spec.shapes import JobShapes
from placebench.spec.workload import Workload


@dataclass(frozen=True)
class Measured:
    """A phase of a calibration, with the work it did."""

    phase: MeasuredPhase
    work: RankWork | None
    """None where that is not known."""
    parts: PhaseParts | None
    """Those of the work, on the cores that it was measured on; likewise."""
    is_same: bool
    """Whether it is the work that is asked for."""
    is_of_launch: bool
    """Whether it was part of a launch's steps; else a benchmark's."""
    is_of_device: bool
    """Whether it ran on devices like those that are asked about."""
    is_shipped: bool
    """Whether it comes with placebench, measured on another host than whatever is asked about."""
    crosses: bool
    """Whether its devices were of several nodes."""
    cores_took: float
    """How many times as long the host's cores took for anything as on average over all that was measured."""


def measured_phases(
    file: CalibrationFile,
    *,
    is_of_device: bool,
    is_shipped: bool,
    is_same: Callable[[MeasuredCase], bool],
    cores_took: Callable[[MeasuredCase], float],
) -> Iterator[Measured]:
    """The phases of a calibration of which it is known on how many devices they ran.

    Args:
        file: the calibration.
        is_of_device: whether it is of devices like those that are asked about.
        is_shipped: whether it is one of the calibrations that are shipped.
        is_same: whether a case is of the work that is asked about.
        cores_took: how many times as long the cores took, while a case was measured, as on average.
    """
    peak = device_peak(file.device) if file.kind == "gpu" else cpu_peak(file.device_cores)
    for case in file.cases:
        is_of_launch = case.step_s is not None
        # A benchmark's time is no launch's, though the work was the same.
        is_asked = is_same(case) and is_of_launch and is_of_device
        workload, times = workload_of_case(case), cores_took(case)
        for phase in case.phases:
            if phase.name in PHASE and tells_devices(case, phase):
                nodes = file.nodes if phase.devices > file.device_count // file.nodes else 1
                work = _work_of(case, phase, nodes, workload, file) if peak else None
                parts = _parts_of(case, phase, work, peak, file).on_cores(times) if work and peak else None
                yield Measured(phase, work, parts, is_asked, is_of_launch, is_of_device, is_shipped, nodes > 1, times)


def tells_devices(case: MeasuredCase, phase: MeasuredPhase) -> bool:
    """Whether it is known on how many devices a phase ran: of placements that are the user's own, it may not be."""
    return bool(case.workload or phase.devices or PHASE[phase.name].role is None)


def engine_size(phase: MeasuredPhase) -> int:
    """Devices that share an engine, where the phase is of engines; older files have it of every phase."""
    return phase.tensor_parallel if phase.name == GEN else 1


def sequences_at_once(
    name: str, workload: Workload, shapes: JobShapes, devices: int, shared_by: int, device_bytes: int
) -> float:
    """Sequences that an engine generates at a time: where it has a share of the memory, those it has room for."""
    if name != GEN or workload.rollout.memory_share is None:
        return inf
    return engine_room(workload, shapes.actor, devices, shared_by, device_bytes)


def _work_of(
    case: MeasuredCase, phase: MeasuredPhase, nodes: int, workload: Workload | None, file: CalibrationFile
) -> RankWork | None:
    if workload is None or case.models is None:
        return None
    shared_by = engine_size(phase)
    return phase_work(
        phase.name,
        workload,
        case.models,
        phase.devices,
        tensor_parallel=shared_by,
        nodes=nodes,
        counts=case.counts,
        at_once=sequences_at_once(phase.name, workload, case.models, phase.devices, shared_by, file.device_bytes),
    )


def _parts_of(
    case: MeasuredCase, phase: MeasuredPhase, work: RankWork, peak: DevicePeak, file: CalibrationFile
) -> PhaseParts:
    assert case.models is not None
    is_function = phase.name == "reward" and case.models.reward is None
    engine = engine_kernels(case.models.actor, file.device, peak, engine_size(phase))
    return parts_of(work, peak, engine, is_function=is_function)
