"""What devices can do at best: of GPUs by their vendors' data sheets, the table `data/gpus.csv` with its sources."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from placebench.errors import UsageError
from placebench.spec.legible import shown

# What one core of a CPU device does on small matrices, and its part of the memory's rate; both rough.
CORE_FLOPS = 40e9
CORE_BANDWIDTH = 5e9
_CPU_LINK = 1e9

# Of the GiB that data sheets count as GB, what a driver lets processes take: 0.990 of an H100 and 0.992 of an H200.
_USABLE_MEMORY = 0.99


@dataclass(frozen=True)
class DevicePeak:
    """What a device can do at best."""

    flops: float
    """Dense bfloat16 operations/s."""
    bandwidth: float
    """Bytes/s of its memory."""
    link_bandwidth: float
    """Bytes/s that it sends to the other devices of its node."""
    network_bandwidth: float
    """Bytes/s that its own network card sends to other nodes, as nodes of its kind are usually built."""
    link_devices: int = 0
    """Devices that reach each other at `link_bandwidth`, on several nodes; 0 where these are those of a node."""
    memory_bytes: int = 0
    """Bytes of its memory that processes may take, by a data sheet; 0 of CPU devices, which share their host's."""
    source: str = ""
    """Where the figures are from."""
    sm_clock_mhz: float | None = None
    """Clock of the SMs at which it does so many operations; None where nobody has worked it out."""


@cache
def device_peaks() -> Mapping[str, DevicePeak]:
    """Every GPU whose peaks are known, by the name that its driver gives in full.

    An NVL, a PCIe card or a MIG slice has other peaks than the GPU that it is called after.
    """
    text = files(__package__).joinpath("data/gpus.csv").read_text(encoding="utf-8")
    return {
        row["name"]: DevicePeak(
            float(row["bfloat16_flops"]),
            float(row["memory_bandwidth"]),
            float(row["link_bandwidth"]),
            float(row["network_bandwidth"]),
            int(row["link_devices"] or 0),
            int(float(row["memory_gb"]) * _USABLE_MEMORY * (1 << 30)),
            row["source"],
            float(row["sm_clock_mhz"]) if row["sm_clock_mhz"] else None,
        )
        for row in csv.DictReader(text.splitlines())
    }


def device_peak(name: str) -> DevicePeak | None:
    """The peak of a GPU by the name that its driver gives; None for devices that are not known."""
    return device_peaks().get(name)


def sizes_of(name: str) -> tuple[str, ...]:
    """The names under which a known GPU is sold with more or less memory, its own among them, the largest first."""

    def card(one: str) -> tuple[str, float, float]:
        return one.replace("-", " ").split()[1], known[one].flops, known[one].link_bandwidth

    known = device_peaks()
    alike = [one for one in known if card(one) == card(name)]
    return tuple(sorted(alike, key=lambda one: -known[one].memory_bytes))


def known_peak(name: str) -> DevicePeak:
    """The peak of a GPU by the name that its driver gives.

    Raises:
        UsageError: it is not known; with those that are.
    """
    known = device_peaks()
    if name not in known:
        raise UsageError(
            f"the peaks of GPU {shown(name)} are not known, so nothing can be predicted for it; choose one of"
            f" {', '.join(known)}"
        )
    return known[name]


def cpu_peak(cores: int) -> DevicePeak:
    """Rough figures of a CPU device of so many cores; of one where nobody has counted them."""
    cores = max(1, cores)
    return DevicePeak(CORE_FLOPS * cores, CORE_BANDWIDTH * cores, _CPU_LINK, _CPU_LINK)
