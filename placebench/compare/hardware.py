"""States of the devices that can decide a comparison in place of the placements: clocks, limits, other processes."""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from placebench.compare.comparison import Comparison, PlacementResult
from placebench.compare.run import Launch
from placebench.compare.steps import STEP_PHASE
from placebench.compare.text import listing, number, quantity
from placebench.telemetry.spans import CONTROLLER

# Bits of NVML's clocks event reasons that hold clocks down against the work (nvml.h, nvmlClocksEventReasons).
_REASONS: Mapping[int, str] = {
    0x4: "the power cap",
    0x8: "a hardware slowdown",
    0x20: "a thermal slowdown by the driver",
    0x40: "a thermal slowdown by the hardware",
    0x80: "the power brake",
}
# Share of samples from which a limit is worth a word.
LIMITED_SHARE = 0.05
# Relative differences of SM clocks from which they are worth a word: between placements they bias the verdict directly.
CLOCK_DIFFERENCE = 0.02
CLOCK_BELOW_PEERS = 0.05
# Memory in use before the job has started anything; the driver itself keeps less.
FOREIGN_BYTES = 1 << 30


def hardware_warnings(comparison: Comparison) -> Iterator[str]:
    """What the samples show of limits, unequal clocks and other processes, one line each."""
    clocks = {}
    for result in comparison.results:
        samples = [_measured_samples(launch, comparison.run.warmup_steps) for launch in result.launches]
        joined = pd.concat(samples) if samples else pd.DataFrame()
        yield from _limits(result, joined)
        yield from _slow_devices(comparison, result, joined)
        if "clock_sm_mhz" in joined and joined["clock_sm_mhz"].notna().any():
            clocks[result.name] = float(joined["clock_sm_mhz"].mean())
        yield from _foreign(comparison, result)
    if clocks and max(clocks.values()) > (1 + CLOCK_DIFFERENCE) * min(clocks.values()):
        each = listing(f"{number(clock, 4)} MHz under {name}" for name, clock in clocks.items())
        yield f"The SM clocks differ between placements: {each}, means of the measured steps."


def _measured_samples(launch: Launch, warmup_steps: int) -> pd.DataFrame:
    """Samples taken during the measured steps."""
    spans = launch.spans
    steps = spans[(spans["device"] == CONTROLLER) & (spans["phase"] == STEP_PHASE) & (spans["step"] > warmup_steps)]
    mono = launch.samples["mono"]
    chosen: pd.DataFrame = launch.samples[(mono >= steps["start"].min()) & (mono <= steps["end"].max())]
    return chosen


def _limits(result: PlacementResult, samples: pd.DataFrame) -> Iterator[str]:
    if "event_reasons" not in samples:
        return
    reasons = samples["event_reasons"].dropna().astype(np.int64)
    for bit, words in _REASONS.items():
        share = float(((reasons & bit) != 0).mean()) if len(reasons) else 0.0
        if share >= LIMITED_SHARE:
            yield f"{result.name}: {words} held clocks down in {quantity(share, '1')} of the samples"


def _slow_devices(comparison: Comparison, result: PlacementResult, samples: pd.DataFrame) -> Iterator[str]:
    """Devices whose SM clock is below that of the other devices of their pool, which do the same work."""
    if "clock_sm_mhz" not in samples:
        return
    clocks = samples.groupby("device")["clock_sm_mhz"].mean()
    for devices in result.placement.pools.values():
        known = clocks.reindex(list(devices)).dropna()
        for device, clock in known.items():
            peers = known.drop(device)
            if len(peers) and clock < (1 - CLOCK_BELOW_PEERS) * peers.median():
                label = comparison.run.devices[str(device)].label
                yield (
                    f"{result.name}: {label} ran at {number(float(clock), 4)} MHz, the other devices of its pool at"
                    f" {number(float(peers.median()), 4)}"
                )


def _foreign(comparison: Comparison, result: PlacementResult) -> Iterator[str]:
    """Devices with memory in use before the job had started a worker.

    By memory, because NVML often gives no process ids, or the host's, inside a container.
    """
    for launch in result.launches:
        if launch.sampling.source != "nvml":
            continue
        first = launch.samples.drop_duplicates("device").set_index("device")["memory_bytes"]
        for device in result.placement.devices:
            used = first.get(device, np.nan)
            if used > FOREIGN_BYTES:
                label = comparison.run.devices[device].label
                held = quantity(float(used), "B")
                yield f"{launch.label}: {label} had {held} in use before the launch: by another process"
