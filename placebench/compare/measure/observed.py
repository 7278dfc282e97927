"""Which role was seen on which device: by the spans of its phases and by the processes that compute there."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from placebench.compare.measure.attribution import peak_memory
from placebench.compare.read.run import Launch
from placebench.spec.bound import RunPlacement
from placebench.spec.intervals import covered, length, union
from placebench.spec.phases import PHASES, Activity
from placebench.spec.placement import Role
from placebench.telemetry.spans import CONTROLLER

UNKNOWN = "unknown"
"""Stands for the role of processes of which no role is known."""
RoleOnDevice = tuple[str, str]
"""A role, or `UNKNOWN`, and the id of a device."""
Processes = dict[RoleOnDevice, set[int]]
"""The ids of the processes that work for a role on a device."""
_PASSING_ON = {phase.name for phase in PHASES if phase.activity in (Activity.SEND_WEIGHTS, Activity.HAND_OVER)}


@dataclass(frozen=True)
class Arrangement:
    """Launches of a placement whose roles worked on the same devices."""

    rounds: tuple[int, ...]
    """Their rounds."""
    seen: pd.DataFrame
    """One row a role and device, means over the launches: see `observe`."""

    def devices(self, role: str) -> frozenset[str]:
        """Ids of the devices on which a role worked."""
        return frozenset(self.seen.loc[(self.seen["role"] == role) & (self.seen["share"] > 0), "device"])


def observe(launch: Launch, placement: RunPlacement) -> pd.DataFrame:
    """Where the roles of a launch were.

    Returns:
        One row a role and device, roles in the order of `Role`, devices in the placement's: `share`, the part of the
        measured steps in which a phase of the role ran on the device (0..1), and `memory_bytes`, the highest reading
        of the memory of the role's processes there, with `memory_with`, the other roles whose processes some of these
        are, too. Where no reading tells processes apart, it is the memory of a device that is the role's alone, else
        NaN. A share of 0 is a device that a process of the role has memory on without work there. Where no role is
        known, the one row a device is `UNKNOWN`, for the launch's own processes. `allotted` is 1 where Ray has allotted
        the device to a worker of the role, 0 where it has allotted them others alone, NaN where none is a worker of
        Ray's that has devices.
    """
    known: dict[str, set[int]] = {}
    for process in launch.lines.processes:
        if process.device in placement.devices:
            known.setdefault(process.device, set()).add(process.pid)
    shares, pids = _work_seen(launch, known)
    if not shares:
        pids = {(UNKNOWN, device): processes for device, processes in known.items()}
        shares = dict.fromkeys(pids, np.nan)
    table = launch.device_processes[launch.device_processes["device"].isin(placement.devices)]
    for (role, _), processes in tuple(pids.items()) if len(table) else ():
        for device in table.loc[table["pid"].isin(processes), "device"].unique():
            shares.setdefault((role, str(device)), 0.0 if role != UNKNOWN else np.nan)
    order = {name: place for place, name in enumerate((*Role, *placement.devices))}
    keys = sorted(shares, key=lambda key: [order.get(name, len(order)) for name in key])
    found = [(*key, shares[key], *_memory(launch, *key, shares, pids)) for key in keys]
    seen = pd.DataFrame(found, columns=["role", "device", "share", "memory_bytes", "memory_with"])
    return _with_allotted(seen, launch, placement, pids)


def _work_seen(launch: Launch, known: Mapping[str, set[int]]) -> tuple[dict[RoleOnDevice, float], Processes]:
    """The share of the measured steps in which each role worked on each device, and the processes that did.

    Args:
        launch: whose spans tell.
        known: the processes of each device, for spans that name none.
    """
    spans, whole = launch.spans, union(launch.measured_steps[["start", "end"]].to_numpy(dtype=np.float64))
    work = spans[spans["role"].notna() & (spans["device"] != CONTROLLER)]
    times, workers = (work[names].to_numpy(dtype=np.float64) for names in (["start", "end"], "pid"))
    passes_on = [phase in _PASSING_ON for phase in work["phase"]]
    rows_of: dict[RoleOnDevice, list[int]] = {}
    for row, key in enumerate(zip(work["role"].tolist(), work["device"].tolist(), strict=True)):
        rows_of.setdefault(key, []).append(row)
    shares: dict[RoleOnDevice, float] = {}
    pids: Processes = {}
    for key, rows in rows_of.items():
        if share := float(covered(union(times[rows]), whole).sum()) / (length(whole) or np.nan):
            shares[key] = share
            # Who sends weights, or asks an engine for its memory, need not be where the role is.
            own = [row for row in rows if not passes_on[row]] or rows
            named = {int(pid) for pid in workers[own] if not np.isnan(pid)}
            pids[key] = named or known.get(key[1], set())
    return shares, pids


def _with_allotted(seen: pd.DataFrame, launch: Launch, placement: RunPlacement, pids: Processes) -> pd.DataFrame:
    """What was seen, beside what Ray has allotted to the processes that worked, also where they did not work."""
    node = {device.id: device.node for devices in placement.members.values() for device in devices}
    by_role: dict[str, list[str]] = {}
    for role in dict.fromkeys(seen["role"]):
        # Two nodes may have a process of one number each.
        own = {(pid, node.get(device)) for (name, device), mine in pids.items() if name == role for pid in mine}
        by_role[role] = [line.device for line in launch.lines.ray if (line.pid, node.get(line.device)) in own]
    there = set(zip(seen["role"], seen["device"], strict=True))
    more = [
        (role, device, 0.0 if role != UNKNOWN else np.nan, np.nan, ())
        for role, devices in by_role.items()
        for device in placement.devices
        if device in devices and (role, device) not in there
    ]
    table = pd.concat([seen, pd.DataFrame(more, columns=seen.columns)], ignore_index=True) if more else seen
    allotted = [
        float(device in by_role[role]) if by_role[role] else np.nan
        for role, device in zip(table["role"], table["device"], strict=True)
    ]
    return table.assign(allotted=pd.Series(allotted, index=table.index, dtype=float))


def as_seen(launch: Launch, placement: RunPlacement) -> RunPlacement:
    """The placement of a user's job with its pools on the devices on which their roles were seen in a launch.

    Which devices a pool gets is the framework's choice. Devices without work stay in a pool that has too few. Where
    pools share devices, or have more than they were asked to have, it stays as it was planned.
    """
    work = launch.spans[launch.spans["pool"].notna() & (launch.spans["device"] != CONTROLLER)]
    pairs = work[["device", "pool"]].drop_duplicates()
    seen = {pool: set(pairs.loc[pairs["pool"] == pool, "device"]) for pool in placement.pools}
    if pairs["device"].duplicated().any() or any(len(seen[pool]) > len(placement.pools[pool]) for pool in seen):
        return placement
    every = [device for devices in placement.members.values() for device in devices]
    free = [device for device in every if device.id not in set(pairs["device"])]
    members = {}
    for pool, planned in placement.members.items():
        own = [device for device in every if device.id in seen[pool]]
        # Its own ones first, so that nothing changes where the devices are as they were planned.
        left = sorted(free, key=lambda device: device not in planned)[: len(planned) - len(own)]
        free = [device for device in free if device not in left]
        members[pool] = tuple(sorted((*own, *left), key=every.index))
    return replace(placement, members=members)


def arrangements(launches: Sequence[Launch], placement: RunPlacement) -> tuple[Arrangement, ...]:
    """Launches put together by which role worked where, the most frequent first; none where nothing was seen."""
    groups: dict[frozenset[tuple[str, str]], list[tuple[int, pd.DataFrame]]] = {}
    for launch in launches:
        seen = observe(launch, placement)
        worked = seen[seen["share"] != 0]
        if len(worked):
            key = frozenset(zip(worked["role"], worked["device"], strict=True))
            groups.setdefault(key, []).append((launch.round, seen))
    found = []
    for group in sorted(groups.values(), key=len, reverse=True):
        rows = pd.concat([table for _, table in group]).groupby(["role", "device"], sort=False)
        seen = rows.agg(
            share=("share", "mean"),
            memory_bytes=("memory_bytes", "mean"),
            memory_with=("memory_with", _together),
            allotted=("allotted", "mean"),
        ).reset_index()
        found.append(Arrangement(tuple(number for number, _ in group), seen))
    return tuple(found)


def _together(found: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(role for roles in found for role in roles))


def _memory(
    launch: Launch,
    role: str,
    device: str,
    shares: Mapping[RoleOnDevice, float],
    pids: Processes,
) -> tuple[float, tuple[str, ...]]:
    """Highest memory of a role on a device, bytes, and the roles that it is of, too, as `observe` says."""
    table = launch.device_processes
    if len(table):
        mine = set().union(*(found for (name, _), found in pids.items() if name == role))
        table = table[(table["device"] == device) & table["pid"].isin(mine)].dropna(subset="memory_bytes")
    if len(table):
        there = set(table["pid"])
        others = {name for (name, _), found in pids.items() if name != role and found & there}
        named = tuple(name for name in (*Role, UNKNOWN) if name in others)
        return float(table.groupby("mono")["memory_bytes"].sum().max()), named
    roles = {name for name, place in shares if place == device}
    return (peak_memory(launch, device) if roles == {role} else np.nan), ()
