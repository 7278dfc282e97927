"""Which settings would make a placement fit into its devices' memory, or lower what it needs."""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import TYPE_CHECKING, Any, get_args

from placebench.errors import Reasons
from placebench.predict.memory.engine import EngineMemory
from placebench.predict.memory.estimate import MemoryEstimate
from placebench.predict.memory.fitting import Shortfall, engine_memory, pool_estimates, shortfalls
from placebench.spec.config import merge, nest
from placebench.spec.devices import Device
from placebench.spec.placed import placed_workload
from placebench.spec.placement import Placement, Role
from placebench.spec.placement_checks import batch_factors, impossible_placements, undivided_heads
from placebench.spec.presets import LEARNERS, SPLIT
from placebench.spec.shapes import JobShapes, ModelShape
from placebench.spec.text import format_bytes
from placebench.spec.words import parse_placement, preset_of
from placebench.spec.workload import EACH_ALONE, EngineSize, Workload

if TYPE_CHECKING:
    from placebench.spec.bound import RunPlacement

Settings = Mapping[str, Any]

# Share of the memory that settings may need to be proposed. Estimates are known to within 10 % of the peak, either way;
# half of that is kept free, since all of it would turn down much that does fit.
ROOMY = 0.95
_MOST_DEVICES = 64


@dataclass(frozen=True)
class Case:
    """A placement of a run, whose memory is in question.

    Attributes:
        workload: the job.
        shapes: of its models.
        bound: the placement on its devices.
        devices: all devices of the run, which share a node's memory.
        placements: all of the run, which must share whatever batch is proposed.
    """

    workload: Workload
    shapes: JobShapes
    bound: "RunPlacement"
    devices: Sequence[Device]
    placements: Sequence[Placement]

    def changed(self, settings: Settings) -> "Case":
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


def too_large(case: Case) -> Iterator[str]:
    """One line for a placement that cannot fit, with the settings nearest to those asked for that do.

    Before it one for a placement whose engines may take too little to generate, with the least share in which they can.
    """
    what = f"placement {case.bound.name!r}"
    engine = case.engine
    if engine and engine.is_starved:
        least = engine.hundredths(engine.least)
        share = least / 100 if least <= 100 else None
        yield (
            f"{what}: rollout.memory_share {case.workload.rollout.memory_share:g} is too little: an engine with room"
            f" for a sequence takes {format_bytes(engine.least)} of a device's {format_bytes(engine.device_bytes)}"
            + ("" if share is None else f"; use at least {share:g}")
        )
        case = case.changed({"rollout.memory_share": share})
        what += " without rollout.memory_share" if share is None else f" with rollout.memory_share={share:g}"
    if worst := case.short():
        yield f"{what}: {worst}; {_way_out(case)}"


def tight(case: Case) -> Iterator[str]:
    """One line for a placement that fits by so little that the estimate may be wrong about it."""
    if worst := case.short(ROOMY):
        settings = _roomy_settings(case)
        more = "" if settings is None else f"; {_flags(settings)} needs about {_peak(case.changed(settings))} a device"
        who = f"each device of {worst.pool} needs"
        if worst.need != worst.estimate.peak:
            who = "its devices together need"
        yield (
            f"placement {case.bound.name!r} may run out of memory: {who} about {format_bytes(worst.need)},"
            f" {worst.place} has {format_bytes(worst.have)}, and estimates are known to within 10 %{more}"
        )


def _way_out(case: Case) -> str:
    settings = _roomy_settings(case)
    if settings is not None:
        return f"{_flags(settings)} fits with about {_peak(case.changed(settings))} a device"
    for word, other in _other_devices(case):
        for settings in _alternatives(other):
            if other.is_roomy(settings):
                flags = f" with {_flags(settings)}" if settings else ""
                return f"no setting alone fits, {word}{flags} does, about {_peak(other.changed(settings))} a device"
    return (
        f"no setting fits, {format_bytes(_least_missing(case))} are missing at the least: take a smaller model or"
        " shorter sequences"
    )


def _roomy_settings(case: Case) -> Settings | None:
    """The settings nearest to those asked for that fit.

    Where no others do, engines that hold fewer sequences at a time; then a smaller batch, which is less work.
    """
    for settings in _alternatives(case):
        for tried in (settings, *_token_budgets(case, settings)):
            if tried and case.is_roomy(tried):
                return tried
    for narrower in (_lower_shares, _smaller_batches):
        for settings in _alternatives(case):
            for sizes in narrower(case.changed(settings)):
                for given in (settings, *_token_budgets(case, {**settings, **sizes.settings(0)})):
                    if largest := sizes.largest(case.changed(given).is_roomy):
                        return {**given, **largest}
    return None


