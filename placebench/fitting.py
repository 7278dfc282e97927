"""Whether placements fit into their devices' memory, and which settings would make them fit."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from placebench.config import merge, nest
from placebench.devices import Device
from placebench.memory import MemoryEstimate, estimate_memory
from placebench.models import JobShapes, ModelShape
from placebench.placed import placed_workload
from placebench.placement import Role
from placebench.placement_checks import undivided_heads
from placebench.progress import format_bytes
from placebench.workload import EngineSize, Workload

if TYPE_CHECKING:
    from placebench.plan import BoundPlacement

Settings = Mapping[str, Any]

_MOST_DEVICES = 64


@dataclass(frozen=True)
class Shortfall:
    """A pool's device, or all CPU devices of a node, that need more memory than there is.

    Attributes:
        pool: the pool, or on CPU the one whose devices need most.
        place: id of the smallest device, or name of the node.
        estimate: of each device of the pool.
        need: bytes in that place.
        have: bytes there.
    """

    pool: str
    place: str
    estimate: MemoryEstimate
    need: int
    have: int

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


def pool_estimates(workload: Workload, shapes: JobShapes, bound: "BoundPlacement") -> dict[str, MemoryEstimate]:
    """Estimated memory of each device by pool."""
    workload = placed_workload(workload, bound.placement)
    return {
        pool: estimate_memory(
            workload,
            shapes.actor,
            shapes.critic,
            bound.placement.roles_in(pool),
            len(devices),
            devices[0].kind,
            shapes.reward,
        )
        for pool, devices in bound.devices.items()
    }


def shortfalls(
    workload: Workload, shapes: JobShapes, bound: "BoundPlacement", devices: Sequence[Device]
) -> Iterator[Shortfall]:
    """Where a placement needs more memory than there is: of a GPU its own, of CPU devices their node's.

    Args:
        workload: the job.
        shapes: of its models.
        bound: the placement on its devices.
        devices: all devices of the run, which share a node's memory.
    """
    estimates = pool_estimates(workload, shapes, bound)
    for pool, estimate in estimates.items():
        device = min(bound.devices[pool], key=lambda device: device.memory_bytes)
        if device.kind == "gpu" and estimate.peak > device.memory_bytes:
            yield Shortfall(pool, device.id, estimate, estimate.peak, device.memory_bytes)
    for node in dict.fromkeys(device.node for device in devices if device.kind == "cpu"):
        need = sum(
            estimate.peak * sum(device.node == node for device in bound.devices[pool])
            for pool, estimate in estimates.items()
        )
        have = sum(device.memory_bytes for device in devices if device.node == node)
        if need > have:
            pool = max(estimates, key=lambda pool: estimates[pool].peak)
            yield Shortfall(pool, node, estimates[pool], need, have)


def too_large(
    workload: Workload, shapes: JobShapes, bound: "BoundPlacement", devices: Sequence[Device]
) -> Iterator[str]:
    """One line for a placement that cannot fit, with the settings nearest to those asked for that do."""
    short = list(shortfalls(workload, shapes, bound, devices))
    if short:
        worst = max(short, key=lambda one: one.need - one.have)
        yield f"placement {bound.name!r}: {worst}; {_way_out(workload, shapes, bound, devices)}"


def _way_out(workload: Workload, shapes: JobShapes, bound: "BoundPlacement", devices: Sequence[Device]) -> str:
    least: int | None = None
    for settings in _alternatives(workload, shapes, bound):
        for tokens in (None, *_token_budgets(workload, settings, shapes, bound, devices)):
            tried = settings if tokens is None else {**settings, "batch.micro_batch_tokens": tokens}
            changed = with_settings(workload, tried)
            short = list(shortfalls(changed, shapes, bound, devices))
            if not short and tried:
                return f"{_flags(tried)} fits with about {_largest(changed, shapes, bound)} a device"
            missing = max((one.need - one.have for one in short), default=0)
            least = missing if least is None else min(least, missing)
    for word, other in _other_devices(workload, bound, devices):
        for settings in _alternatives(workload, shapes, bound):
            changed = with_settings(workload, settings)
            if not list(shortfalls(changed, shapes, other, devices)):
                flags = f" with {_flags(settings)}" if settings else ""
                return f"no setting alone fits, {word}{flags} does, about {_largest(changed, shapes, other)} a device"
    return f"no setting fits, {format_bytes(least or 0)} are missing at the least: take a smaller model or batch"


def _largest(workload: Workload, shapes: JobShapes, bound: "BoundPlacement") -> str:
    return format_bytes(max(estimate.peak for estimate in pool_estimates(workload, shapes, bound).values()))


def _flags(settings: Settings) -> str:
    return " ".join(f"--set {key}={str(value).lower()}" for key, value in settings.items())


def with_settings(workload: Workload, settings: Settings) -> Workload:
    """The workload with other values under some dotted keys."""
    content = workload.model_dump(mode="json")
    for key, value in settings.items():
        content = merge(content, nest(key.split("."), value))
    return Workload.model_validate(content)


def _alternatives(workload: Workload, shapes: JobShapes, bound: "BoundPlacement") -> Iterator[Settings]:
    """Settings to try, those that cost the least time first; the first changes nothing but what comes on top."""
    rollout = workload.rollout
    can_shard = workload.sharding == "replicate" and bound.placement.scaling is None
    sharded: Settings = {"sharding": "shard"} if can_shard else {}
    checkpointed: Settings = {} if workload.activation_checkpointing else {"activation_checkpointing": True}
    asleep: Settings = {}
    if rollout.backend == "vllm" and not rollout.sleep:
        asleep = {"rollout.sleep": True}
    engines = [
        {"rollout.tensor_parallel_size": size}
        for size in usable_engine_sizes(bound, shapes.actor)
        if rollout.backend == "vllm" and size > rollout.tensor_parallel_size
    ]
    seen: list[Settings] = []
    for settings in (
        {},
        asleep,
        checkpointed,
        sharded,
        {**sharded, **checkpointed},
        *({**asleep, **sharded, **checkpointed, **engine} for engine in engines or [{}]),
    ):
        if settings not in seen:
            seen.append(settings)
            yield settings


def usable_engine_sizes(bound: "BoundPlacement", actor: ModelShape) -> tuple[int, ...]:
    """Devices that may share an engine: they divide the rollout's pool and the model's heads.

    None where the placement says how many: it overrules the workload, whose setting would change nothing.
    """
    if bound.placement.tensor_parallel is not None:
        return ()
    counts = bound.placement.pool_of(Role.ROLLOUT).counts
    return tuple(
        size
        for size in get_args(EngineSize)
        if not any(count % size for count in counts) and not list(undivided_heads(actor, "", size))
    )


def _token_budgets(
    workload: Workload, settings: Settings, shapes: JobShapes, bound: "BoundPlacement", devices: Sequence[Device]
) -> tuple[int, ...]:
    """The largest token budget below the workload's with which it fits; else the least, one sequence."""
    batch = workload.batch
    length = batch.max_prompt_length + batch.max_response_length
    low, high = 1, (batch.micro_batch_tokens - 1) // length
    if high < 1:
        return ()
    while low < high:
        middle = (low + high + 1) // 2
        changed = with_settings(workload, {**settings, "batch.micro_batch_tokens": middle * length})
        if any(shortfalls(changed, shapes, bound, devices)):
            high = middle - 1
        else:
            low = middle
    return (low * length,)


