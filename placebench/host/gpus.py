"""GPUs as NVML lists them: identity, memory, driver and how they are linked.

NVML's index order is PCI order. A GPU is known by its UUID everywhere else, because indices change with
`CUDA_VISIBLE_DEVICES` and with CUDA's own ordering.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pynvml

from placebench.errors import UsageError
from placebench.spec.legible import shown
from placebench.spec.text import plural

NO_DRIVER_CODES = (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
"""Errors of a host that simply has no GPUs: not a fault."""

# Drivers that do not report their reserve.
_NO_VERSION_2_CODES = (
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
)

_ANCESTOR_NAMES = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "INT",
    pynvml.NVML_TOPOLOGY_SINGLE: "PIX",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
    pynvml.NVML_TOPOLOGY_NODE: "NODE",
    pynvml.NVML_TOPOLOGY_SYSTEM: "SYS",
}


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    index: int
    """NVML's index."""
    uuid: str
    """`GPU-…`, the identity."""
    name: str
    """Product name."""
    memory_bytes: int
    """Memory of the board, without what the driver keeps for itself where it reports how much."""
    pci: str
    """PCI bus id."""
    is_divided: bool = False
    """Whether it is in MIG mode: a process then has an instance, whose memory and peaks are smaller."""


@dataclass(frozen=True)
class GpuInventory:
    """What NVML answered."""

    driver: str | None = None
    """Version of the driver; None without one."""
    gpus: tuple[Gpu, ...] = ()
    """GPUs that answer, in index order."""
    unreadable: Mapping[int, str] = field(default_factory=dict)
    """Index and reason of each GPU that does not."""
    links: tuple[tuple[str | None, ...], ...] = ()
    """Per pair of `gpus`, as `nvidia-smi topo -m` names it: `NV18` for 18 NVLinks, otherwise the nearest common part of
    the PCI tree (`PIX`, `PXB`, `PHB`, `NODE`, `SYS`); None where unknown and on the diagonal."""
    fault: str | None = None
    """Why NVML does not answer although a driver is installed; None where it does, or where there is none."""


def list_gpus() -> GpuInventory:
    """Ask NVML; a host without a driver has an empty inventory."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return GpuInventory(fault=None if error.value in NO_DRIVER_CODES else str(error))
    try:
        return _list_gpus()
    finally:
        pynvml.nvmlShutdown()


def _list_gpus() -> GpuInventory:
    found: list[tuple[Gpu, Any]] = []
    unreadable: dict[int, str] = {}
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            gpu = Gpu(
                index,
                pynvml.nvmlDeviceGetUUID(handle),
                pynvml.nvmlDeviceGetName(handle),
                _memory_bytes(handle),
                pynvml.nvmlDeviceGetPciInfo(handle).busId,
                _is_divided(handle),
            )
        except pynvml.NVMLError as error:
            unreadable[index] = str(error)
        else:
            found.append((gpu, handle))
    links = tuple(tuple(None if one is other else _link(one, other) for other in found) for one in found)
    return GpuInventory(pynvml.nvmlSystemGetDriverVersion(), tuple(gpu for gpu, _ in found), unreadable, links)


def _memory_bytes(handle: Any) -> int:
    """Memory that processes may take: the total also has the driver's reserve in it, 0.6 GiB of an H200."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        if error.value not in _NO_VERSION_2_CODES:
            raise
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    return int(memory.total - memory.reserved)


def _is_divided(handle: Any) -> bool:
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND):
            return False
        raise
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


