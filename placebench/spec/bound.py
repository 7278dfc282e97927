"""A placement on the devices of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placebench.spec.devices import Device, by_node
from placebench.spec.placement import Placement


@dataclass(frozen=True)
class BoundPlacement:
    """A placement whose pools have their devices.

    Attributes:
        placement: the placement.
        devices: the devices of each pool, in order of rank.
    """

    placement: Placement
    devices: Mapping[str, tuple[Device, ...]]

    @property
    def name(self) -> str:
        """The placement's name."""
        return self.placement.name

    def to_dict(self) -> dict[str, Any]:
        """The placement as an object of `launch.json` and `run.json`, devices by id."""
        pools = {pool: [device.id for device in devices] for pool, devices in self.devices.items()}
        return self.placement.record() | {"pools": pools}


def bind(placement: Placement, devices: Sequence[Device]) -> BoundPlacement:
    """Give the pools their devices: on each node in order, pool after pool."""
    free = [list(group) for group in by_node(devices)]
    bound: dict[str, tuple[Device, ...]] = {}
    for pool in placement.pools:
        taken: list[Device] = []
        for node, count in enumerate(pool.counts):
            taken += free[node][:count]
            free[node] = free[node][count:]
        bound[pool.name] = tuple(taken)
    return BoundPlacement(placement, bound)
