"""Roles, pools and placements: the data alone.

A placement says which role lives in which pool, how many devices of each node a pool has, and what may overlap.
Nothing here looks at the machine: `words` reads what the user writes, `bound` gives pools their devices.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property


class Role(StrEnum):
    """A model, or a function, that takes part in the job."""

    ACTOR = "actor"
    ROLLOUT = "rollout"
    REF = "ref"
    CRITIC = "critic"
    REWARD = "reward"


class Overlap(StrEnum):
    """Which phases of different pools may run side by side."""

    NONE = "none"
    UPDATES = "updates"
    ALL = "all"


class Scaling(StrEnum):
    """What stays the same as replicas are added: the batch of a step, or the batch of a device."""

    STRONG = "strong"
    WEAK = "weak"


@dataclass(frozen=True)
class Pool:
    """A named set of devices, given per node: `counts=(2, 2)` is 2 devices on each of 2 nodes."""

    name: str
    counts: tuple[int, ...]

    @cached_property
    def size(self) -> int:
        """Devices of the pool over all nodes."""
        return sum(self.counts)

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """The nodes that it has devices on."""
        return tuple(node for node, count in enumerate(self.counts) if count)


@dataclass(frozen=True)
class Placement:
    """Which role lives in which pool, and what may overlap."""

    name: str
    """The word the user gave, or the name in the YAML file; unique in a run."""
    pools: tuple[Pool, ...]
    """Disjoint pools; together they use every device they count, in order."""
    roles: Mapping[Role, str] = field(hash=False)
    """The pool of each role; empty where a command says itself what it puts where, and nobody knows it."""
    overlap: Overlap = Overlap.ALL
    """What may run side by side."""
    staleness: int = 0
    """How many updates the weights that generate may lag behind those that train; 0 is synchronous."""
    inflight_updates: bool = False
    """Whether engines go on generating while they take new weights."""
    tensor_parallel: int | None = None
    """Devices that share one engine, in place of the workload's; None for the workload's."""
    scaling: Scaling | None = None
    """What stays the same as full replicas are added, one a device; None where models are as the workload says."""

    @property
    def size(self) -> int:
        """Devices of all pools together."""
        return sum(pool.size for pool in self.pools)

    @property
    def has_engines(self) -> bool:
        """Whether responses are generated in a pool apart from the actor's."""
        return self.roles.get(Role.ROLLOUT) != self.roles.get(Role.ACTOR)

    def pool_of(self, role: Role) -> Pool:
        """The pool in which a role lives."""
        return next(pool for pool in self.pools if pool.name == self.roles[role])

    def roles_in(self, pool: str) -> tuple[Role, ...]:
        """The roles that live in a pool, in the order of `Role`."""
        return tuple(role for role in Role if self.roles.get(role) == pool)
