"""A placement on the devices of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from placebench.spec.devices import Device, by_node
from placebench.spec.placement import Overlap, Placement, Role, Scaling


@dataclass(frozen=True)
class RunPlacement:
    """A placement whose pools have their devices."""

    placement: Placement
    """The placement as it was asked for, its pools counted by node."""
    members: Mapping[str, tuple[Device, ...]]
    """The devices of each pool, in order of rank."""

    @property
    def name(self) -> str:
        """The placement's name."""
        return self.placement.name

    @cached_property
    def pools(self) -> Mapping[str, tuple[str, ...]]:
        """Ids of each pool's devices."""
        return {pool: tuple(device.id for device in members) for pool, members in self.members.items()}

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """Ids of all devices allocated, pool by pool."""
        return tuple(device for devices in self.pools.values() for device in devices)

    @property
    def roles(self) -> Mapping[Role, str]:
        """The pool of each role."""
        return self.placement.roles

    @property
    def overlap(self) -> Overlap:
        """What may run side by side."""
        return self.placement.overlap

    @property
    def staleness(self) -> int:
        """How many updates the weights that generate may lag behind; 0 is synchronous."""
        return self.placement.staleness

    @property
    def scaling(self) -> Scaling | None:
        """Of replicas, which batch stays as they are added; else None."""
        return self.placement.scaling

    @property
    def tensor_parallel(self) -> int | None:
        """Devices that share one engine, in place of the workload's; None for the workload's."""
        return self.placement.tensor_parallel

    @property
    def has_engines(self) -> bool:
        """Whether responses are generated in a pool apart from the actor's, by each device or group of them alone."""
        return self.placement.has_engines

    def pool_of(self, device: str) -> str | None:
        """The pool of a device, by its id; None for the controller."""
        return next((pool for pool, devices in self.pools.items() if device in devices), None)


def bind(placement: Placement, devices: Sequence[Device]) -> RunPlacement:
    """Give the pools their devices: on each node in order, pool after pool."""
    free = [iter(group) for group in by_node(devices)]
    members = {
        pool.name: tuple(device for node, count in enumerate(pool.counts) for device in islice(free[node], count))
        for pool in placement.pools
    }
    return RunPlacement(placement, members)


def alike(placements: Sequence[RunPlacement]) -> list[list[str]]:
    """Names of placements that are the same on their devices, whatever they and their pools are called."""
    found: dict[tuple[object, ...], list[str]] = {}
    for one in placements:
        where = frozenset((role, one.pools[pool]) for role, pool in one.roles.items())
        # In one pool nothing overlaps.
        overlap = one.overlap if len(one.pools) > 1 else None
        how = (overlap, one.staleness, one.placement.inflight_updates, one.tensor_parallel, one.scaling)
        found.setdefault((where, *how), []).append(one.name)
    return [names for names in found.values() if len(names) > 1]
