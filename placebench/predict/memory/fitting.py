"""Whether placements fit into their devices' memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from placebench.predict.memory.engine import EngineMemory
from placebench.predict.memory.estimate import MemoryEstimate
from placebench.spec.bound import RunPlacement
from placebench.spec.devices import Device
from placebench.spec.placement import Placement, Role
from placebench.spec.shapes import JobShapes
from placebench.spec.text import format_bytes
from placebench.spec.workload import Workload, keys_below, placed_workload

MEMORY_KEYS = frozenset(
    (
        "model", "critic_model", "reward_model", "precision", "sharding", "activation_checkpointing", "torch_compile",
        *keys_below("batch"), "rollout.backend", "rollout.ignore_eos", "rollout.response_lengths",
        "rollout.tensor_parallel_size", "rollout.memory_share", "rollout.sleep", "algorithm.name", "data.source",
        "data.fill_prompts",
    )
)  # fmt: skip
"""Dotted keys of the workload on which the memory depends, by the estimate or by what they preset."""


@dataclass(frozen=True)
class Shortfall:
    """A pool's device, or all CPU devices of a node, that need more memory than they may."""

    pool: str
    """The pool, or on CPU the one whose devices need most."""
    place: str
    """Id of the smallest device, or name of the node."""
    estimate: MemoryEstimate
    """Estimated memory of each device of the pool."""
    need: int
    """Bytes needed in the place."""
    have: int
    """Bytes that the place has."""

    def __str__(self) -> str:
        """What is needed where, with its parts."""
        each, what = f"each device of {self.pool}", describe_memory(self.estimate)
        if self.need != self.estimate.peak:
            total = f"about {format_bytes(self.need)} on {self.place}"
            return f"{each} needs {what}, all together {total}, and there are {format_bytes(self.have)}"
        return f"{each} needs about {what} and {self.place} has {format_bytes(self.have)}"


def describe_memory(estimate: MemoryEstimate) -> str:
    """The peak, when it is reached, and what it consists of, parts below 1 MiB left out."""
    parts = ", ".join(f"{part} {format_bytes(size)}" for part, size in estimate.parts.items() if size >= 1 << 20)
    return f"{format_bytes(estimate.peak)} in {estimate.moment.split()[0]} ({parts})"


def pool_estimates(workload: Workload, shapes: JobShapes, bound: RunPlacement) -> dict[str, MemoryEstimate]:
    """Estimated memory of each device by pool."""
    workload = placed_workload(workload, bound.placement)
    return {
        pool: MemoryEstimate(
            workload,
            shapes.actor,
            shapes.critic,
            bound.placement.roles_in(pool),
            len(devices),
            devices[0].kind,
            shapes.reward,
            min(device.memory_bytes for device in devices),
        )
        for pool, devices in bound.members.items()
    }


def engine_memory(
    workload: Workload, shapes: JobShapes, placement: Placement, devices: Sequence[Device]
) -> EngineMemory | None:
    """What an engine of a placement takes of each of the devices that may be its own; None where torch generates."""
    if workload.rollout.backend == "torch":
        return None
    ranks = placement.pool_of(Role.ROLLOUT).size
    placed = placed_workload(workload, placement)
    least_bytes = min(device.memory_bytes for device in devices)
    return EngineMemory(placed, shapes.actor, ranks, devices[0].kind, least_bytes)


def shortfalls(
    workload: Workload, shapes: JobShapes, bound: RunPlacement, devices: Sequence[Device], share: float = 1.0
) -> Iterator[Shortfall]:
    """Where a placement needs more than a share of the memory: of a GPU its own, of CPU devices their node's.

    A node's memory is that of all `devices` of the run on it.
    """
    estimates = pool_estimates(workload, shapes, bound)
    for pool, estimate in estimates.items():
        device = min(bound.members[pool], key=lambda device: device.memory_bytes)
        if device.kind == "gpu" and estimate.peak > share * device.memory_bytes:
            yield Shortfall(pool, device.id, estimate, estimate.peak, device.memory_bytes)
    for node in dict.fromkeys(device.node for device in devices if device.kind == "cpu"):
        need = sum(
            estimate.peak * sum(device.node == node for device in bound.members[pool])
            for pool, estimate in estimates.items()
        )
        have = sum(device.memory_bytes for device in devices if device.node == node)
        if need > share * have:
            pool = max(estimates, key=lambda pool: estimates[pool].peak)
            yield Shortfall(pool, node, estimates[pool], need, have)


def fits(workload: Workload, shapes: JobShapes, bound: RunPlacement, devices: Sequence[Device]) -> bool:
    """Whether nothing of a placement needs more memory than it may, and its engines have enough to generate."""
    rollout = bound.members[bound.placement.roles[Role.ROLLOUT]]
    engine = engine_memory(workload, shapes, bound.placement, rollout)
    return not (engine and engine.is_starved) and next(shortfalls(workload, shapes, bound, devices), None) is None
