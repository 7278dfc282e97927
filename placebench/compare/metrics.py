"""What the numbers of a comparison are called, in which unit they are, and which side of them is better."""

from collections.abc import Iterable
from dataclasses import dataclass

from placebench.compare.statistics import Better
from placebench.logs.timing import phase_order


@dataclass(frozen=True)
class Metric:
    """One number of a placement.

    Attributes:
        key: its name in frames and files, such as `phase/gen`.
        label: its name for people.
        unit: `s`, `tokens/s`, `1` (a share), `B`, `J`.
        better: what a larger value means.
        meaning: one line that defines it.
    """

    key: str
    label: str
    unit: str
    better: Better
    meaning: str


STEP_TIME = Metric("step_time", "step", "s", Better.LESS, "wall time of a training step")
UNATTRIBUTED = Metric(
    "unattributed", "unattributed", "s", Better.NEITHER, "step without the time in which any phase was under way"
)
HIDDEN = Metric(
    "hidden", "hidden by overlap", "s", Better.NEITHER, "busy time of every pool summed, without that of all together"
)
TOKENS = Metric(
    "tokens_per_s", "tokens/s", "tokens/s", Better.MORE, "real tokens of prompts and responses / wall time of the step"
)
TOKENS_PER_DEVICE = Metric(
    "tokens_per_s_per_device", "tokens/s/device", "tokens/s", Better.MORE, "the same / all devices allocated"
)
LOAD = Metric("load", "device load", "1", Better.NEITHER, "mean over measured steps and devices")
MEMORY = Metric("peak_memory", "peak memory", "B", Better.NEITHER, "highest sample of the fullest device in a launch")
IDLE = Metric("idle", "idle", "s", Better.NEITHER, "step without the device's own phases, mean of the devices")
ENERGY = Metric("energy", "energy per step", "J", Better.NEITHER, "of all devices, from their energy counters")


def phase_metric(phase: str) -> Metric:
    """A phase in its device view."""
    return Metric(f"phase/{phase}", phase, "s", Better.LESS, "time of the device that worked longest on the phase")


def controller_metric(phase: str) -> Metric:
    """A phase in the controller's view."""
    return Metric(f"controller/{phase}", phase, "s", Better.LESS, "from submission of the phase to its result")


def device_metrics(device: str) -> tuple[Metric, ...]:
    """The numbers of one device: load, peak memory, idle time, energy."""
    return (
        Metric(f"load/{device}", "load", "1", Better.NEITHER, "mean over measured steps"),
        Metric(f"peak_memory/{device}", "peak memory", "B", Better.NEITHER, "highest sample of a launch"),
        Metric(f"idle/{device}", "idle", "s", Better.NEITHER, "step without the device's own phases"),
        Metric(f"energy/{device}", "energy per step", "J", Better.NEITHER, "from the device's energy counter"),
    )


def placement_metrics(phases: Iterable[str]) -> tuple[Metric, ...]:
    """The numbers that stand side by side for placements, in the order of the tables."""
    return (
        STEP_TIME,
        *(phase_metric(phase) for phase in phase_order(phases)),
        UNATTRIBUTED,
        HIDDEN,
        TOKENS,
        TOKENS_PER_DEVICE,
        LOAD,
        MEMORY,
        IDLE,
        ENERGY,
    )
