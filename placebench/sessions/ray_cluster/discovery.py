"""The nodes and devices of a Ray cluster, asked for in a process of its own that ends in time, whatever Ray does."""

import json
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placebench.errors import UsageError
from placebench.spec.devices import Device, DeviceSpec, device_from_dict

PROBE = (sys.executable, "-m", "placebench.sessions.ray_cluster.probe")
DEFAULT_PLACEMENT_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 5.0
_PROBE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class ClusterNode:
    """One node that takes part."""

    name: str
    """By which messages and files name it, unique in the cluster; see `naming`."""
    ray_id: str
    """Ray's id of it, another one at each start."""
    address: str
    """Its address, by which the other nodes reach it."""
    cpus: float
    """CPUs that Ray offers there."""
    gpus: float
    """GPUs that Ray offers there."""
    host: Mapping[str, Any]
    """What `run.json` keeps of it; see `devices.host_record`."""


@dataclass(frozen=True)
class Cluster:
    """An existing Ray cluster on which a run places its pools."""

    address: str
    """As the user gave it: `host:port`, or `auto`."""
    nodes: tuple[ClusterNode, ...]
    """Those with devices, in the order of their names."""
    placement_timeout_s: float
    """Seconds a launch waits for its devices to be free."""

    def to_dict(self) -> dict[str, Any]:
        """The cluster as an object of `run.json` and `launch.json`."""
        return {
            "address": self.address,
            "placement_timeout_s": self.placement_timeout_s,
            "nodes": [vars(node) | {"host": dict(node.host)} for node in self.nodes],
        }


def cluster_from_dict(content: Mapping[str, Any]) -> Cluster:
    """The cluster of an object that `Cluster.to_dict` made."""
    nodes = tuple(ClusterNode(**node) for node in content["nodes"])
    return Cluster(str(content["address"]), nodes, float(content["placement_timeout_s"]))


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
    answer = _probe(address, spec)
    nodes: list[ClusterNode] = []
    devices: list[Device] = []
    reasons: list[str] = []
    for entry in answer["nodes"]:
        name = entry["name"]
        if "error" in entry:
            reasons.append(f"node {name}: {entry['error']}")
            continue
        found = [device_from_dict(device) for device in entry["devices"]]
        node = ClusterNode(name, entry["ray_id"], entry["address"], entry["cpus"], entry["gpus"], entry["host"])
        reasons += _too_few(node, found)
        nodes.append(node)
        devices += found
    kinds = {device.kind for device in devices}
    if len(kinds) > 1:
        without = ", ".join(dict.fromkeys(device.node for device in devices if device.kind == "cpu"))
        reasons.append(
            f"--ray-address {address}: there are nodes with GPUs and nodes without ({without}): use"
            " --devices cpu, or a cluster of GPU nodes alone"
        )
    if reasons:
        raise UsageError("\n".join(reasons))
    return Cluster(address, tuple(nodes), placement_timeout_s), tuple(devices)


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
            f"--ray-address {address!r}: write host:port of the cluster's head, such as 10.0.0.1:6379, or auto; a"
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
            f"--ray-address {address}: the nodes have not said within {_PROBE_TIMEOUT_S:g} s what they have; look at"
            " ray status"
        ) from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UsageError(f"--ray-address {address}: Ray cannot be asked: {last}") from None
    if "error" in answer:
        raise UsageError(f"--ray-address {address}: {answer['error']}")
    return answer


def _too_few(node: ClusterNode, devices: Sequence[Device]) -> list[str]:
    """What Ray offers on a node is less than its devices need: a launch would wait for ever."""
    gpus = sum(device.kind == "gpu" for device in devices)
    reasons = []
    if node.cpus < len(devices):
        reasons.append(
            f"node {node.name}: {len(devices)} devices need as many CPUs of Ray, which has {node.cpus:g} there: start"
            f" it with --num-cpus={len(devices)}, or use fewer with --devices"
        )
    if node.gpus < gpus:
        reasons.append(
            f"node {node.name}: there are {gpus} GPUs and Ray has {node.gpus:g} of them: start it with"
            f" --num-gpus={gpus}, or use --devices gpu:{int(node.gpus) or 1}"
        )
    return reasons
