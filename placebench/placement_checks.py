"""Reasons why placements cannot run with a workload, each one line with what to do."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, lcm
from typing import get_args

from placebench.errors import UsageError
from placebench.models import ModelShape, model_shape
from placebench.placed import placed_workload
from placebench.placement import Placement, Pool, Role, Scaling
from placebench.runfolder import slug
from placebench.workload import EngineSize, Workload


def impossible_placements(placements: Sequence[Placement], workload: Workload) -> Iterator[str]:
    """Everything in the way of a run of these placements, before their devices' memory is looked at."""
    yield from _shared_folders(placements)
    for placement in placements:
        for reason in (
            *_separated_rollout(placement),
            *_idle_pools(placement, workload),
            *_unusable_engines(placement, workload),
        ):
            yield f"placement {placement.name!r}: {reason}"
    yield from _undivided_batches(placements, workload)


def _shared_folders(placements: Sequence[Placement]) -> Iterator[str]:
    folders: dict[str, str] = {}
    for placement in placements:
        other = folders.setdefault(slug(placement.name), placement.name)
        if other != placement.name:
            yield f"placements {other!r} and {placement.name!r} would share one folder: rename one of them"


def _separated_rollout(placement: Placement) -> Iterator[str]:
    """Asynchrony without engines of their own, and engines that are not by themselves."""
    pool = placement.roles[Role.ROLLOUT]
    others = [role for role in placement.roles_in(pool) if role is not Role.ROLLOUT]
    if placement.has_engines and others:
        yield (
            f"{', '.join(others)} {'lives' if len(others) == 1 else 'live'} in {pool} beside rollout, and the actor in"
            f" {placement.roles[Role.ACTOR]}: engines apart from the actor are alone in their pool; move"
            f" {'it' if len(others) == 1 else 'them'} to another one"
        )
    advice = "needs engines in a pool of their own: use learners:A+engines:B, or leave it out"
    if placement.staleness and not placement.has_engines:
        yield f"staleness {placement.staleness} {advice}"
    if placement.inflight_updates and not placement.has_engines:
        yield f"inflight_updates {advice}"
    elif placement.inflight_updates and not placement.staleness:
        yield "inflight_updates changes nothing at staleness 0, where engines wait for new weights; set /staleness=1"


def _idle_pools(placement: Placement, workload: Workload) -> Iterator[str]:
    """Pools whose devices would do nothing: for a critic that the algorithm lacks, or for a reward function."""
    idle = {Role.CRITIC: not workload.algorithm.has_critic, Role.REWARD: workload.reward_model is None}
    for pool in placement.pools:
        roles = placement.roles_in(pool.name)
        if not all(idle.get(role, False) for role in roles):
            continue
        reasons = []
        if Role.CRITIC in roles:
            reasons.append(f"{workload.algorithm.name} trains no critic")
        if Role.REWARD in roles:
            reasons.append(f"the reward {workload.data.reward} is a function and needs no device")
        advice = "let them live" if len(roles) > 1 else "let it live"
        model = ", or set reward_model" if Role.REWARD in roles else ""
        yield (f"{pool.name} would be idle: {' and '.join(reasons)}; {advice} in another pool{model}")


def _unusable_engines(placement: Placement, workload: Workload) -> Iterator[str]:
    """Engines that their number of devices, the nodes or the model's heads do not allow."""
    rollout, pool = placed_workload(workload, placement).rollout, placement.pool_of(Role.ROLLOUT)
    shared_by = rollout.tensor_parallel_size
    if shared_by not in get_args(EngineSize):
        yield f"an engine of {shared_by} devices cannot be: {', '.join(map(str, get_args(EngineSize)))} can share one"
        return
    where = "lower xtp" if placement.tensor_parallel else "lower rollout.tensor_parallel_size"
    if rollout.backend == "torch":
        if (placement.tensor_parallel or 1) > 1:
            yield f"an engine of {shared_by} devices needs rollout.backend vllm; torch generates on single devices"
        return
    if any(count % shared_by for count in pool.counts):
        yield (
            f"{_on_nodes(pool)} generate, which engines of {shared_by} do not divide: an engine lies whole on one node;"
            f" {where}"
        )
    shape = _shape(workload.model)
    if shape is not None:
        yield from (f"{reason}; {where}" for reason in undivided_heads(shape, workload.model, shared_by))


def _on_nodes(pool: Pool) -> str:
    if len(pool.counts) == 1:
        return f"{pool.size} devices"
    return " and ".join(f"{count} devices on node {node}" for node, count in enumerate(pool.counts) if count)


def undivided_heads(shape: ModelShape, model: str, shared_by: int) -> Iterator[str]:
    """Attention heads that an engine's devices cannot share equally.

    Heads of keys and values may be fewer than the devices, which then hold copies of them.
    """
    heads, kv_heads = shape.num_attention_heads, shape.num_key_value_heads
    if heads % shared_by:
        yield f"an engine of {shared_by} devices does not divide the {heads} attention heads of {model}"
    elif max(kv_heads, shared_by) % min(kv_heads, shared_by):
        yield f"an engine of {shared_by} devices does not divide the {kv_heads} key and value heads of {model}"


def _shape(model: str) -> ModelShape | None:
    try:
        return model_shape(model)
    except UsageError:
        return None  # told by the check of the workload


@dataclass(frozen=True)
class _Share:
    """Those who share the sequences of a step: devices of a pool, or engines, which take whole groups.

    Attributes:
        who: for messages.
        number: of them.
        takes_groups: whether they are engines in a pool of their own, which never train.
    """

    who: str
    number: int
    takes_groups: bool = False


def _shares(placement: Placement, workload: Workload) -> Iterator[_Share]:
    rollout = placed_workload(workload, placement).rollout
    shared_by = rollout.tensor_parallel_size if rollout.backend == "vllm" else 1
    for pool in placement.pools:
        if placement.has_engines and placement.roles_in(pool.name) == (Role.ROLLOUT,):
            number = max(1, pool.size // shared_by)
            yield _Share(f"{number} engine{'' if number == 1 else 's'} of {pool.name}", number, takes_groups=True)
        else:
            yield _Share(f"{pool.size} devices of {pool.name}", pool.size)


def _undivided_batches(placements: Sequence[Placement], workload: Workload) -> Iterator[str]:
    """Batches that pools cannot share equally, with sizes near them that all can."""
    batch = workload.batch
    shares = [
        (placement, share)
        for placement in placements
        # With weak scaling the batch is a device's own.
        if placement.scaling is not Scaling.WEAK
        for share in _shares(placement, workload)
    ]
    ranks = lcm(*(share.number for _, share in shares if not share.takes_groups))
    mini_batch = ceil(batch.mini_batch_size / ranks) * ranks
    whole = lcm(mini_batch, batch.group_size, *(batch.group_size * one.number for _, one in shares if one.takes_groups))
    advice = f"try --batch-size {ceil(batch.size / whole) * whole} --mini-batch-size {mini_batch}"
    for placement, share in shares:
        sizes = {f"batch.size {batch.size}": batch.size}
        if not share.takes_groups:
            sizes[f"batch.mini_batch_size {batch.mini_batch_size}"] = batch.mini_batch_size
        elif batch.group_size > 1:
            groups = batch.size // batch.group_size
            sizes = {f"batch.size {batch.size} in {groups} groups of batch.group_size {batch.group_size}": groups}
        wrong = [text for text, size in sizes.items() if size % share.number]
        if wrong:
            yield (
                f"placement {placement.name!r}: {' and '.join(wrong)} cannot be shared equally by the {share.who};"
                f" {advice}"
            )
