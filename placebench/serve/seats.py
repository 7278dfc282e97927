"""Who sits where: the roles that were asked for on each device, and those that are seen there."""

from collections.abc import Mapping
from typing import Any

from placebench.compare.measure.observed import UNKNOWN, observe
from placebench.compare.read.run import Launch
from placebench.record.folder import Status
from placebench.record.launch_lines import LaunchLines
from placebench.serve.launch_files import LaunchFiles, as_json
from placebench.telemetry.spans import CONTROLLER


def seats(current: LaunchFiles, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """One object a device of the launch.

    `asked` and `seen` name roles: those that were to be there, and those whose phases ran there in the last steps, with
    their share of these steps and their memory, see `observed.observe`. `processes` compute there, whoever started
    them.
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
    """Roles by device, from the spans that are at hand."""
    end = max((span.end_mono for span in current.spans), default=0.0)
    devices = list(current.devices.values())
    lines = LaunchLines(
        spans=tuple(current.spans),
        processes=tuple(current.processes.values()),
        devices=(
            *(state.processes for state in devices if state.processes),
            # The fullest moment of the launch, wherever it was, as one of these steps.
            *(state.fullest.model_copy(update={"mono": end}) for state in devices if state.fullest),
        ),
    )
    launch = Launch(current.trial, current.steps.round, current.steps.placement, Status.RUNNING, 0, lines=lines)
    found: dict[str, list[dict[str, Any]]] = {}
    for row in observe(launch, current.placement).itertuples():
        if row.role != UNKNOWN:
            seat = {"role": row.role, "share": as_json(row.share), "memory": as_json(row.memory_bytes)}
            found.setdefault(str(row.device), []).append(seat)
    return found


def _roles_of_processes(current: LaunchFiles) -> dict[tuple[int, str], list[str]]:
    """Roles by process and device, of spans that name their process."""
    found: dict[tuple[int, str], dict[str, None]] = {}
    for span in current.spans:
        if span.pid is not None and span.role is not None and span.device != CONTROLLER:
            found.setdefault((span.pid, span.device), {})[span.role] = None
    return {key: list(roles) for key, roles in found.items()}
