"""The devices of this host: GPUs by NVML, otherwise CPU devices, each a process with its share of the cores."""

import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, get_args

from placebench.errors import UsageError
from placebench.host import cpu_model, total_memory, usable_cores

if TYPE_CHECKING:
    from placebench.gpus import Gpu, GpuInventory

Kind = Literal["cpu", "gpu"]

MAX_CPU_DEVICES = 64
_DEFAULT_CPU_DEVICES = (2, 8)
# Of devices that are only described, where nothing is said.
_USUAL_GPU_BYTES = 80 << 30
_MAX_DESCRIBED = 4096
_SPEC = re.compile(
    r"(?P<kind>cpu|gpu)(:(?P<count>[1-9][0-9]{0,5})(x(?P<nodes>[1-9][0-9]{0,5}))?(@(?P<gib>[1-9][0-9]{0,5})GiB)?)?"
)


@dataclass(frozen=True)
class Device:
    """One GPU, or one CPU device.

    Attributes:
        id: UUID of a GPU, `cpu:N` of a CPU device, on a Ray cluster with its node's name in front; unique in a run.
        kind: `gpu` or `cpu`.
        index: NVML's index of a GPU, N of a CPU device.
        node: hostname; on a Ray cluster the node's name there.
        name: product name of GPU or processor.
        memory_bytes: memory of a GPU; of a CPU device its equal share of the memory this process may use.
        cores: ids of the cores a CPU device's process is pinned to; empty for a GPU.
    """

    id: str
    kind: Kind
    index: int
    node: str
    name: str
    memory_bytes: int
    cores: tuple[int, ...] = ()


@dataclass(frozen=True)
class DeviceSpec:
    """What `--devices` asks for.

    Attributes:
        kind: of the devices.
        count: on each node; None takes what is there.
        nodes: of a host or cluster that is only described, for a plan; None for this host.
        memory_bytes: of each of the devices described; None for 80 GiB a GPU, and as here for CPU devices.
    """

    kind: Kind
    count: int | None = None
    nodes: int | None = None
    memory_bytes: int | None = None

    @property
    def is_described(self) -> bool:
        """Whether the devices are described, not looked for."""
        return self.nodes is not None or self.memory_bytes is not None

    def __str__(self) -> str:
        count = "" if self.count is None else f":{self.count}"
        nodes = "" if self.nodes is None else f"x{self.nodes}"
        memory = "" if self.memory_bytes is None else f"@{self.memory_bytes >> 30}GiB"
        return f"{self.kind}{count}{nodes}{memory}"


def parse_devices(text: str) -> DeviceSpec:
    """Read `cpu:N`, `gpu:N`, `cpu` or `gpu`; or a description, `gpu:NxM` or `gpu:NxM@GGiB`: N on each of M nodes.

    Raises:
        UsageError: it is something else, or more devices than make sense.
    """
    match = _SPEC.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"--devices {text!r}: write cpu:N or gpu:N with N above 0, or cpu or gpu for all there are; for a plan of"
            " nodes elsewhere gpu:NxM, or gpu:NxM@GGiB with the memory of a device"
        )
    count, nodes, gib = (None if match[name] is None else int(match[name]) for name in ("count", "nodes", "gib"))
    memory = None if gib is None else gib << 30
    spec = DeviceSpec("cpu" if match["kind"] == "cpu" else "gpu", count, nodes, memory)
    if spec.is_described and (spec.count or 0) * (spec.nodes or 1) > _MAX_DESCRIBED:
        raise UsageError(f"--devices {text.strip()}: describe at most {_MAX_DESCRIBED} devices")
    if spec.kind == "cpu" and (spec.count or 0) > MAX_CPU_DEVICES:
        raise UsageError(f"--devices {text.strip()}: at most {MAX_CPU_DEVICES} CPU devices; write a smaller number")
    return spec


def discover(spec: DeviceSpec | None = None) -> tuple[Device, ...]:
    """The devices of this host that a run may use; or those described, which nobody looks for.

    Args:
        spec: what the user asked for. When not given: all GPUs that `CUDA_VISIBLE_DEVICES` leaves, and on a
            host without any as many CPU devices as cores, at least 2 (so that `split` can be), at most 8.

    Raises:
        UsageError: there are not as many GPUs, or the driver does not answer; with what was found.
    """
    if spec is not None and spec.is_described:
        return _described_devices(spec)
    if spec is not None and spec.kind == "cpu":
        return _cpu_devices(spec.count)
    from placebench.gpus import list_gpus, visible_gpus  # NVML's binding, which a report does without

    inventory = list_gpus()
    if inventory.fault is not None:
        raise UsageError(
            f"the NVIDIA driver does not answer ({inventory.fault}): repair it, or run on the CPU with --devices cpu"
        )
    gpus = visible_gpus(inventory)
    if spec is None and not gpus:
        return _cpu_devices(None)
    wanted = spec.count if spec is not None and spec.count is not None else max(1, len(gpus))
    if wanted > len(gpus):
        fewer = f"--devices gpu:{len(gpus)} or " if gpus else ""
        elsewhere = f"; gpu:{wanted}x1 describes GPUs elsewhere, for a plan"
        raise UsageError(f"--devices {spec}: found {_found(inventory, gpus)}; use {fewer}--devices cpu{elsewhere}")
    node = platform.node()
    return tuple(Device(gpu.uuid, "gpu", gpu.index, node, gpu.name, gpu.memory_bytes) for gpu in gpus[:wanted])


