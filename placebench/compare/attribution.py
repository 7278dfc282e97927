"""Device samples joined to phases, by device and monotonic clock.

A load that a sampler reports describes the time since its previous sample, and phases can be shorter than that. So a
sample counts for a phase by the seconds that its time shares with the phase's spans on that device, and every mean
says how many seconds of samples it rests on. Memory, power and clocks are readings of one moment and belong to the
phase of that moment. Energy is the difference of the device's counter over the measured steps. The counter is read too
seldom to tell phases apart, so they share it in proportion to their mean power times their time.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from placebench.compare.run import APART, Launch, RunPlacement
from placebench.compare.steps import STEP_PHASE
from placebench.intervals import Intervals, contains, covered, length, subtract, union
from placebench.telemetry.spans import CONTROLLER

IDLE = "idle"
_GPM_RATES = ("sm_activity", "tensor_activity", "dram_activity")
_LOADS = ("util", *_GPM_RATES)
_READINGS = ("power_w", "clock_sm_mhz")
RATES = (*_LOADS, *_READINGS)
COLUMNS = (
    "phase",
    "device",
    "span_s",
    "seconds",
    "samples",
    "load",
    *RATES,
    "peak_memory_bytes",
    "allocated_bytes",
    "energy_j",
)


def attribute(launch: Launch, placement: RunPlacement, load_signal: str) -> pd.DataFrame:
    """What the samples of a launch say of its phases.

    Args:
        launch: a launch with spans and samples.
        placement: its placement.
        load_signal: which of `RATES` is the load.

    Returns:
        One row a phase and device, in columns `COLUMNS`; besides the phases the rows `IDLE` (measured steps, no
        phase on the device) and `STEP_PHASE` (all of it). `span_s` is the phase's time on the device over all
        measured steps, `seconds` the part that samples with a load cover, `samples` their number; `load` and its
        like (shares 0..1) are means over time, power (W) and clock (MHz) means of the readings; `energy_j` is the sum
        over the measured steps, of which the phases and `IDLE` add up to `STEP_PHASE`; `allocated_bytes` is the most
        that tensors took, where the job counts it. What the source does not have is NaN.
    """
    spans = launch.spans[launch.spans["step"] > launch.last_warmup_step]
    phase_of, device_of = spans["phase"].to_numpy(dtype=object), spans["device"].to_numpy(dtype=object)
    times = spans[["start", "end"]].to_numpy(dtype=np.float64)
    whole = union(times[(device_of == CONTROLLER) & (phase_of == STEP_PHASE)])
    whole = subtract(whole, union(times[np.isin(phase_of, APART)]))
    rows = []
    for device in placement.devices:
        samples = launch.samples[launch.samples["device"] == device]
        mine = device_of == device
        # Work ahead of its step may begin before the first measured step, or end after the last one.
        outside = subtract(union(times[mine]), whole)
        phases = {
            str(phase): subtract(union(times[mine & (phase_of == phase)]), outside)
            for phase in dict.fromkeys(phase_of[mine])
        }
        phases[IDLE] = subtract(whole, union(np.concatenate([np.empty((0, 2)), *phases.values()])))
        phases[STEP_PHASE] = whole
        allocated = spans[mine].groupby("phase")["allocated_bytes"].max()
        found = {phase: attribute_samples(samples, active, load_signal) for phase, active in phases.items()}
        rows += [
            {
                "phase": phase,
                "device": device,
                **numbers,
                "allocated_bytes": allocated.get(phase, np.nan),
                "energy_j": joules,
            }
            for (phase, numbers), joules in zip(found.items(), _share_energy(samples, phases, found), strict=True)
        ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def attribute_samples(samples: pd.DataFrame, times: Intervals, load_signal: str) -> dict[str, float]:
    """What one device's samples, in order of time, say of the disjoint `times`; keys as in `attribute`, no energy."""
    mono = samples["mono"].to_numpy()
    numbers: dict[str, float] = {"span_s": length(times)}
    for rate in _LOADS:
        values = _column(samples, rate)
        # GPM is not asked at every tick where ticks are many: a reading covers the time since the one before.
        asked = ~np.isnan(values) if rate in _GPM_RATES else np.full(len(values), True)
        values, until = values[asked], mono[asked]
        since = np.column_stack([np.append(np.nan, until[:-1])[: len(until)], until])
        weights = np.nan_to_num(covered(since, times))
        known = (weights > 0) & ~np.isnan(values)
        numbers[rate] = float(np.average(values[known], weights=weights[known])) if known.any() else np.nan
        if rate == load_signal:
            numbers |= {"load": numbers[rate], "seconds": float(weights[known].sum()), "samples": int(known.sum())}
    inside = contains(times, mono)
    numbers["power_w"] = _mean(_power(samples)[inside])
    numbers["clock_sm_mhz"] = _mean(_column(samples, "clock_sm_mhz")[inside])
    memory = _column(samples, "memory_bytes")[inside]
    numbers["peak_memory_bytes"] = float(np.nanmax(memory)) if np.isfinite(memory).any() else np.nan
    return numbers


def counted_energy(samples: pd.DataFrame, times: Intervals) -> float:
    """Joules of one device over `times` by its counter, taken to run evenly between two readings.

    NaN where a part lies outside the readings or the counter went back.
    """
    mono, counter = samples["mono"].to_numpy(), _column(samples, "energy_j")
    known = ~np.isnan(counter)
    if known.sum() < 2 or not len(times) or (np.diff(counter[known]) < 0).any():
        return np.nan
    at = np.interp(times, mono[known], counter[known], left=np.nan, right=np.nan)
    return float((at[:, 1] - at[:, 0]).sum())


def peak_memory(launch: Launch, device: str) -> float:
    """Largest memory reading of a device in the whole launch, bytes; NaN where there is none."""
    return float(launch.samples.loc[launch.samples["device"] == device, "memory_bytes"].max())


def _column(samples: pd.DataFrame, name: str) -> NDArray[np.float64]:
    if name not in samples:
        return np.full(len(samples), np.nan)
    return samples[name].to_numpy(dtype=np.float64)


def _power(samples: pd.DataFrame) -> NDArray[np.float64]:
    """Power at each sample, W: the sensor's own reading where there is one, for `power_w` may be a mean over 1 s."""
    at_once = _column(samples, "power_instant_w")
    return _column(samples, "power_w") if np.isnan(at_once).all() else at_once


def _mean(values: NDArray[np.float64]) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else np.nan


def _share_energy(
    samples: pd.DataFrame, phases: Mapping[str, Intervals], found: Mapping[str, Mapping[str, float]]
) -> list[float]:
    """Joules of each phase of a device, in order; one without a reading of power is taken to draw the step's mean."""
    whole = counted_energy(samples, phases[STEP_PHASE])
    of_step = found[STEP_PHASE]["power_w"]
    drawn = {
        phase: numbers["span_s"] * (of_step if np.isnan(numbers["power_w"]) else numbers["power_w"])
        for phase, numbers in found.items()
    }
    together = sum(joules for phase, joules in drawn.items() if phase != STEP_PHASE)
    return [whole if phase == STEP_PHASE else whole * joules / (together or np.nan) for phase, joules in drawn.items()]
