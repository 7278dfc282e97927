"""The nodes and devices of a Ray cluster, asked for in a process of its own that ends in time, whatever Ray does."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from placebench.errors import UsageError
from placebench.record.parts import Record
from placebench.spec.devices import Device, DeviceSpec, device_from_dict
from placebench.spec.legible import shown

PROBE = (sys.executable, "-m", "placebench.sessions.ray_cluster.probe")
DEFAULT_PLACEMENT_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 5.0
_PROBE_TIMEOUT_S = 60.0


class ClusterNode(Record):
    """One node that takes part."""

    name: str
    """The name that messages and files give it, unique in the cluster; see `naming`."""
    ray_id: str
    """Ray's id of it, another one at each start."""
    address: str
    """The address by which the other nodes reach it."""
    cpus: float
    """CPUs that Ray offers there."""
    gpus: float
    """GPUs that Ray offers there."""
    host: dict[str, Any]
    """What `run.json` keeps of it; see `devices.host_record`."""


class Cluster(Record):
    """An existing Ray cluster on which a run places its pools, as `run.json` and `launch.json` keep it."""

    address: str
    """The address as the user gave it: `host:port`, or `auto`."""
    placement_timeout_s: float
    """Seconds a launch waits for its devices to be free."""
    nodes: tuple[ClusterNode, ...]
    """The nodes with devices, in the order of their names."""


def discover_cluster(
    address: str, spec: DeviceSpec | None, placement_timeout_s: float = DEFAULT_PLACEMENT_TIMEOUT_S
) -> tuple[Cluster, tuple[Device, ...]]:
    """The devices of a cluster, node after node.

    Args:
        address: `host:port` of the cluster's GCS, or `auto` for the one that this host is part of.
        spec: what each node is to give; None for all GPUs of a node, or its CPU devices where it has none.
        placement_timeout_s: kept in the cluster.

    Raises:
        UsageError: the cluster cannot be reached, placebench cannot be imported on a node, or a node has not what was
            asked for; one line for every reason.
    """
    refuse_unreachable(address)
    nodes: list[ClusterNode] = []
    devices: list[Device] = []
    reasons: list[str] = []
    for entry in _probe(address, spec)["nodes"]:
        if "error" in entry:
            reasons.append(f"node {entry['name']}: {entry['error']}")
            continue
        found = [device_from_dict(device) for device in entry["devices"]]
        nodes.append(ClusterNode.model_validate(entry))
        reasons += _too_few(nodes[-1], found)
        devices += found
    if len({device.kind for device in devices}) > 1:
        without = ", ".join(dict.fromkeys(device.node for device in devices if device.kind == "cpu"))
        reasons.append(
            f"--ray-address {address}: there are nodes with GPUs and nodes without ({without}): use --devices cpu, or"
            " a cluster with only GPU nodes"
        )
    if reasons:
        raise UsageError(*reasons)
    return Cluster(address=address, placement_timeout_s=placement_timeout_s, nodes=tuple(nodes)), tuple(devices)


def refuse_unreachable(address: str) -> None:
    """Say at once what Ray would find out after a minute.

    Raises:
        UsageError: it is not an address, or nothing answers there.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(
            f"--ray-address {shown(address)}: write host:port of the cluster's head, such as 10.0.0.1:6379, or auto; a"
            " ray:// client cannot run a launch, so start placebench on a node of the cluster"
        )
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise UsageError(
            f"--ray-address {address}: no Ray answers there ({error.strerror or error}): start one with ray start"
            " --head, or correct the address"
        ) from None


def _probe(address: str, spec: DeviceSpec | None) -> dict[str, Any]:
    """What the probe says of the cluster.

    Raises:
        UsageError: it finds no cluster, or does not end.
    """
    try:
        done = subprocess.run(
            [*PROBE, address, *([str(spec)] if spec else [])],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"--ray-address {address}: the nodes have not reported their devices within {_PROBE_TIMEOUT_S:g} s; look"
            " at ray status"
        ) from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UsageError(f"--ray-address {address}: Ray cannot be asked: {last}") from None
    if "error" in answer:
        raise UsageError(f"--ray-address {address}: {answer['error']}")
    return answer


def _too_few(node: ClusterNode, devices: Sequence[Device]) -> Iterator[str]:
    """What Ray offers on a node is less than its devices need: a launch would wait for ever."""
    gpus = sum(device.kind == "gpu" for device in devices)
    if node.cpus < len(devices):
        yield (
            f"node {node.name}: {len(devices)} devices need as many CPUs in Ray, which has {node.cpus:g} there: start"
            f" it with --num-cpus={len(devices)}, or use fewer with --devices"
        )
    if node.gpus < gpus:
        yield (
            f"node {node.name}: there are {gpus} GPUs and Ray has {node.gpus:g} of them: start it with"
            f" --num-gpus={gpus}, or use --devices gpu:{int(node.gpus) or 1}"
        )