def _found(inventory: "GpuInventory", visible: "Sequence[Gpu]") -> str:
    from placebench.gpus import describe_gpus

    if inventory.driver is None:
        return "no NVIDIA driver on this host"
    hidden = len(inventory.gpus) - len(visible)
    note = f", {hidden} more hidden by CUDA_VISIBLE_DEVICES" if hidden else ""
    return describe_gpus(visible) + note


def _cpu_devices(count: int | None) -> tuple[Device, ...]:
    cores = usable_cores()
    if count is None:
        least, most = _DEFAULT_CPU_DEVICES
        count = min(max(len(cores), least), most)
    node, name, memory = platform.node(), cpu_model(), total_memory() // count
    return tuple(
        Device(f"cpu:{index}", "cpu", index, node, name, memory, share)
        for index, share in enumerate(split_cores(cores, count))
    )


def _described_devices(spec: DeviceSpec) -> tuple[Device, ...]:
    assert spec.count is not None, "the grammar describes devices by their number"
    usual = _USUAL_GPU_BYTES if spec.kind == "gpu" else total_memory() // spec.count
    memory, name = spec.memory_bytes or usual, "GPU" if spec.kind == "gpu" else cpu_model()
    return tuple(
        Device(
            f"node{node}/{spec.kind}:{index}",
            spec.kind,
            index,
            f"node{node}",
            name,
            memory,
            () if spec.kind == "gpu" else (index,),
        )
        for node in range(spec.nodes or 1)
        for index in range(spec.count)
    )


def split_cores(cores: Sequence[int], count: int) -> tuple[tuple[int, ...], ...]:
    """Give each of `count` devices its cores.

    Enough cores: neighbouring cores, disjoint, the same number for each, because unequal devices would show as
    rank imbalance; a remainder stays free. Too few: one core each, in turn.
    """
    each = len(cores) // count
    if each:
        return tuple(tuple(cores[index * each : (index + 1) * each]) for index in range(count))
    return tuple((cores[index % len(cores)],) for index in range(count))


def index_ranges(indices: Iterable[int]) -> str:
    """Indices in rising order as text, neighbours together: `0–3,6`."""
    runs = [[index for _, index in run] for _, run in groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0])]
    return ",".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def sharing_note(devices: Sequence[Device]) -> str | None:
    """One line for the user where CPU devices share cores, so that overlap cannot gain anything; otherwise None."""
    shares = [(device.node, core) for device in devices for core in device.cores]
    if len(shares) == len(set(shares)):
        return None
    plural = "s" if len(set(shares)) > 1 else ""
    return (
        f"{len(devices)} CPU devices share {len(set(shares))} core{plural}:"
        " phases that overlap slow each other down, so times do not carry over"
    )


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
            raise ValueError(f"kind {kind!r} is not one of cpu, gpu")
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
        raise UsageError(f"device {content.get('id', content)!r}: key {error} is missing") from None
    except (TypeError, ValueError) as error:
        raise UsageError(f"device {content!r}: {error}") from None


def host_record() -> dict[str, Any]:
    """What `run.json` keeps of the host: names, sizes, driver, every GPU and how they are linked.

    Sizes in bytes. `driver` is null without one, `gpu_fault` says why an installed one does not answer.
    """
    from placebench.gpus import list_gpus

    inventory = list_gpus()
    return {
        "hostname": platform.node(),
        "kernel": platform.release(),
        "cpu_model": cpu_model(),
        "cpu_count": os.cpu_count(),
        "usable_cores": list(usable_cores()),
        "memory_bytes": total_memory(),
        "driver": inventory.driver,
        "gpus": [asdict(gpu) for gpu in inventory.gpus],
        "gpu_links": [list(row) for row in inventory.links],
        "gpu_fault": inventory.fault,
        "unreadable_gpus": {str(index): reason for index, reason in inventory.unreadable.items()},
    }