def _link(first: tuple[Gpu, Any], second: tuple[Gpu, Any]) -> str | None:
    """Name of the connection of two GPUs; see `GpuInventory.links`."""
    peers, back = _nvlink_peers(first[1]), _nvlink_peers(second[1])
    direct = peers.count(second[0].pci)
    try:
        if direct:
            return f"NV{direct}"
        over_nvlink = pynvml.nvmlDeviceGetP2PStatus(first[1], second[1], pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
        if over_nvlink == pynvml.NVML_P2P_STATUS_OK and peers and back:
            return f"NV{min(len(peers), len(back))}"  # through a switch, which every link of both GPUs reaches
        return _ANCESTOR_NAMES.get(pynvml.nvmlDeviceGetTopologyCommonAncestor(first[1], second[1]))
    except pynvml.NVMLError:
        return None


def _nvlink_peers(handle: Any) -> list[str | None]:
    """PCI bus id of what is at the other end of each active NVLink; None where it is not reported."""
    peers: list[str | None] = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if not pynvml.nvmlDeviceGetNvLinkState(handle, link):
                continue
        except pynvml.NVMLError:  # this GPU has no such link, or no NVLink at all
            break
        try:
            peers.append(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)
        except pynvml.NVMLError:
            peers.append(None)
    return peers


def visible_gpus(inventory: GpuInventory, visible: str | None = None) -> tuple[Gpu, ...]:
    """GPUs left by `CUDA_VISIBLE_DEVICES`, in NVML's order.

    Args:
        inventory: all GPUs.
        visible: the variable's value, taken from the environment when not given: a list of indices as
            `nvidia-smi` counts them, or of UUIDs, which may be abbreviated; empty or `-1` hides all.

    Raises:
        UsageError: the value names something that is not there, twice the same, or a MIG instance; or a GPU
            that is wanted does not answer, or is in MIG mode.
    """
    if visible is None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        if inventory.unreadable:
            index, reason = next(iter(inventory.unreadable.items()))
            raise UsageError(
                f"gpu:{index} does not answer ({reason}): reset it, or leave it out with CUDA_VISIBLE_DEVICES"
            )
        return _undivided(inventory.gpus)
    words = [word.strip() for word in visible.split(",")]
    if words[0] in ("", "-1"):
        return ()
    chosen = [_named_gpu(inventory, word, visible) for word in words]
    for gpu in chosen:
        if chosen.count(gpu) > 1:
            raise UsageError(f"CUDA_VISIBLE_DEVICES={visible}: gpu:{gpu.index} ({gpu.uuid}) is named twice")
    return _undivided(sorted(chosen, key=lambda gpu: gpu.index))


def _undivided(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    chosen = tuple(gpus)
    for gpu in chosen:
        if gpu.is_divided:
            raise UsageError(
                f"gpu:{gpu.index} ({gpu.uuid}) is in MIG mode, and MIG instances cannot be devices: switch the mode"
                f" off (nvidia-smi -i {gpu.index} -mig 0), or leave the GPU out with CUDA_VISIBLE_DEVICES"
            )
    return chosen


def _named_gpu(inventory: GpuInventory, word: str, visible: str) -> Gpu:
    if word.startswith("MIG-"):
        raise UsageError(f"CUDA_VISIBLE_DEVICES={visible}: MIG instances cannot be devices; name whole GPUs")
    if word.isascii() and word.isdigit():
        if len(word) < 10 and int(word) in inventory.unreadable:
            raise UsageError(
                f"CUDA_VISIBLE_DEVICES={visible}: gpu:{word} does not answer ({inventory.unreadable[int(word)]})"
            )
        matches = [gpu for gpu in inventory.gpus if str(gpu.index) == word]
    else:
        matches = [gpu for gpu in inventory.gpus if word.startswith("GPU-") and gpu.uuid.startswith(word)]
    if len(matches) != 1:
        raise UsageError(
            f"CUDA_VISIBLE_DEVICES={visible}: {shown(word)} names {len(matches) or 'no'} GPUs; there are"
            f" {_describe(inventory.gpus)}"
        )
    return matches[0]


def describe_found(inventory: GpuInventory, visible: Sequence[Gpu]) -> str:
    """The GPUs that may be used, and how many more there are, in a few words for messages."""
    if inventory.driver is None:
        return "no NVIDIA driver on this host"
    hidden = len(inventory.gpus) - len(visible)
    note = f", {hidden} more hidden by CUDA_VISIBLE_DEVICES" if hidden else ""
    return _describe(visible) + note


def _describe(gpus: Sequence[Gpu]) -> str:
    if not gpus:
        return "no GPUs"
    return f"{plural(len(gpus), 'GPU')} ({', '.join(dict.fromkeys(gpu.name for gpu in gpus))})"
