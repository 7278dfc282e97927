"""The nodes of the SLURM job that a run is in, and their devices."""

import json
import subprocess
import sys
from typing import Any

from placebench.errors import UsageError
from placebench.record.parts import Record
from placebench.sessions.slurm_steps import host_names, step_command
from placebench.spec.devices import Device, DeviceSpec, device_from_dict
from placebench.version import __version__

_LOOK = (sys.executable, "-m", "placebench.sessions.torchrun.look")
_LOOK_TIMEOUT_S = 120.0


class JobNode(Record):
    """A node of the job."""

    name: str
    """SLURM's name for it."""
    address: str
    """The address by which the other nodes reach it."""
    host: dict[str, Any]
    """What `run.json` keeps of it; see `devices.host_record`."""


class JobNodes(Record):
    """The nodes of a SLURM job, as a run under torchrun uses them and `run.json` and `launch.json` keep them."""

    address: str
    """The address by which the nodes reach the one that the run is started on."""
    nodes: tuple[JobNode, ...]
    """The nodes in SLURM's order."""


def discover_nodes(listed: str, spec: DeviceSpec | None) -> tuple[JobNodes, tuple[Device, ...]]:
    """The devices of a job, node after node.

    Args:
        listed: the job's nodes as SLURM lists them.
        spec: what each node is to give; None for all GPUs of a node, or its CPU devices where it has none.

    Raises:
        UsageError: a node cannot be asked, or has not what was asked for; one line for every reason.
    """
    try:
        names = host_names(listed)
        words = [*step_command("placebench-look", names), *_LOOK, *([str(spec)] if spec else [])]
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LOOK_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"the nodes of the SLURM job cannot be asked: {error}") from None
    answers = {entry["name"]: entry for entry in map(_entry, done.stdout.splitlines()) if entry}
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    nodes: list[JobNode] = []
    devices: list[Device] = []
    reasons: list[str] = []
    for name in names:
        if (entry := answers.get(name)) is None:
            reasons.append(f"node {name}: placebench cannot look at it: {last}")
        elif entry["version"] != __version__:
            there = entry["version"]
            reasons.append(f"node {name}: placebench there is {there}, here {__version__}: install the same version")
        elif "error" in entry:
            reasons.append(f"node {name}: {entry['error']}")
        else:
            nodes.append(JobNode.model_validate(entry))
            devices += [device_from_dict(device) for device in entry["devices"]]
    if len({device.kind for device in devices}) > 1:
        without = ", ".join(dict.fromkeys(device.node for device in devices if device.kind == "cpu"))
        reasons.append(
            f"there are nodes with GPUs and nodes without ({without}): use --devices cpu, or nodes that are alike"
        )
    if reasons:
        raise UsageError(*reasons)
    return JobNodes(address=answers[names[0]]["caller"], nodes=tuple(nodes)), tuple(devices)


def _entry(line: str) -> dict[str, Any] | None:
    """What a node has printed; None for a line of something else."""
    try:
        content = json.loads(line)
    except ValueError:
        return None
    return content if isinstance(content, dict) and {"name", "version"} <= content.keys() else None
