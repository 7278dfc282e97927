"""Reasons why placements cannot run with a workload, each one line with what to do."""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, inf, lcm
from typing import get_args

from placebench.errors import Reasons
from placebench.spec.check import Check, Facts, collect
from placebench.spec.devices import on_nodes
from placebench.spec.legible import shown
from placebench.spec.placement import Overlap, Placement, Pool, Role, Scaling
from placebench.spec.presets import LEARNERS
from placebench.spec.shapes import ModelShape, model_shape
from placebench.spec.text import few, plural, slug
from placebench.spec.workload import MOST_SEQUENCES, Batch, EngineSize, Workload, placed_workload

_ENGINE_SIZE = "rollout.tensor_parallel_size"
# Mini-batches above the one asked for, and below it: all of them up to 10,000 sequences, and beyond that near ones.
_MOST_TRIED = 10_000
_ENGINE_KEYS = frozenset(("rollout.backend", _ENGINE_SIZE))


def impossible_placements(placements: Sequence[Placement], workload: Workload) -> tuple[str, ...]:
    """Everything in the way of a run of these placements, before their devices' memory is looked at.

    What depends on a pool's devices is not asked of one without counts.
    """
    return collect(PLACEMENT_CHECKS, Facts(placements=placements, others=(), workload=workload)).lines


def shared_folders(placements: Sequence[Placement], others: Sequence[Placement]) -> Iterator[str]:
    """Placements whose names make the same folder."""
    folders: dict[str, str] = {}
    for placement in (*placements, *others):
        other = folders.setdefault(slug(placement.name), placement.name)
        if other != placement.name:
            yield f"placements {shown(other)} and {shown(placement.name)} would share one folder: rename one of them"


def _unusable_layouts(
    placements: Sequence[Placement],
    others: Sequence[Placement],
    workload: Workload,
    facts: Facts,
    steps_before: int = 0,
) -> Iterator[str]:
    """What is in the way of each placement by itself."""
    for placement in (*placements, *others):
        # What the placement says stands in place of the workload's own.
        unknown = facts.unknown - ({_ENGINE_SIZE} if placement.tensor_parallel else set())
        alone = Facts(unknown, placement=placement, workload=workload, steps=workload.steps - steps_before)
        yield from (f"placement {shown(placement.name)}: {reason}" for reason in collect(_LAYOUT_CHECKS, alone).lines)


def contradictions(placement: Placement) -> Iterator[str]:
    """Why a placement could be nowhere: engines that share their pool, settings of engines that mean nothing there."""
    staleness, pool = placement.staleness, placement.roles[Role.ROLLOUT]
    if not placement.has_engines:
        if placement.inflight_updates:
            yield "inflight_updates needs engines in a pool of their own: use learners:A+engines:B, or leave it out"
        return
    if others := [role.value for role in placement.roles_in(pool) if role is not Role.ROLLOUT]:
        yield f"engines in {pool} do nothing but generate; put {' and '.join(others)} into another pool"
    if staleness and placement.overlap is not Overlap.ALL:
        yield (
            f"staleness {shown(staleness)} lets engines generate beside everything else, and"
            f" overlap={placement.overlap} forbids that; use overlap=all, or staleness=0"
        )
    if placement.inflight_updates and not staleness:
        yield "inflight_updates changes nothing at staleness 0, where engines wait for new weights; use staleness=1"


def unreached_staleness(placement: Placement, steps: int) -> Iterator[str]:
    """Weights that would be older than the launch is long; a launch without steps is refused for that."""
    if 0 < steps <= placement.staleness:
        yield (
            f"staleness {shown(placement.staleness)} needs a launch of more than {shown(placement.staleness)} steps,"
            f" and this one has {steps}; use at most {steps - 1}, or raise --steps"
        )


