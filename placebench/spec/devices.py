"""Devices as data: what `--devices` asks for, what a run has, and how its records name them."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Literal, TypeVar, get_args

from placebench.errors import UsageError
from placebench.spec.legible import shown
from placebench.spec.text import few

Kind = Literal["cpu", "gpu"]
T = TypeVar("T")

MAX_CPU_DEVICES = 64
_MAX_DESCRIBED = 4096
# So many nodes that are alike are told one by one.
_FEW_NODES = 3
_SPEC = re.compile(
    r"(?P<kind>cpu|gpu)(:(?P<count>[1-9][0-9]{0,17})(x(?P<nodes>[1-9][0-9]{0,17}))?(@(?P<gib>[1-9][0-9]{0,5})GiB)?)?"
)

DESCRIBED_GPU = "GPU"
"""Name of a GPU of which a plan says only how much memory it has."""


@dataclass(frozen=True)
class Device:
    """One GPU, or one CPU device."""

    id: str
    """UUID of a GPU, `cpu:N` of a CPU device, on a Ray cluster with its node's name in front; unique in a run."""
    kind: Kind
    """Kind of the device."""
    index: int
    """NVML's index of a GPU, N of a CPU device."""
    node: str
    """Hostname; on a Ray cluster the node's name there."""
    name: str
    """Product name of GPU or processor."""
    memory_bytes: int
    """Memory of a GPU; of a CPU device its equal share of the memory this process may use."""
    cores: tuple[int, ...] = ()
    """Ids of the cores a CPU device's process is pinned to; empty for a GPU."""


@dataclass(frozen=True)
class DeviceSpec:
    """What `--devices` asks for."""

    kind: Kind
    """Kind of the devices."""
    count: int | None = None
    """Number of devices on each node; None takes what is there."""
    nodes: int | None = None
    """How many nodes a cluster has that is only described, for a plan; None for this host."""
    memory_bytes: int | None = None
    """Memory of each of the devices described; None for 80 GiB a GPU, and as here for CPU devices."""

    @property
    def is_described(self) -> bool:
        """Whether the devices are described, not looked for."""
        return self.nodes is not None or self.memory_bytes is not None

    def __str__(self) -> str:
        count = "" if self.count is None else f":{self.count}"
        nodes = "" if self.nodes is None else f"x{self.nodes}"
        memory = "" if self.memory_bytes is None else f"@{self.memory_bytes >> 30}GiB"
        return f"{self.kind}{count}{nodes}{memory}"


def parse_devices(text: str, origin: str = "--devices") -> DeviceSpec:
    """Read `cpu:N`, `gpu:N`, `cpu` or `gpu`; or a description, `gpu:NxM` or `gpu:NxM@GGiB`: N on each of M nodes.

    Args:
        text: what to read.
        origin: what to call its source in a message.

    Raises:
        UsageError: it is something else, or more devices than make sense.
    """
    match = _SPEC.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"{origin} {shown(text)}: write cpu:N or gpu:N with N above 0, or cpu or gpu for all there are; for a plan"
            " of nodes elsewhere gpu:NxM, or gpu:NxM@GGiB with the memory of a device"
        )
    count, nodes, gib = (None if match[name] is None else int(match[name]) for name in ("count", "nodes", "gib"))
    memory = None if gib is None else gib << 30
    spec = DeviceSpec("cpu" if match["kind"] == "cpu" else "gpu", count, nodes, memory)
    if spec.kind == "cpu" and (spec.count or 0) > MAX_CPU_DEVICES:
        raise UsageError(f"{origin} {text.strip()}: at most {MAX_CPU_DEVICES} CPU devices; write a smaller number")
    # Without nodes, too: predictions take gpu:N for a description.
    if (spec.count or 0) * (spec.nodes or 1) > _MAX_DESCRIBED:
        raise UsageError(f"{origin} {text.strip()}: at most {_MAX_DESCRIBED} devices; write a smaller number")
    return spec


def device_labels(devices: Sequence[Device]) -> dict[str, str]:
    """What people see of each device, by its id: `cpu:0`, `gpu:0`; with the node in front if there are several."""
    several = len({device.node for device in devices}) > 1
    return {
        device.id: f"{device.node}/{device.kind}:{device.index}" if several else f"{device.kind}:{device.index}"
        for device in devices
    }


