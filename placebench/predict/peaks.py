"""What devices can do at best."""

from collections.abc import Mapping
from dataclasses import dataclass

# What one core of a CPU device does on small matrices, and its part of the memory's rate; both rough.
CORE_FLOPS = 40e9
CORE_BANDWIDTH = 5e9
_CPU_LINK = 1e9


@dataclass(frozen=True)
class DevicePeak:
    """What a device can do at best, by its data sheet."""

    flops: float
    """Dense bfloat16 operations/s."""
    bandwidth: float
    """Bytes/s of its memory."""
    link_bandwidth: float
    """Bytes/s that it sends to another device of its node."""
    network_bandwidth: float
    """Bytes/s that it sends to a device of another node."""


# Vendor's data sheets, by the name that the driver gives, in full: an NVL, a PCIe card or a MIG slice has other peaks.
_PEAKS: Mapping[str, DevicePeak] = {
    "NVIDIA H200": DevicePeak(989e12, 4.8e12, 450e9, 50e9),
    "NVIDIA H100 80GB HBM3": DevicePeak(989e12, 3.35e12, 450e9, 50e9),
    "NVIDIA A100-SXM4-80GB": DevicePeak(312e12, 2.039e12, 300e9, 25e9),
    "NVIDIA A100 80GB PCIe": DevicePeak(312e12, 1.935e12, 32e9, 25e9),
    "NVIDIA B200": DevicePeak(2250e12, 8.0e12, 900e9, 50e9),
}


def device_peak(name: str) -> DevicePeak | None:
    """The peak of a GPU by the name that its driver gives; None for devices that are not known."""
    return _PEAKS.get(name)


def cpu_peak(cores: int) -> DevicePeak:
    """Rough figures of a CPU device of so many cores."""
    return DevicePeak(CORE_FLOPS * cores, CORE_BANDWIDTH * cores, _CPU_LINK, _CPU_LINK)
