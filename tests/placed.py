"""Placements on made-up devices."""

from collections.abc import Mapping, Sequence

from placebench.record.parts import PlacementRecord
from placebench.spec.bound import RunPlacement
from placebench.spec.devices import Device
from placebench.spec.placement import Overlap, Role


def devices_of(nodes: Sequence[int]) -> list[Device]:
    """As many GPUs as each node has."""
    return [
        Device(f"GPU-{node}-{index}", "gpu", index, f"node{node}", "NVIDIA H200", 141 << 30)
        for node, count in enumerate(nodes)
        for index in range(count)
    ]


def run_placement(
    name: str, pools: Mapping[str, Sequence[str]], roles: Mapping[str, str], overlap: str = "all", staleness: int = 0
) -> RunPlacement:
    """A placement of these pools of devices by id, all of one node; roles that are left out live with the rollout."""
    others = roles.get(Role.ROLLOUT, next(iter(pools)))
    record = PlacementRecord(
        name=name,
        roles={role: roles.get(role, others) for role in Role},
        overlap=Overlap(overlap),
        staleness=staleness,
        pools={pool: tuple(devices) for pool, devices in pools.items()},
    )
    ids = [device for devices in pools.values() for device in devices]
    return record.bound_to([Device(one, "gpu", index, "here", "GPU", 1 << 30) for index, one in enumerate(ids)])
