"""The schema of `devices.jsonl`: what the sampler writes and readers may rely on.

One object a line, told apart by `kind`. Where a launch ran on several nodes, the lines of their samplers stand mixed in
one file, each node's in order with its own header and footer, and all times are on the controller's clock.

- `header`, a sampler's first line: `schema_version`, `hz` (asked for), `source` of the devices' samples (`nvml` or
  `cpu`), `node`, `devices` (as in `launch.json`), `wall` and `mono` of the start, and what the source says of itself:
  for NVML `driver`, `gpm` (true when every device has it) and `gpm_absent` (device → why not); for both `notes`.
- `sample`: `wall` (seconds since the epoch), `mono` (seconds of the node's monotonic clock), `device` (an id, or
  `controller`, sampled by the CPU source everywhere) and every quantity of its source, null where it is missing.
- `power`: readings of a GPU's power sensor since the line before (in the first, also earlier ones), from the driver's
  buffer (every 20 ms on an H200): `power_w`, a list in W, and `ago_s`, how many seconds before `mono`, the time of the
  last one, each was made.
- `energy`: `energy_j`, the GPU's counter of joules since the driver was loaded, at `mono`.
- `processes`: once a second, where there are any, those that compute on a GPU, whoever started them: `processes`, a
  list of objects with `pid` and `memory_bytes`, null where the driver does not say it, as in some containers.
- `reading_error`: a quantity of a device could not be read, with `code` and `message`; once per device, quantity
  and code. The quantity is null in the samples concerned.
- `device_error`: the device is lost, with `code` and `message`; its series ends here.
- `footer`, its last line: `ticks` (taken), `missed` (skipped: the one before took too long), `achieved_hz`,
  `cpu_s` (CPU seconds of the sampler since its start). A file without it ends where the sampler was killed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from placebench.telemetry.spans import SpanClock

SourceName = Literal["cpu", "nvml"]

DEFAULT_HZ = 5.0
MAX_HZ = 50.0


class Line(StrEnum):
    """Kinds of lines."""

    HEADER = "header"
    SAMPLE = "sample"
    POWER = "power"
    ENERGY = "energy"
    PROCESSES = "processes"
    READING_ERROR = "reading_error"
    DEVICE_ERROR = "device_error"
    FOOTER = "footer"


@dataclass(frozen=True)
class Quantity:
    """One key of a sample."""

    key: str
    """The key."""
    unit: str
    """Unit of the value; `1` for a share."""
    sources: frozenset[SourceName]
    """The sources that write the key."""
    meaning: str
    """What the value says, and which stretch of time it covers."""


_BOTH: frozenset[SourceName] = frozenset({"cpu", "nvml"})
_CPU: frozenset[SourceName] = frozenset({"cpu"})
_NVML: frozenset[SourceName] = frozenset({"nvml"})

QUANTITIES: tuple[Quantity, ...] = (
    Quantity(
        "util", "1", _BOTH,
        "CPU device: CPU time of its processes, over the time since the previous sample and the cores it is pinned to;"
        " controller: the same over one core, so threads can take it above 1;"
        " GPU: share of the driver's last sampling period (about 0.2 s) in which any kernel ran, waiting ones included",
    ),
    Quantity(
        "memory_bytes", "B", _BOTH,
        "at the sample; CPU: resident memory summed over processes, pages they share counted in each;"
        " GPU: allocated by all processes, without what the driver reserves",
    ),
    Quantity(
        "power_w",
        "W",
        _BOTH,
        # nvmlDeviceGetPowerUsage
        "board power; averaged over 1 s on Ampere and newer, but at the sample on GA100 (A100, A30) and older; null on"
        " CPU devices",
    ),
    Quantity("processes", "1", _CPU, "processes counted: the worker and its children, the controller alone"),
    Quantity(
        "stolen", "1", _CPU,
        # proc_stat(5), "steal"
        "of the CPU time that the host wanted since the previous sample, the share that its hypervisor gave to other"
        " guests; of the controller alone, null on CPU devices",
    ),
    Quantity(
        "core_loop_s", "s", _CPU,
        "CPU time of a fixed loop, the shortest of three, on the core where a process of the job last ran; processes"
        " take turns; five times a second at most; of the controller alone, null on CPU devices",
    ),
    Quantity("memory_reserved_bytes", "B", _NVML, "reserved by the driver, at the sample"),
    Quantity("temperature_c", "°C", _NVML, "of the GPU, once a second"),
    Quantity("clock_sm_mhz", "MHz", _NVML, "of the SMs, at the sample"),
    Quantity("clock_memory_mhz", "MHz", _NVML, "of the memory, once a second"),
    Quantity(
        "event_reasons", "bits", _NVML,
        "why the clocks are not higher, at the sample: NVML's nvmlClocksEventReasons (nvml.h)",
    ),
    Quantity("compute_processes", "1", _NVML, "processes that compute on the GPU, whoever started them; once a second"),
    Quantity(
        "earlier_processes", "1", _NVML,
        "those of them that were there before the sampler started, and so before the job; once a second",
    ),
    Quantity("sm_activity", "1", _NVML, "GPM: share of the SMs that had a warp, since the previous GPM sample"),
    Quantity("tensor_activity", "1", _NVML, "GPM: share of time tensor cores worked, since the previous GPM sample"),
    Quantity("dram_activity", "1", _NVML, "GPM: share of peak memory bandwidth, since the previous GPM sample"),
    Quantity("nvlink_rx_bytes_s", "B/s", _NVML, "GPM: received over all NVLinks, since the previous GPM sample"),
    Quantity("nvlink_tx_bytes_s", "B/s", _NVML, "GPM: sent over all NVLinks, since the previous GPM sample"),
    Quantity("pcie_rx_bytes_s", "B/s", _NVML, "GPM: received over PCIe, since the previous GPM sample"),
    Quantity("pcie_tx_bytes_s", "B/s", _NVML, "GPM: sent over PCIe, since the previous GPM sample"),
)  # fmt: skip

# Bits of NVML's clocks event reasons that hold clocks down against the work (nvml.h, nvmlClocksEventReasons).
CLOCK_LIMITS: Mapping[int, str] = {
    0x4: "the power cap",
    0x8: "a hardware slowdown",
    0x20: "a thermal slowdown by the driver",
    0x40: "a thermal slowdown by the hardware",
    0x80: "the power brake",
}


def keys_of(source: SourceName) -> tuple[str, ...]:
    """Keys that a sample of a source has beside `kind`, `wall`, `mono` and `device`, in the order they are written."""
    return tuple(quantity.key for quantity in QUANTITIES if source in quantity.sources)


def device_line(kind: Line, device: str, clock: SpanClock, values: Mapping[str, Any]) -> dict[str, Any]:
    """A line on a device as of now, unless the values say as of when."""
    mono = values.get("mono", clock.mono())
    return {"kind": kind, "wall": clock.wall(mono), "mono": mono, "device": device, **values}
