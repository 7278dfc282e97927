"""The workload as one placement runs it: what a placement says over the workload's own keys."""

from placebench.spec.placement import Placement, Scaling
from placebench.spec.workload import Workload


def placed_workload(workload: Workload, placement: Placement) -> Workload:
    """The workload that a launch of the placement trains.

    Devices that are replicas each hold whole models. Under weak scaling the workload's batch is what one device works
    on, so that batch and mini-batch grow with the devices; otherwise the workload stays what it is.
    """
    changes: dict[str, object] = {}
    if placement.tensor_parallel is not None:
        shared = {"tensor_parallel_size": placement.tensor_parallel}
        changes["rollout"] = workload.rollout.model_copy(update=shared)
    if placement.scaling is not None:
        changes["sharding"] = "replicate"
    if placement.scaling is Scaling.WEAK:
        batch, devices = workload.batch, placement.size
        larger = {"size": batch.size * devices, "mini_batch_size": batch.mini_batch_size * devices}
        changes["batch"] = batch.model_copy(update=larger)
    return workload.model_copy(update=changes)
