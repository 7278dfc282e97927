"""Who sits where: the roles that were asked for on each device, and those that are seen there."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from placebench.serve.launch_files import LaunchFiles
from placebench.spec.intervals import length, union
from placebench.spec.phases import STEP
from placebench.spec.placement import Role
from placebench.telemetry.spans import CONTROLLER

# The last steps, in which roles are looked for.
_STEPS = 5


def seats(current: LaunchFiles, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """One object a device of the launch.

    `asked` and `seen` name roles: those that were to be there, and those whose phases ran there in the last steps, with
    their share of these steps. `memory` is what is in use there, bytes; `processes` compute there,
    whoever started them.
    """
    placement = current.placement
    seen = _seen(current)
    roles_of = _roles_of_processes(current)
    found = []
    for pool, devices in placement.pools.items():
        asked = [role for role, home in placement.roles.items() if home == pool]
        for device in devices:
            state = current.devices.get(device)
            listed = state.processes.processes if state and state.processes else ()
            computing = {one.pid: one.memory_bytes for one in listed}
            known = {pid for pid, where in current.processes if where == device}
            found.append(
                {
                    "device": labels.get(device, device),
                    "pool": pool,
                    "asked": asked,
                    "seen": seen.get(device, []),
                    "memory": state.last.quantities.get("memory_bytes") if state and state.last else None,
                    "processes": [
                        {
                            "pid": pid,
                            "roles": roles_of.get((pid, device), asked if pid in known else []),
                            "memory": computing.get(pid),
                            "is_ours": pid in known or (pid, device) in roles_of,
                        }
                        for pid in sorted({*computing, *known})
                    ],
                }
            )
    return found


def _seen(current: LaunchFiles) -> dict[str, list[dict[str, Any]]]:
    """Roles by device: the part of the last steps in which a phase of each ran there."""
    last = current.last_step
    if last is None:
        return {}
    steps = [span for span in current.spans if span.device == CONTROLLER and span.phase == STEP and span.step <= last]
    whole = steps[-_STEPS:]
    start, end = whole[0].start_mono, whole[-1].end_mono
    times: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for span in current.spans:
        if span.role is not None and span.device != CONTROLLER and span.end_mono > start and span.start_mono < end:
            times.setdefault((span.device, span.role), []).append((span.start_mono, span.end_mono))
    order: dict[str, int] = {role: place for place, role in enumerate(Role)}
    found: dict[str, list[dict[str, Any]]] = {}
    for device, role in sorted(times, key=lambda key: (key[0], order.get(key[1], len(order)), key[1])):
        share = length(union(np.clip(times[device, role], start, end))) / (end - start)
        found.setdefault(device, []).append({"role": role, "share": share})
    return found


def _roles_of_processes(current: LaunchFiles) -> dict[tuple[int, str], list[str]]:
    """Roles by process and device, of spans that name their process."""
    found: dict[tuple[int, str], dict[str, None]] = {}
    for span in current.spans:
        if span.pid is not None and span.role is not None and span.device != CONTROLLER:
            found.setdefault((span.pid, span.device), {})[span.role] = None
    return {key: list(roles) for key, roles in found.items()}