def _idle_pools(placement: Placement, workload: Workload) -> Iterator[str]:
    """A pool for a reward function alone, whose devices would do nothing."""
    pool = placement.roles[Role.REWARD]
    if workload.reward_model is None and placement.roles_in(pool) == (Role.REWARD,):
        yield (
            f"{pool} would be idle: the reward {workload.data.reward} is a function and needs no device; put the role"
            " reward into another pool, or set reward_model"
        )


def _unusable_engines(placement: Placement, workload: Workload) -> Iterator[str]:
    """Engines that their number of devices, the nodes or the model's heads do not allow."""
    rollout, pool = placed_workload(workload, placement).rollout, placement.pool_of(Role.ROLLOUT)
    shared_by = rollout.tensor_parallel_size
    if shared_by not in get_args(EngineSize):
        yield f"an engine cannot have {shared_by} devices: use {', '.join(map(str, get_args(EngineSize)))}"
        return
    where = f"lower {_engine_size_key(placement)}"
    if placement.scaling is not None and shared_by > 1:
        yield (
            f"with scaling {placement.scaling} each device is a full replica that generates for itself, so an engine"
            f" cannot have {shared_by} devices; use tensor_parallel: 1, or leave scaling out"
        )
        return
    if rollout.backend == "torch":
        if (placement.tensor_parallel or 1) > 1:
            yield f"an engine of {shared_by} devices needs rollout.backend vllm; torch generates on single devices"
        return
    if any(count % shared_by for count in pool.counts):
        yield (
            f"{_on_nodes(pool)} cannot be divided into engines of {shared_by} devices, each whole on one node; {where}"
        )
    # A model whose shape is not known is refused by the check of the workload.
    if shape := Reasons().attempt(lambda: model_shape(workload.model)):
        yield from (f"{reason}; {where}" for reason in undivided_heads(shape, workload.model, shared_by))


def _engine_size_key(placement: Placement) -> str:
    """Where the user has said how many devices share an engine: in the workload, the word or the file."""
    if placement.tensor_parallel is None:
        return _ENGINE_SIZE
    return "xtp" if re.fullmatch(LEARNERS.pattern, placement.name.split("/")[0]) else "tensor_parallel"


def _on_nodes(pool: Pool) -> str:
    if len(pool.counts) == 1:
        return plural(pool.size, "device")
    return few((f"{plural(count, 'device')} on {where}" for where, count in on_nodes(pool.counts) if count), " and ")


def undivided_heads(shape: ModelShape, model: str, shared_by: int) -> Iterator[str]:
    """Attention heads that an engine's devices cannot share equally.

    Heads of keys and values may be fewer than the devices, which then hold copies of them.
    """
    heads, kv_heads = shape.num_attention_heads, shape.num_key_value_heads
    if heads % shared_by:
        yield f"an engine of {shared_by} devices does not divide the {heads} attention heads of {model}"
    elif max(kv_heads, shared_by) % min(kv_heads, shared_by):
        yield f"an engine of {shared_by} devices does not divide the {kv_heads} key and value heads of {model}"