def _least_missing(case: Case) -> int:
    """Bytes that are too few, whatever is set, for a fit with some to spare."""
    missing: list[float] = []
    for settings in _alternatives(case):
        changed = case.changed(settings)
        smallest = [batches.settings(0) for batches in _smaller_batches(changed)][-1:] or [{}]
        least = changed.changed({**smallest[0], "batch.micro_batch_tokens": _length(case)})
        if worst := least.short(ROOMY):
            missing.append(worst.need - ROOMY * worst.have)
    return round(min(missing, default=0))


def _peak(case: Case) -> str:
    return format_bytes(case.fullest.peak)


def _length(case: Case) -> int:
    """Tokens of a sequence at full length."""
    return case.workload.batch.max_prompt_length + case.workload.batch.max_response_length


def _flags(settings: Settings) -> str:
    return " ".join(f"--set {key}={str(value).lower()}" for key, value in settings.items())


def _alternatives(case: Case) -> Iterator[Settings]:
    """Settings to try, those that cost the least time first; the first changes nothing but what comes on top."""
    workload, rollout = case.workload, case.workload.rollout
    can_shard = workload.sharding == "replicate" and case.bound.placement.scaling is None
    sharded: Settings = {"sharding": "shard"} if can_shard else {}
    checkpointed: Settings = {} if workload.activation_checkpointing else {"activation_checkpointing": True}
    asleep: Settings = {}
    if rollout.backend == "vllm" and not rollout.sleep:
        asleep = {"rollout.sleep": True}
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


def _usable_engine_sizes(bound: "RunPlacement", actor: ModelShape) -> tuple[int, ...]:
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


def _token_budgets(case: Case, settings: Settings) -> Iterator[Settings]:
    """The settings with the largest token budget below the workload's with which it fits; else one sequence's."""
    budgets = range(_length(case), case.workload.batch.micro_batch_tokens, _length(case))
    if budgets:
        key = "batch.micro_batch_tokens"
        fitting = bisect_left(budgets, True, key=lambda tokens: not case.is_roomy({**settings, key: tokens}))
        yield {**settings, key: budgets[max(fitting - 1, 0)]}


@dataclass(frozen=True)
class _Sizes(ABC):
    """Sizes of something, ascending, of which smaller ones need less memory.

    Attributes:
        sizes: in its own unit.
    """

    sizes: range

    @abstractmethod
    def settings(self, index: int) -> Settings:
        """The settings of one of the sizes."""

    def largest(self, suits: Callable[[Settings], bool]) -> Settings | None:
        """The settings of the largest size that suits, when smaller ones do too."""
        count = bisect_left(range(len(self.sizes)), True, key=lambda index: not suits(self.settings(index)))
        return self.settings(count - 1) if count else None


class _Shares(_Sizes):
    """Hundredths of a device's memory that an engine may take."""

    def settings(self, index: int) -> Settings:
        """The settings of one of the sizes."""
        return {"rollout.memory_share": self.sizes[index] / 100}


def _lower_shares(case: Case) -> Iterator[_Shares]:
    """Shares below what the engine takes in which all placements can generate."""
    engines = [engine_memory(case.workload, case.shapes, placement, case.devices) for placement in case.placements]
    least = [engine.hundredths(engine.least) for engine in engines if engine]
    if case.engine and (shares := range(max(least), min(case.engine.hundredths(case.engine.whole), 101))):
        yield _Shares(shares)


