"""A placement on other numbers of devices: another split of those there are, more GPUs, or fewer CPU devices."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from placebench.errors import Reasons
from placebench.plan.memory_case import MemoryCase
from placebench.spec.devices import Device
from placebench.spec.placement_checks import impossible_placements
from placebench.spec.presets import LEARNERS, SPLIT
from placebench.spec.words import parse_placement, preset_of

_MOST_DEVICES = 64


def other_devices(case: MemoryCase) -> Iterator[tuple[str, MemoryCase]]:
    """Other numbers of devices: another split of those there are, then more GPUs, or fewer CPU devices."""
    yield from other_splits(case)
    pools = case.bound.devices
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


def other_splits(case: MemoryCase) -> list[tuple[str, MemoryCase]]:
    """The same devices dealt to two pools in other numbers, with the word for it, the lowest peak first."""
    placement = case.bound.placement
    if len(placement.pools) != 2 or any(len(pool.counts) > 1 for pool in placement.pools):
        return []
    members = [device for part in case.bound.devices.values() for device in part]
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
        yield word, replace(case, bound=replace(case.bound, placement=placement, devices=devices))
