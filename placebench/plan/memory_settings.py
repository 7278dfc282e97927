"""The settings nearest to those asked for with which a placement fits into its devices' memory."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Any, get_args

from placebench.predict.memory.engine import EngineMemory
from placebench.predict.memory.estimate import MemoryEstimate
from placebench.predict.memory.fitting import Shortfall, engine_memory, pool_estimates, shortfalls
from placebench.spec.bound import RunPlacement
from placebench.spec.devices import Device
from placebench.spec.nested import merge, nest
from placebench.spec.placement import Placement, Role
from placebench.spec.placement_checks import batch_factors, undivided_heads
from placebench.spec.shapes import JobShapes, ModelShape
from placebench.spec.workload import EACH_ALONE, EngineSize, Workload

Settings = Mapping[str, Any]

# Share of the memory that settings may need to be proposed. Estimates are known to within 10 % of the peak, either way;
# half of that is kept free, since all of it would turn down much that does fit.
ROOMY = 0.95


@dataclass(frozen=True)
class MemoryCase:
    """A placement of a run, whose memory is in question."""

    workload: Workload
    shapes: JobShapes
    bound: RunPlacement
    devices: Sequence[Device]
    """All devices of the run, which share a node's memory."""
    placements: Sequence[Placement]
    """All of the run, which must share whatever batch is proposed."""

    def changed(self, settings: Settings) -> "MemoryCase":
        """The case with other values under some dotted keys of the workload."""
        content = self.workload.model_dump(mode="json")
        for key, value in settings.items():
            content = merge(content, nest(key.split("."), value))
        # Of a plan that is refused for other values, too, these need not go together.
        return replace(self, workload=Workload.model_validate(content, context=EACH_ALONE))

    def short(self, share: float = 1.0) -> Shortfall | None:
        """The worst place that needs more than this share of its memory."""
        found = shortfalls(self.workload, self.shapes, self.bound, self.devices, share)
        return max(found, key=lambda one: one.need - share * one.have, default=None)

    def is_roomy(self, settings: Settings) -> bool:
        """Whether it fits, with some memory to spare, under other settings."""
        changed = self.changed(settings)
        return changed.short(ROOMY) is None and not (changed.engine and changed.engine.is_starved)

    @property
    def engine(self) -> EngineMemory | None:
        """What an engine takes of each device; None where torch generates."""
        placement = self.bound.placement
        devices = self.bound.members[placement.roles[Role.ROLLOUT]]
        return engine_memory(self.workload, self.shapes, placement, devices)

    @property
    def fullest(self) -> MemoryEstimate:
        """The estimate of the devices that need most."""
        estimates = pool_estimates(self.workload, self.shapes, self.bound).values()
        return max(estimates, key=lambda estimate: estimate.peak)

    @property
    def length(self) -> int:
        """Tokens of a sequence at full length."""
        return self.workload.batch.max_prompt_length + self.workload.batch.max_response_length


def roomy_settings(case: MemoryCase) -> Settings | None:
    """The settings nearest to those asked for that fit.

    Where no others do, engines that hold fewer sequences at a time; then a smaller batch, which is less work.
    """
    for settings in alternatives(case):
        for tried in (settings, *_token_budgets(case, settings)):
            if tried and case.is_roomy(tried):
                return tried
    for narrower in (lower_shares, smaller_batches):
        for settings in alternatives(case):
            for sizes in narrower(case.changed(settings)):
                for given in (settings, *_token_budgets(case, {**settings, **sizes.settings(sizes.sizes[0])})):
                    if largest := sizes.largest(case.changed(given).is_roomy):
                        return {**given, **largest}
    return None


def least_missing(case: MemoryCase) -> int:
    """Bytes that are too few, whatever is set, for a fit with some to spare."""
    missing: list[float] = []
    for settings in alternatives(case):
        changed = case.changed(settings)
        smallest = [batches.settings(batches.sizes[0]) for batches in smaller_batches(changed)][-1:] or [{}]
        least = changed.changed({**smallest[0], "batch.micro_batch_tokens": case.length})
        if worst := least.short(ROOMY):
            missing.append(worst.need - ROOMY * worst.have)
    return round(min(missing, default=0))


def alternatives(case: MemoryCase) -> Iterator[Settings]:
    """Settings to try, those that cost the least time first; the first changes nothing but what comes on top."""
    workload, rollout = case.workload, case.workload.rollout
    can_shard = workload.sharding == "replicate" and case.bound.placement.scaling is None
    sharded: Settings = {"sharding": "shard"} if can_shard else {}
    checkpointed: Settings = {} if workload.activation_checkpointing else {"activation_checkpointing": True}
    asleep: Settings = {"rollout.sleep": True} if rollout.backend == "vllm" and not rollout.sleep else {}
    engines = [
        {"rollout.tensor_parallel_size": size}
        for size in _usable_engine_sizes(case.bound, case.shapes.actor)
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


def _usable_engine_sizes(bound: RunPlacement, actor: ModelShape) -> tuple[int, ...]:
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


def _token_budgets(case: MemoryCase, settings: Settings) -> Iterator[Settings]:
    """The settings with the largest token budget below the workload's with which it fits; else one sequence's."""
    budgets = range(case.length, case.workload.batch.micro_batch_tokens, case.length)
    if budgets:
        key = "batch.micro_batch_tokens"
        fitting = bisect_left(budgets, True, key=lambda tokens: not case.is_roomy({**settings, key: tokens}))
        yield {**settings, key: budgets[max(fitting - 1, 0)]}


@dataclass(frozen=True)
class _Sizes:
    """Sizes of something, ascending, of which smaller ones need less memory."""

    sizes: range
    settings: Callable[[int], Settings]
    """What sets a size."""

    def largest(self, suits: Callable[[Settings], bool]) -> Settings | None:
        """The settings of the largest size that suits, when smaller ones do too."""
        count = bisect_left(self.sizes, True, key=lambda size: not suits(self.settings(size)))
        return self.settings(self.sizes[count - 1]) if count else None


def lower_shares(case: MemoryCase) -> Iterator[_Sizes]:
    """Hundredths of a device's memory below what the engine takes, in which all placements can generate."""
    engines = [engine_memory(case.workload, case.shapes, placement, case.devices) for placement in case.placements]
    least = [engine.hundredths(engine.least) for engine in engines if engine]
    if case.engine and (shares := range(max(least), min(case.engine.hundredths(case.engine.whole), 101))):
        yield _Sizes(shares, lambda hundredths: {"rollout.memory_share": hundredths / 100})


def smaller_batches(case: MemoryCase) -> Iterator[_Sizes]:
    """Batches that all placements can share: of the same mini-batches, then of mini-batches that are smaller too."""
    batch = case.workload.batch
    whole, ranks = batch_factors(case.placements, case.workload)
    step, least = lcm(whole, batch.mini_batch_size), lcm(whole, ranks)

    def with_mini_batch(size: int) -> Settings:
        highest = max(min(batch.mini_batch_size, size) // ranks, 1) * ranks
        mini_batch = next(one for one in range(highest, 0, -ranks) if not size % one)
        return {"batch.size": size, "batch.mini_batch_size": mini_batch}

    as_it_is = range(step, batch.size, step)
    if as_it_is and not batch.mini_batch_size % ranks:
        yield _Sizes(as_it_is, lambda size: {"batch.size": size})
    if smaller := range(least, min(step, batch.size), least):
        yield _Sizes(smaller, with_mini_batch)