@dataclass(frozen=True)
class _Batches(_Sizes):
    """Sizes of the batch that all placements can share: sequences per step.

    Attributes:
        mini_batch_size: sequences per optimizer step, at most.
        ranks: divide the mini-batch; 0 where that is to stay as it is.
    """

    mini_batch_size: int
    ranks: int = 0

    def settings(self, index: int) -> Settings:
        """The settings of one of the sizes."""
        size = self.sizes[index]
        if not self.ranks:
            return {"batch.size": size}
        highest = max(min(self.mini_batch_size, size) // self.ranks, 1) * self.ranks
        mini_batch = next(one for one in range(highest, 0, -self.ranks) if not size % one)
        return {"batch.size": size, "batch.mini_batch_size": mini_batch}


def _smaller_batches(case: Case) -> Iterator[_Batches]:
    """Smaller batches of the same mini-batches, then those for which the mini-batch has to be smaller too."""
    batch = case.workload.batch
    whole, ranks = batch_factors(case.placements, case.workload)
    step, least = lcm(whole, batch.mini_batch_size), lcm(whole, ranks)
    as_it_is = range(step, batch.size, step)
    if as_it_is and not batch.mini_batch_size % ranks:
        yield _Batches(as_it_is, batch.mini_batch_size)
    if smaller := range(least, min(step, batch.size), least):
        yield _Batches(smaller, batch.mini_batch_size, ranks)


def _other_devices(case: Case) -> Iterator[tuple[str, Case]]:
    """Other numbers of devices: another split of those there are, then more GPUs, or fewer CPU devices."""
    yield from _other_splits(case)
    pools = case.bound.members
    total = sum(map(len, pools.values()))
    if case.devices[0].kind == "cpu":
        counts = case.bound.placement.pools[0].counts
        for count in range(total - 1, 0, -1) if len(pools) == len(counts) == 1 else ():
            yield from _resized(case, f"--devices cpu:{count}", {pool: part[:count] for pool, part in pools.items()})
        return
    factor = 2
    while factor * total <= _MOST_DEVICES:
        more = {pool: part * factor for pool, part in pools.items()}
        yield from _resized(case, f"the same placement on {factor * total} such GPUs", more)
        factor *= 2


def _other_splits(case: Case) -> list[tuple[str, Case]]:
    """The same devices dealt to two pools in other numbers, with the word for it, the lowest peak first."""
    placement = case.bound.placement
    if len(placement.pools) != 2 or any(len(pool.counts) > 1 for pool in placement.pools):
        return []
    members = [device for part in case.bound.members.values() for device in part]
    first, second = (pool.name for pool in placement.pools)
    found: list[tuple[str, Case]] = []
    for count in range(1, len(members)):
        if count != placement.pools[0].size:
            split = {first: tuple(members[:count]), second: tuple(members[count:])}
            found += _resized(case, "", split)
    named = [(_split_word(other), other) for _, other in found]
    return sorted(named, key=lambda one: one[1].fullest.peak)


def _split_word(case: Case) -> str:
    """What the user would write for a split of the devices in two."""
    placement = case.bound.placement
    (first, here), (second, there) = ((pool.name, pool.size) for pool in placement.pools)
    preset, engine = preset_of(placement.name), placement.tensor_parallel or 1
    heads = {
        SPLIT: f"split:{here}+{there}",
        LEARNERS: f"learners:{here}+engines:{there // engine}" + (f"xtp{engine}" if engine > 1 else ""),
    }
    if preset in heads:
        word = "/".join((heads[preset], *placement.name.split("/")[1:]))
        has_critic = case.workload.algorithm.has_critic
        meant = Reasons().attempt(lambda: parse_placement(word, [here + there], has_critic=has_critic))
        # A placement of a file may have a preset's name, and be another.
        if meant and replace(meant, name=placement.name) == placement:
            return f"--placements {word}"
    return f"another split of the devices ({here} in {first}, {there} in {second})"


def _resized(case: Case, word: str, devices: Mapping[str, tuple[Device, ...]]) -> Iterator[tuple[str, Case]]:
    """The placement with other numbers of devices in its pools, where nothing more stands in its way."""
    before = case.bound.placement
    pools = [
        replace(pool, counts=tuple(count * len(devices[pool.name]) // pool.size for count in pool.counts))
        for pool in before.pools
    ]
    placement = replace(before, pools=tuple(pools))
    if {*impossible_placements([placement], case.workload)} <= {*impossible_placements([before], case.workload)}:
        yield word, replace(case, bound=replace(case.bound, placement=placement, members=devices))


def relief(case: Case) -> tuple[str, ...]:
    """What lowers the estimate of a placement most, with the peak that it then has: a few lines."""
    before = case.fullest
    batch = placed_workload(case.workload, case.bound.placement).batch
    length = _length(case)
    # A budget that its sequences do not fill is lowered from what they do.
    sequences = max(batch.mini_batch_size // len(devices) for devices in case.bound.members.values())
    tokens = max(min(batch.micro_batch_tokens, sequences * length) // (2 * length), 1) * length
    alone: list[Settings] = [{"batch.micro_batch_tokens": tokens}, *_halved_cache(case), *_halved_batch(case)]
    changes = [(_flags(settings), case.changed(settings)) for settings in alone] + _other_splits(case)[:1]
    changes = [change for change in changes if change[1].fullest.peak < before.peak]
    others: list[tuple[str, Case]] = []
    least = before.peak
    for settings in _alternatives(case):
        changed = case.changed(settings)
        # More settings have to bring more.
        if changed.fullest.peak < least:
            others.append((_flags(settings), changed))
            least = changed.fullest.peak
    # Those between the cheapest and those that bring most say little more.
    shown = [*changes, *others[:1], *others[1:][-1:]]
    return tuple(f"{what}: about {_peak(after)} instead of {format_bytes(before.peak)}" for what, after in shown)


def _halved_cache(case: Case) -> list[Settings]:
    """The share of the memory that leaves about half the keys and values, where they are in what needs most."""
    if case.engine is None or "kv cache" not in case.fullest.parts:
        return []
    half = case.engine.hundredths(case.engine.with_half_the_cache)
    return [shares.settings(shares.sizes.index(half)) for shares in _lower_shares(case) if half in shares.sizes]


def _halved_batch(case: Case) -> list[Settings]:
    """The largest batch of at most half the sequences, where generating is what needs most."""
    half = case.workload.batch.size // 2
    batches = _smaller_batches(case) if case.fullest.moment == "gen" else ()
    halved = (one.largest(lambda settings: settings["batch.size"] <= half) for one in batches)
    return [settings for settings in halved if settings][:1]
