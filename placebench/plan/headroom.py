"""What is said of placements that do not fit into their devices' memory, or hardly do, and what would lower it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from placebench.errors import Reasons
from placebench.plan.memory_settings import (
    ROOMY,
    MemoryCase,
    Settings,
    alternatives,
    least_missing,
    lower_shares,
    roomy_settings,
    smaller_batches,
)
from placebench.spec.bound import RunPlacement
from placebench.spec.devices import Device
from placebench.spec.legible import shown
from placebench.spec.phases import GEN
from placebench.spec.placement_checks import impossible_placements
from placebench.spec.presets import LEARNERS, SPLIT
from placebench.spec.shapes import job_shapes
from placebench.spec.text import format_bytes
from placebench.spec.words import parse_placement, preset_of
from placebench.spec.workload import Workload, placed_workload

_MOST_DEVICES = 64


def too_large(workload: Workload, bound: Sequence[RunPlacement], devices: Sequence[Device]) -> Iterator[str]:
    """One line for every placement that needs more memory than there is.

    Raises:
        UsageError: a model is not known.
    """
    shapes = job_shapes(workload)
    for one in bound:
        yield from _too_large(MemoryCase(workload, shapes, one, devices, [other.placement for other in bound]))


def _too_large(case: MemoryCase) -> Iterator[str]:
    """One line for a placement that cannot fit, with the settings nearest to those asked for that do.

    Before it one for a placement whose engines may take too little to generate, with the least share in which they can.
    """
    what = f"placement {shown(case.bound.name)}"
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


def tight(case: MemoryCase) -> Iterator[str]:
    """One line for a placement that fits by so little that the estimate may be wrong about it."""
    if worst := case.short(ROOMY):
        settings = roomy_settings(case)
        more = "" if settings is None else f"; {_flags(settings)} needs about {_peak(case.changed(settings))} a device"
        each_alone = worst.need == worst.estimate.peak
        who = f"each device of {worst.pool} needs" if each_alone else "its devices together need"
        yield (
            f"placement {shown(case.bound.name)} may run out of memory: {who} about {format_bytes(worst.need)},"
            f" {worst.place} has {format_bytes(worst.have)}, and the estimate may be off by 10 %{more}"
        )


def _way_out(case: MemoryCase) -> str:
    settings = roomy_settings(case)
    if settings is not None:
        return f"{_flags(settings)} fits with about {_peak(case.changed(settings))} a device"
    for word, other in _other_devices(case):
        for settings in alternatives(other):
            if other.is_roomy(settings):
                flags = f" with {_flags(settings)}" if settings else ""
                peak = _peak(other.changed(settings))
                return f"no setting alone is enough; {word}{flags} fits with about {peak} a device"
    # CPU devices of a host share its memory, and each has a process. Those of one pool were tried above.
    pools = case.bound.pools
    fewer = "fewer devices, " if case.devices[0].kind == "cpu" and len(case.bound.devices) > len(pools) > 1 else ""
    return (
        f"no setting fits, at least {format_bytes(least_missing(case))} are missing: use {fewer}a smaller model or"
        " shorter sequences"
    )


def _peak(case: MemoryCase) -> str:
    return format_bytes(case.fullest.peak)


def _flags(settings: Settings) -> str:
    return " ".join(f"--set {key}={str(value).lower()}" for key, value in settings.items())


def relief(case: MemoryCase) -> tuple[str, ...]:
    """What lowers the estimate of a placement most, with the peak that it then has: a few lines."""
    before = case.fullest
    batch = placed_workload(case.workload, case.bound.placement).batch
    length = case.length
    # A budget that its sequences do not fill is lowered from what they do.
    sequences = max(batch.mini_batch_size // len(devices) for devices in case.bound.members.values())
    tokens = max(min(batch.micro_batch_tokens, sequences * length) // (2 * length), 1) * length
    alone: list[Settings] = [{"batch.micro_batch_tokens": tokens}, *_halved_cache(case), *_halved_batch(case)]
    changes = [(_flags(settings), case.changed(settings)) for settings in alone] + _other_splits(case)[:1]
    changes = [change for change in changes if change[1].fullest.peak < before.peak]
    others: list[tuple[str, MemoryCase]] = []
    least = before.peak
    for settings in alternatives(case):
        changed = case.changed(settings)
        # More settings have to bring more.
        if changed.fullest.peak < least:
            others.append((_flags(settings), changed))
            least = changed.fullest.peak
    # Those between the cheapest and those that bring most say little more.
    shown = [*changes, *others[:1], *others[1:][-1:]]
    return tuple(f"{what}: about {_peak(after)} instead of {format_bytes(before.peak)}" for what, after in shown)


def _halved_cache(case: MemoryCase) -> list[Settings]:
    """The share of the memory that leaves about half the keys and values, where they are in what needs most."""
    engine = case.engine
    if engine is None or "kv cache" not in case.fullest.parts:
        return []
    half = engine.hundredths(engine.whole - engine.cache // 2)
    return [shares.settings(half) for shares in lower_shares(case) if half in shares.sizes]


def _halved_batch(case: MemoryCase) -> list[Settings]:
    """The largest batch of at most half the sequences, where generating is what needs most."""
    half = case.workload.batch.size // 2
    batches = smaller_batches(case) if case.fullest.moment == GEN else ()
    halved = (one.largest(lambda settings: settings["batch.size"] <= half) for one in batches)
    return [settings for settings in halved if settings][:1]


def _other_devices(case: MemoryCase) -> Iterator[tuple[str, MemoryCase]]:
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


def _other_splits(case: MemoryCase) -> list[tuple[str, MemoryCase]]:
    """The same devices dealt to two pools in other numbers, with the word for it, the lowest peak first."""
    placement = case.bound.placement
    if len(placement.pools) != 2 or any(len(pool.counts) > 1 for pool in placement.pools):
        return []
    members = [device for part in case.bound.members.values() for device in part]
    first, second = (pool.name for pool in placement.pools)
    found: list[tuple[str, MemoryCase]] = []
    for count in range(1, len(members)):
        if count != placement.pools[0].size:
            split = {first: tuple(members[:count]), second: tuple(members[count:])}
            found += _resized(case, "", split)
    named = [(_split_word(other), other) for _, other in found]
    return sorted(named, key=lambda one: one[1].fullest.peak)


def _split_word(case: MemoryCase) -> str:
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


def _resized(
    case: MemoryCase, word: str, devices: Mapping[str, tuple[Device, ...]]
) -> Iterator[tuple[str, MemoryCase]]:
    """The placement with other numbers of devices in its pools, where nothing more stands in its way."""
    before = case.bound.placement
    pools = [
        replace(pool, counts=tuple(count * len(devices[pool.name]) // pool.size for count in pool.counts))
        for pool in before.pools
    ]
    placement = replace(before, pools=tuple(pools))
    if {*impossible_placements([placement], case.workload)} <= {*impossible_placements([before], case.workload)}:
        yield word, replace(case, bound=replace(case.bound, placement=placement, members=devices))
