"""Where roles were seen on other devices than was asked for, in words."""

from collections.abc import Iterator, Mapping
from itertools import combinations

import numpy as np

from placebench.compare.measure.observed import UNKNOWN, Arrangement
from placebench.compare.measure.placements import RunSide
from placebench.spec.devices import index_ranges, label_ranges
from placebench.spec.text import listing, plural

# A device whose load in the steps is below this has not worked, whether or not its spans are known.
IDLE_LOAD = 0.01
# The word of `--job` for a command of which nothing is known.
PLAIN_COMMAND = "command"


def misplacements(side: RunSide) -> Iterator[str]:
    """Where a placement's launches differ from what was asked for, a sentence each with its rounds."""
    rounds: dict[str, list[int]] = {}
    for arrangement in side.arrangements:
        for text in differences(side, arrangement):
            rounds.setdefault(text, []).extend(arrangement.rounds)
    for text, found in rounds.items():
        some = len(found) < len(side.launches)
        where = f" in {'round' if len(found) == 1 else 'rounds'} {index_ranges(sorted(found))}" if some else ""
        yield f"{side.name}{where}: {text}"


def differences(side: RunSide, arrangement: Arrangement) -> Iterator[str]:
    """What was asked for and what was seen instead, a sentence each.

    Which GPUs a pool of a user's job has is the framework's choice, so only who is together with whom counts there, and
    on how many devices; a pool of placebench's own job has the devices that it was given. Of a plain command, which
    says itself what it puts where, only devices are asked for.
    """
    placement, labels, job = side.placement, side.run.labels, side.run.record.job
    if set(arrangement.seen["role"]) == {UNKNOWN}:
        return
    if placement.roles and not (job and job.framework == PLAIN_COMMAND):
        yield from _other_places(side, arrangement)
    yield from _not_as_allotted(side, arrangement)
    worked = set(arrangement.seen.loc[arrangement.seen["share"] > 0, "device"])
    without = [device for device in placement.devices if device not in worked]
    if idle := [device for device in without if not _load(side, arrangement, device) >= IDLE_LOAD]:
        asked = plural(len(placement.devices), "device")
        yield f"asked for {asked}; no role was seen at work on {label_ranges(idle, labels)}."


def _not_as_allotted(side: RunSide, arrangement: Arrangement) -> Iterator[str]:
    """Roles at work on other devices than Ray has allotted to their workers."""
    if not (arrangement.seen["allotted"] > 0).any():
        return
    for role, seen in arrangement.seen.groupby("role", sort=False):
        worked, allotted = set(seen.loc[seen["share"] > 0, "device"]), set(seen.loc[seen["allotted"] > 0, "device"])
        if allotted and not worked <= allotted:
            labels = side.run.labels
            yield (
                f"Ray has allotted {label_ranges(allotted, labels)} to the workers of {role}; seen at work on"
                f" {label_ranges(worked, labels)}."
            )


def _other_places(side: RunSide, arrangement: Arrangement) -> Iterator[str]:
    """Roles together that were asked apart, on more or other devices, or apart that were asked together."""
    placement, labels = side.placement, side.run.labels
    at: dict[str, dict[str, frozenset[str]]] = {
        pool: {role: on for role, home in placement.roles.items() if home == pool and (on := arrangement.devices(role))}
        for pool in placement.pools
    }
    seen = {pool: frozenset[str]().union(*roles.values()) for pool, roles in at.items()}
    for first, other in combinations(seen, 2):
        if shared := seen[first] & seen[other]:
            who = [role for pool in (first, other) for role, on in at[pool].items() if on & shared]
            asked = f"{listing(at[first])} in {first} and {listing(at[other])} in {other}"
            yield f"asked for {asked}, apart; {listing(who)} were seen together on {label_ranges(shared, labels)}."
    for pool, members in placement.pools.items():
        own = side.run.record.job is None
        if seen[pool].difference(members) if own else len(seen[pool]) > len(members):
            asked = label_ranges(members, labels) if own else plural(len(members), "device")
            yield f"asked for {listing(at[pool])} on {asked}; seen on {label_ranges(seen[pool], labels)}."
        if len(parts := _apart(at[pool])) > 1:
            where = (f"{listing(names)} on {label_ranges(on, labels)}" for names, on in parts)
            yield f"asked for {listing(at[pool])} together in {pool}; seen apart: {listing(where)}."


def _apart(at: Mapping[str, frozenset[str]]) -> list[tuple[list[str], frozenset[str]]]:
    """Roles put together with those with which they share devices, directly or by others; and all devices of each."""
    groups: list[tuple[list[str], frozenset[str]]] = []
    for role, devices in at.items():
        near = [group for group in groups if group[1] & devices]
        groups = [group for group in groups if group not in near]
        groups.append(([*(name for names, _ in near for name in names), role], devices.union(*(on for _, on in near))))
    return sorted(groups, key=lambda group: list(at).index(group[0][0]))


def _load(side: RunSide, arrangement: Arrangement, device: str) -> float:
    """Mean load of a device in the measured steps of some launches, 0..1; NaN where it is not known."""
    key = f"load/{device}"
    if key not in side.launch_values:
        return np.nan
    return float(side.launch_values.loc[list(arrangement.rounds), key].mean())
