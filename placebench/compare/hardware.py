"""States of the devices that can decide a comparison in place of the placements: clocks, limits, other processes."""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from placebench.compare.attribution import IDLE
from placebench.compare.comparison import Comparison, PlacementResult
from placebench.compare.run import Launch, is_whole_step
from placebench.compare.text import number, plural, quantity
from placebench.logs.timing import STEP

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
BELOW_PEERS = 0.05
# A phase shorter than this share of the step does not tell a slow device.
NOTABLE_PHASE = 0.05
# Memory in use before the job has started anything; the driver itself keeps less.
FOREIGN_BYTES = 1 << 30


def hardware_warnings(comparison: Comparison) -> Iterator[str]:
    """What the files show of limits, unequal clocks, slow devices and other processes, one line each."""
    for result in comparison.results:
        samples = [_measured_samples(launch) for launch in result.launches]
        joined = pd.concat(samples) if samples else pd.DataFrame()
        yield from _limits(result, joined)
        yield from _slow_clocks(comparison, result, joined)
        if _equal_work(comparison.run.manifest.get("workload", {})):
            yield from _slow_spans(comparison, result)
        for launch, measured in zip(result.launches, samples, strict=True):
            yield from _foreign(comparison, result, launch, measured)
    for other in comparison.results[1:]:
        yield from _unequal_clocks(comparison.first, other)


def _measured_samples(launch: Launch) -> pd.DataFrame:
    """Samples taken during the measured steps."""
    spans = launch.spans
    steps = spans[is_whole_step(spans) & (spans["step"] > launch.last_warmup_step)]
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


def _unequal_clocks(first: PlacementResult, other: PlacementResult) -> Iterator[str]:
    """SM clocks that differ in the same phases; phases weigh by their time in the first placement.

    Phase by phase, because a device that waits has another clock, and placements differ in how much they wait.
    """
    if not first.launches or not other.launches:
        return
    before, now = (_phases_of_one_pool(result) for result in (first, other))
    working = before.index.intersection(now.index).difference([IDLE, STEP])
    before, now = before.loc[working], now.loc[working]
    before = before[before["clock_sm_mhz"].notna() & (before["seconds"] > 0)]
    now = now.reindex(before.index).dropna(subset="clock_sm_mhz")
    before = before.loc[now.index]
    if before.empty:
        return
    means = [float(np.average(side["clock_sm_mhz"], weights=before["seconds"])) for side in (before, now)]
    more = means[1] / means[0] - 1
    if abs(more) > CLOCK_DIFFERENCE:
        yield (
            f"The SM clocks differ: {number(means[1], 4)} MHz under {other.name}, {number(means[0], 4)} MHz under"
            f" {first.name} ({100 * more:+.1f} %) in the same phases."
        )


def _phases_of_one_pool(result: PlacementResult) -> pd.DataFrame:
    """Samples by phase. Pools that take part in one phase, such as those that send and take weights, do other work."""
    table = result.phase_pools
    return table[~table["phase"].duplicated(keep=False)].set_index("phase")


def _slow_clocks(comparison: Comparison, result: PlacementResult, samples: pd.DataFrame) -> Iterator[str]:
    """Devices whose SM clock is below that of the other devices of their pool, which do the same work."""
    if "clock_sm_mhz" not in samples:
        return
    clocks = samples.groupby("device")["clock_sm_mhz"].mean()
    for devices in result.placement.pools.values():
        known = clocks.reindex(list(devices)).dropna()
        for device, clock in known.items():
            peers = known.drop(device)
            if len(peers) and clock < (1 - BELOW_PEERS) * peers.median():
                label = comparison.run.devices[str(device)].label
                yield (
                    f"{result.name}: {label} ran at {number(float(clock), 4)} MHz, the other devices of its pool at"
                    f" {number(float(peers.median()), 4)}"
                )


def _equal_work(workload: Mapping[str, object]) -> bool:
    """Whether responses are equally long, so that devices of a pool have the same work in every phase."""
    rollout = workload.get("rollout")
    if not isinstance(rollout, Mapping):
        return False
    return bool(rollout.get("ignore_eos")) and rollout.get("response_lengths", "longest") == "longest"


def _slow_spans(comparison: Comparison, result: PlacementResult) -> Iterator[str]:
    """Devices that take longer for the same work than the others of their pool, in every one of several launches."""
    if len(result.launches) < 2:
        return
    seconds = result.samples.pivot(index=["phase", "round"], columns="device", values="span_s")
    whole = float(seconds.loc[STEP].to_numpy(dtype=np.float64).mean())
    for devices in result.placement.pools.values():
        for device in devices:
            peers = [peer for peer in devices if peer != device]
            for phase in dict.fromkeys(seconds.index.get_level_values("phase")):
                mine = seconds.loc[phase]
                if not peers or phase in (IDLE, STEP) or not mine[device].mean() > NOTABLE_PHASE * whole:
                    continue
                slower = mine[device] / mine[peers].median(axis=1) - 1
                if (slower > BELOW_PEERS).all():
                    yield (
                        f"{result.name}: {comparison.run.devices[device].label} takes"
                        f" {quantity(float(slower.mean()), '1')} longer for {phase} than the other devices of its pool,"
                        " in every launch"
                    )


def _foreign(comparison: Comparison, result: PlacementResult, launch: Launch, measured: pd.DataFrame) -> Iterator[str]:
    """Devices that the job did not have for itself.

    The sampler starts before the job, so what uses a device at its first reading is another process. Memory tells it
    even inside a container, where NVML may show no processes. Process ids are compared with NVML's own alone, for they
    may be those of another namespace: one that was there before and still is, or others, for the job has one process
    on a device.
    """
    if launch.sampling.source != "nvml":
        return
    first = launch.samples.drop_duplicates("device").set_index("device")["memory_bytes"]
    for device in result.placement.devices:
        where = f"{launch.label}: {comparison.run.devices[device].label}"
        used = first.get(device, np.nan)
        if used > FOREIGN_BYTES:
            yield f"{where} had {quantity(float(used), 'B')} in use before the launch: another process"
        if "compute_processes" not in measured:
            continue
        mine = measured[measured["device"] == device]
        if (earlier := mine["earlier_processes"].max()) > 0:
            yield f"{where} was shared with {plural(int(earlier), 'process', 'processes')} from before the launch"
        if (more := (mine["compute_processes"] - mine["earlier_processes"]).max() - 1) > 0:
            others = plural(int(more), "process", "processes")
            yield f"{where} had {others} beside the job's own in the measured steps: another job"
