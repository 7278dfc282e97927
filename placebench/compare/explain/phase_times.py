"""What the finished placements of a run tell of the step under others."""

from collections.abc import Sequence

from placebench.compare.measure.calibrating import calibrate_by, measured_case
from placebench.compare.measure.placements import RunSide
from placebench.predict.phases import PhaseModel
from placebench.predict.step import StepModel
from placebench.spec.devices import devices_per_node
from placebench.spec.workload import Workload


def step_model(sides: Sequence[RunSide], workload: Workload | None, *, of_replicas: bool = False) -> StepModel | None:
    """Learn from the finished placements of a run of a workload, None of a job of the user's; None where none tells.

    Replicas tell of other replicas alone: their devices keep whole models, so that their phases are others.
    """
    known = [side for side in sides if bool(side.placement.scaling) is of_replicas and measured_case(side)]
    if not known:
        return None
    if of_replicas and workload:
        workload = workload.model_copy(update={"sharding": "replicate"})
    run = known[0].run
    devices = run.record.devices
    calibration, per_node = calibrate_by(run, known), max(devices_per_node(devices))
    return StepModel(PhaseModel(workload, run.record.models, (calibration,), devices[0], per_node), devices)