def _other_devices(
    workload: Workload, bound: "BoundPlacement", devices: Sequence[Device]
) -> Iterator[tuple[str, "BoundPlacement"]]:
    """Other numbers of devices: another split of those there are, then more GPUs, or fewer CPU devices."""
    members = [device for pool in bound.devices.values() for device in pool]
    pools, batch = tuple(bound.devices), placed_workload(workload, bound.placement).batch

    def divides(count: int) -> bool:
        return not (batch.size % count or batch.mini_batch_size % count)

    if len(pools) == 2 and (bound.placement.tensor_parallel or 1) == 1 and len(bound.placement.pools[0].counts) == 1:
        for count in range(1, len(members)):
            if divides(count) and divides(len(members) - count):
                split = dict(zip(pools, (tuple(members[:count]), tuple(members[count:])), strict=True))
                words = ", ".join(f"{len(part)} in {pool}" for pool, part in split.items())
                yield f"another split of the devices ({words})", replace(bound, devices=split)
    if devices[0].kind == "cpu":
        for count in range(len(members) - 1, 0, -1):
            if len(pools) == 1 and divides(count):
                yield f"--devices cpu:{count}", replace(bound, devices={pools[0]: tuple(members[:count])})
        return
    factor = 2
    while factor * len(members) <= _MOST_DEVICES and all(
        divides(factor * len(part)) for part in bound.devices.values()
    ):
        more = {pool: part * factor for pool, part in bound.devices.items()}
        yield f"the same placement on {factor * len(members)} such GPUs", replace(bound, devices=more)
        factor *= 2


def relief(workload: Workload, shapes: JobShapes, bound: "BoundPlacement") -> tuple[str, ...]:
    """Settings that lower the estimate of a placement, with the peak that it then has."""
    batch = placed_workload(workload, bound.placement).batch
    length = batch.max_prompt_length + batch.max_response_length
    # A budget that its sequences do not fill is lowered from what they do.
    sequences = max(batch.mini_batch_size // len(devices) for devices in bound.devices.values())
    tokens = max(min(batch.micro_batch_tokens, sequences * length) // (2 * length), 1) * length
    before = max(estimate.peak for estimate in pool_estimates(workload, shapes, bound).values())
    lines: list[str] = []
    least = before
    for settings in ({"batch.micro_batch_tokens": tokens}, *_alternatives(workload, shapes, bound)):
        changed = with_settings(workload, settings)
        after = max(estimate.peak for estimate in pool_estimates(changed, shapes, bound).values())
        # The budget stands for itself; of the others, more settings have to bring more.
        if after < (before if "batch.micro_batch_tokens" in settings else least):
            lines.append(f"{_flags(settings)}: about {format_bytes(after)} instead of {format_bytes(before)}")
            least = min(least, after) if "batch.micro_batch_tokens" not in settings else least
    return tuple(lines)
