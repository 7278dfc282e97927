"""Layouts: which roles share a pool, of how many devices an engine is, and what lies on the nodes of a cluster."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from placebench.predict.step import StepModel
from placebench.spec.placement import Overlap, Placement, Pool, Role
from placebench.spec.placement_checks import contradictions, undivided_heads
from placebench.spec.workload import EngineSize

OVERLAPS = (Overlap.ALL, Overlap.UPDATES, Overlap.NONE)


@dataclass(frozen=True)
class SearchSpace:
    """Which placements there are."""

    nodes: tuple[int, ...]
    """Devices of each node."""
    together: tuple[tuple[Role, ...], ...]
    """The roles, each with those that live where it does in any case."""
    engine_sizes: tuple[int, ...] = (1,)
    """How many devices may share an engine."""
    stalenesses: tuple[int, ...] = (0,)
    """By how many updates the weights that generate may lag behind."""
    usual_engine: int = 1
    """Devices that share an engine where a placement does not say it."""

    @property
    def devices(self) -> int:
        """Of all nodes."""
        return sum(self.nodes)


@dataclass(frozen=True)
class PoolLayout:
    """A placement without its devices and without what may overlap."""

    pools: tuple[tuple[Role, ...], ...]
    """The roles of each pool."""
    placement: Placement
    """The placement, its pools without counts."""
    overlaps: tuple[Overlap, ...]
    """What may overlap."""
    tensor_parallel: int
    """Devices that share an engine."""

    @property
    def kind(self) -> tuple[object, ...]:
        """What a reader takes for one layout, with engines of any size and weights of any age."""
        return self.pools

    @property
    def runs_ahead(self) -> bool:
        """Whether generation and training of a settled step go on side by side, whatever waits for what."""
        return bool(self.placement.staleness) and self.placement.has_engines


def layouts(space: SearchSpace) -> Iterator[PoolLayout]:
    """Every way to put roles together, with engines of every size and every staleness."""
    for groups in partitions(space.together):
        pools = tuple(tuple(role for roles in group for role in roles) for group in groups)
        roles = {role: pool_name(pool, alone=len(pools) == 1) for pool in pools for role in pool}
        empty = tuple(Pool(pool_name(pool, alone=len(pools) == 1), ()) for pool in pools)
        for shared_by in space.engine_sizes:
            for staleness in space.stalenesses:
                engine = None if shared_by == space.usual_engine else shared_by
                bare = Placement("", empty, roles, staleness=staleness, tensor_parallel=engine)
                overlaps = OVERLAPS if len(pools) > 1 else OVERLAPS[:1]
                possible = tuple(one for one in overlaps if not any(contradictions(replace(bare, overlap=one))))
                if possible:
                    yield PoolLayout(pools, bare, possible, shared_by)


def partitions(parts: Sequence[tuple[Role, ...]]) -> Iterator[list[list[tuple[Role, ...]]]]:
    """Every way to divide parts into groups, each in the order of the parts."""
    if not parts:
        yield []
        return
    *before, last = parts
    for groups in partitions(before):
        for index in range(len(groups)):
            yield [*groups[:index], [*groups[index], last], *groups[index + 1 :]]
        yield [*groups, [last]]


def pool_name(roles: Sequence[Role], *, alone: bool) -> str:
    """The name of a pool by its roles."""
    if alone:
        return "global_pool"
    return "engines" if tuple(roles) == (Role.ROLLOUT,) else f"{roles[0]}_pool"


def placed(layout: PoolLayout, sizes: Sequence[int], overlap: Overlap, nodes: Sequence[int]) -> Placement | None:
    """A layout on nodes, each pool on as few of them as are free; None where engines find no room.

    An engine lies whole on one node. Where it does not behind larger pools, its pool comes first.
    """
    bare = layout.placement
    engines = bare.roles[Role.ROLLOUT]
    pools = dict(zip((pool.name for pool in bare.pools), sizes, strict=True))
    largest_first = sorted(pools, key=lambda name: -pools[name])
    for order in (largest_first, sorted(largest_first, key=lambda name: name != engines)):
        left, counts = list(nodes), dict[str, tuple[int, ...]]()
        for name in order:
            counts[name] = _take(left, pools[name], layout.tensor_parallel if name == engines else 1)
        if all(sum(counts[name]) == size for name, size in pools.items()):
            named = replace(bare, pools=tuple(Pool(name, counts[name]) for name in pools), overlap=overlap)
            return replace(named, name=describe(named))
    return None


def more_nodes(layout: PoolLayout, nodes: tuple[int, ...]) -> int:
    """On how many nodes more than would hold it a pool lies at most, where `placed` puts it.

    A pool takes empty nodes before others, and leaves one at most that is neither empty nor full. So where nodes are
    alike and whole engines fill them, it lies on as few as hold it, or on fewer empty ones and one for each other pool.
    """
    each = nodes[0]
    if nodes.count(each) < len(nodes) or each % layout.tensor_parallel:
        return len(nodes)
    return max(0, len(layout.pools) - 2)


def _take(left: list[int], size: int, whole: int) -> tuple[int, ...]:
    """Take devices of nodes for a pool: of the fullest that has room for all of it, else of the emptiest first.

    Args:
        left: devices of each node that are free, and then those that are left.
        size: devices of the pool; fewer are taken where there is no room for more.
        whole: so many are taken of a node together.
    """
    taken = [0] * len(left)
    size -= size % whole
    if enough := [free for free in left if free >= size]:
        order = [left.index(min(enough))]
    else:
        order = sorted(range(len(left)), key=left.__getitem__, reverse=True)
    for node in order:
        taken[node] = min(left[node] - left[node] % whole, size)
        left[node] -= taken[node]
        size -= taken[node]
        if not size:
            break
    return tuple(taken)


def describe(placement: Placement) -> str:
    """A name for a placement that no word says, fit for a file: `actor.rollout6+ref1+critic1`.

    A reward that lives with the critic is not named, as it need not be in a placement file.
    """
    unnamed = {Role.REWARD} if placement.roles.get(Role.REWARD) == placement.roles.get(Role.CRITIC) else set[Role]()
    pools = "+".join(
        f"{'.'.join(role for role in placement.roles_in(pool.name) if role not in unnamed)}{pool.size}"
        for pool in placement.pools
    )
    settings = (
        placement.overlap.value if placement.overlap is not Overlap.ALL else "",
        f"stale{placement.staleness}" if placement.staleness else "",
        f"tp{placement.tensor_parallel}" if placement.tensor_parallel else "",
    )
    return "-".join(filter(None, (pools, *settings)))


def space_of(model: StepModel, stalenesses: tuple[int, ...]) -> SearchSpace:
    """The placements of a model's workload on its devices.

    A reward that is a function lives with the critic, or without one with the reference, as in the words: it needs no
    device, so that where it lives makes no placement of its own.
    """
    workload, shapes = model.phases.workload, model.phases.shapes
    assert workload is not None
    assert shapes is not None
    judge = (Role.CRITIC,) if workload.algorithm.has_critic else (Role.REF, Role.CRITIC)
    others = [role for role in (Role.ACTOR, Role.ROLLOUT, Role.REF) if role not in judge]
    apart = [(role,) for role in others]
    together = [*apart, judge, (Role.REWARD,)] if workload.reward_model else [*apart, (*judge, Role.REWARD)]
    usual = workload.rollout.tensor_parallel_size
    sizes = [usual]
    # Of engines of another size than the measured ones nothing is known where the devices' peak is not.
    if workload.rollout.backend == "vllm" and model.phases.peak is not None:
        most = max(model.nodes)
        sizes = [
            size
            for size in get_args(EngineSize)
            if size <= most and not any(undivided_heads(shapes.actor, workload.model, size))
        ]
    return SearchSpace(model.nodes, tuple(together), tuple(sizes), stalenesses, usual)