@dataclass(frozen=True)
class Share:
    """A pool's devices, which share the sequences of a step equally."""

    pool: Pool
    engines: int = 0
    """How many engines its devices are, which generate whole groups and never train; 0 for other pools."""

    def undivided(self, batch: Batch) -> Iterator[str]:
        """What of a batch cannot be shared so, and by whom."""
        sizes = {"size": batch.size} if self.engines else {"size": batch.size, "mini_batch_size": batch.mini_batch_size}
        wrong = [f"batch.{key} {size}" for key, size in sizes.items() if size % self.pool.size]
        if wrong:
            yield f"{' and '.join(wrong)} cannot be shared equally by the {self.pool.size} devices of {self.pool.name}"
        elif self.engines and (groups := batch.size // batch.group_size) % self.engines:
            yield f"{groups} groups of batch.group_size {batch.group_size} cannot be shared by {self.engines} engines"


def _shares(placements: Sequence[Placement], workload: Workload) -> Iterator[tuple[Placement, Share]]:
    for placement in placements:
        if placement.scaling is Scaling.WEAK:
            continue  # the batch is a device's own
        rollout = placed_workload(workload, placement).rollout
        shared_by = rollout.tensor_parallel_size if rollout.backend == "vllm" else 1
        for pool in placement.pools:
            is_apart = placement.roles_in(pool.name) == (Role.ROLLOUT,)
            if pool.size:
                yield placement, Share(pool, max(1, pool.size // shared_by) if is_apart else 0)


def batch_factors(placements: Sequence[Placement], workload: Workload) -> tuple[int, int]:
    """What has to divide the batch, and what has to divide the mini-batch, which itself divides the batch."""
    shares = [share for _, share in _shares(placements, workload)]
    group = workload.batch.group_size
    engines = [one for share in shares if share.engines for one in (share.pool.size, share.engines * group)]
    return lcm(group, *engines), lcm(*(share.pool.size for share in shares if not share.engines))


def _undivided_batches(
    placements: Sequence[Placement], others: Sequence[Placement], workload: Workload
) -> Iterator[str]:
    """Batches that pools cannot share equally: those of a run's placements, then of others, which cannot be anyhow."""
    yield from _refused_batches(placements, placements, workload)
    yield from _refused_batches(others, (*placements, *others), workload)


def _refused_batches(
    placements: Sequence[Placement], together: Sequence[Placement], workload: Workload
) -> Iterator[str]:
    """Batches that pools of some placements cannot share equally, with sizes near them that those of all can."""
    batch = workload.batch
    shares = _shares(placements, workload)
    refused = [(placement, wrong) for placement, share in shares for wrong in share.undivided(batch)]
    if not refused:
        return
    whole, ranks = batch_factors(together, workload)
    way_out = "no batch can be shared equally by all placements; choose device counts with common factors"
    if lcm(whole, ranks) <= MOST_SEQUENCES:
        size, mini_batch = _nearest_sizes(batch, whole, ranks)
        way_out = f"try --batch-size {size} --mini-batch-size {mini_batch}"
    for placement, wrong in refused:
        yield f"placement {shown(placement.name)}: {wrong}; {way_out}"


def _nearest_sizes(batch: Batch, whole: int, ranks: int) -> tuple[int, int]:
    """The sizes of batch and mini-batch that can be, nearest to those asked for by the factors between them.

    Args:
        batch: as asked for.
        whole: divides the batch.
        ranks: divide the mini-batch, which divides the batch.
    """
    # Every size is a multiple of both, however large they are.
    both = lcm(whole, ranks)
    nearest, least = (max(1, batch.size // both) * both, ranks), inf
    away = max(1.0, both / batch.size)
    above = ceil(batch.mini_batch_size / ranks) * ranks
    for mini_batches in (itertools.count(above, ranks), range(above - ranks, 0, -ranks)):
        for mini_batch in itertools.islice(mini_batches, _MOST_TRIED):
            factor = _factor(mini_batch, batch.mini_batch_size)
            if factor * away >= least:
                break  # those to come are further away
            step = lcm(whole, mini_batch)
            below = batch.size // step * step
            for size in (below + step, below):
                if 0 < size <= MOST_SEQUENCES and factor * _factor(size, batch.size) < least:
                    nearest, least = (size, mini_batch), factor * _factor(size, batch.size)
    return nearest


def _factor(one: int, other: int) -> float:
    return max(one, other) / min(one, other)


# Of each placement alone: `placement`, `workload`, and `steps` of a launch.
_LAYOUT_CHECKS = (
    Check(contradictions),
    Check(unreached_staleness, {"steps"}),
    Check(_idle_pools, {"reward_model", "data.reward"}),
    Check(_unusable_engines, {"model", *_ENGINE_KEYS}),
)
PLACEMENT_CHECKS = (
    Check(shared_folders),
    Check(_unusable_layouts),
    Check(_undivided_batches, _ENGINE_KEYS | {"batch.size", "batch.mini_batch_size", "batch.group_size"}),
)
"""Checks of the `placements` of a run, and of `others` of it, which cannot be for another reason already."""