def with_labels(text: str, devices: Sequence[Device]) -> str:
    """A message that names devices by their ids, with what people see of them in front: `gpu:0 (GPU-5f0c…)`."""
    for device, label in device_labels(devices).items():
        if not device.endswith(label):  # CPU devices are seen by their ids
            text = text.replace(device, f"{label} ({device})")
    return text


def index_ranges(indices: Iterable[int]) -> str:
    """Indices in rising order as text, neighbors together: `0–3,6`."""
    runs = [[index for _, index in run] for _, run in groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0])]
    return ",".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def label_ranges(devices: Iterable[str], labels: Mapping[str, str]) -> str:
    """Devices as people see them, neighbors together: `gpu:0–3`, `node1/gpu:0–1, node2/gpu:0`."""
    by_kind: dict[str, list[int]] = {}
    for device in (device for device in labels if device in set(devices)):
        kind, _, index = labels[device].rpartition(":")
        by_kind.setdefault(kind, []).append(int(index))
    return ", ".join(f"{kind}:{index_ranges(sorted(found))}" for kind, found in by_kind.items())


def device_ranges(devices: Sequence[Device], *, names_nodes: bool) -> str:
    """Devices as text, neighbors and nodes that are alike together: `gpu:0–7`, `node0–63 gpu:0–3; node64 gpu:0`.

    Args:
        devices: of each node in rising order.
        names_nodes: whether the nodes stand in front, as where there are several.
    """
    alike: dict[str, list[str]] = {}
    for group in by_node(devices):
        indices = f"{group[0].kind}:{index_ranges(device.index for device in group)}"
        alike.setdefault(indices, []).append(group[0].node)
    return few(f"{node_ranges(nodes)} {indices}" if names_nodes else indices for indices, nodes in alike.items())


def node_ranges(names: Iterable[str]) -> str:
    """Names of nodes as text, those that number on together: `node0–63, login`."""
    split = [re.fullmatch(r"(.*?)([0-9]*)", name, re.DOTALL) for name in names]
    numbered = [(match[0], match[1], match[2]) for match in split if match]
    runs = [
        [one for _, one in run]
        for _, run in groupby(
            enumerate(numbered),
            lambda pair: (pair[1][1], int(pair[1][2]) - pair[0]) if pair[1][2] else (pair[1][0], None),
        )
    ]
    return few((f"{run[0][0]}–{run[-1][2]}" if len(run) > 1 else run[0][0] for run in runs), ", ")


def on_nodes(items: Iterable[T]) -> Iterator[tuple[str, T]]:
    """What each node has, with where that is; of many nodes in a row that are alike once: `each of nodes 0–63`."""
    for item, run in groupby(enumerate(items), key=lambda pair: pair[1]):
        nodes = [node for node, _ in run]
        if len(nodes) > _FEW_NODES:
            yield f"each of nodes {nodes[0]}–{nodes[-1]}", item
        else:
            yield from ((f"node {node}", item) for node in nodes)


def device_to_dict(device: Device) -> dict[str, Any]:
    """The device as an object of `launch.json` and `run.json`."""
    return asdict(device) | {"cores": list(device.cores)}


def device_from_dict(content: Mapping[str, Any]) -> Device:
    """The device of an object that `device_to_dict` made; unknown keys are left out.

    Raises:
        UsageError: a key is missing or its value cannot be.
    """
    try:
        kind = content["kind"]
        if kind not in get_args(Kind):
            raise ValueError(f"kind {shown(kind)} is not one of cpu, gpu")
        if kind == "cpu" and not content["cores"]:
            raise ValueError("a CPU device needs cores")
        return Device(
            id=str(content["id"]),
            kind=kind,
            index=int(content["index"]),
            node=str(content["node"]),
            name=str(content["name"]),
            memory_bytes=int(content["memory_bytes"]),
            cores=tuple(int(core) for core in content["cores"]),
        )
    except KeyError as error:
        raise UsageError(f"device {shown(content.get('id', content))}: key {error} is missing") from None
    except (TypeError, ValueError) as error:
        raise UsageError(f"device {shown(content)}: {error}") from None


def devices_per_node(devices: Sequence[Device]) -> tuple[int, ...]:
    """How many devices each node has, nodes in the order of their first device."""
    return tuple(len(group) for group in by_node(devices))


def by_node(devices: Sequence[Device]) -> list[list[Device]]:
    """The devices of each node, nodes in the order of their first device."""
    nodes: dict[str, list[Device]] = {}
    for device in devices:
        nodes.setdefault(device.node, []).append(device)
    return list(nodes.values())
