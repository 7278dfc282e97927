"""The devices of this host: GPUs by NVML, otherwise CPU devices, each a process with its share of the cores."""

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from placebench.errors import UsageError
from placebench.host.machine import cpu_model, total_memory, usable_cores
from placebench.spec.devices import DESCRIBED_GPU, Device, DeviceSpec
from placebench.spec.text import plural

_DEFAULT_CPU_DEVICES = (2, 8)
# Of devices that are only described, where nothing is said.
_USUAL_GPU_BYTES = 80 << 30


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
    # NVML's binding, which a report does without.
    from placebench.host.gpus import describe_found, list_gpus, visible_gpus

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
        found = describe_found(inventory, gpus)
        raise UsageError(f"--devices {spec}: found {found}; use {fewer}--devices cpu{elsewhere}")
    node = platform.node()
    return tuple(Device(gpu.uuid, "gpu", gpu.index, node, gpu.name, gpu.memory_bytes) for gpu in gpus[:wanted])


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
    is_gpu = spec.kind == "gpu"
    name, usual = (DESCRIBED_GPU, _USUAL_GPU_BYTES) if is_gpu else (cpu_model(), total_memory() // spec.count)
    memory = spec.memory_bytes or usual
    return tuple(
        Device(f"{node}/{spec.kind}:{index}", spec.kind, index, node, name, memory, () if is_gpu else (index,))
        for node in (f"node{number}" for number in range(spec.nodes or 1))
        for index in range(spec.count)
    )


def split_cores(cores: Sequence[int], count: int) -> tuple[tuple[int, ...], ...]:
    """Give each of `count` devices its cores.

    Enough cores: neighboring cores, disjoint, the same number for each, because unequal devices would show as
    rank imbalance; a remainder stays free. Too few: one core each, in turn.
    """
    each = len(cores) // count
    if each:
        return tuple(tuple(cores[index * each : (index + 1) * each]) for index in range(count))
    return tuple((cores[index % len(cores)],) for index in range(count))


def sharing_note(devices: Sequence[Device]) -> str | None:
    """One line for the user where CPU devices share cores, so that overlap cannot gain anything; otherwise None."""
    shares = [(device.node, core) for device in devices for core in device.cores]
    if len(shares) == len(set(shares)):
        return None
    return (
        f"{len(devices)} CPU devices share {plural(len(set(shares)), 'core')}:"
        " phases that overlap slow each other down, so times do not carry over"
    )


def host_record() -> dict[str, Any]:
    """What `run.json` keeps of the host: names, sizes, driver, every GPU and how they are linked.

    Sizes in bytes. `driver` is null without one, `gpu_fault` says why an installed one does not answer.
    """
    from placebench.host.gpus import list_gpus

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
