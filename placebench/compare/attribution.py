"""Device samples joined to phases, by device and monotonic clock.

A load that a sampler reports describes the time since its previous sample, and phases can be shorter than that. So a
sample counts for a phase by the seconds that its time shares with the phase's spans on that device, and every mean
says how many seconds of samples it rests on. Memory is a reading of one moment and belongs to the phase of that
moment. Energy is the difference of the device's counter over the phase, which is taken to run evenly between readings.
"""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from placebench.compare.run import APART, Launch, RunPlacement
from placebench.compare.steps import STEP_PHASE
from placebench.intervals import Intervals, contains, covered, length, subtract, union
from placebench.telemetry.spans import CONTROLLER

IDLE = "idle"
RATES = ("util", "sm_activity", "tensor_activity", "dram_activity", "power_w", "clock_sm_mhz")
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
        measured steps, `seconds` the part that samples with a load cover, `samples` their number; `load` and the
        rates (shares 0..1, power in W, clock in MHz) are means over time; `energy_j` is the sum over the measured
        steps; `allocated_bytes` is the most that tensors took, where the job counts it. What the source does not have
        is NaN.
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
        rows += [
            {
                "phase": phase,
                "device": device,
                **attribute_samples(samples, active, load_signal),
                "allocated_bytes": allocated.get(phase, np.nan),
            }
            for phase, active in phases.items()
        ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def attribute_samples(samples: pd.DataFrame, times: Intervals, load_signal: str) -> dict[str, float]:
    """What one device's samples, in order of time, say of the disjoint `times`; keys as in `attribute`."""
    mono = samples["mono"].to_numpy()
    since = np.column_stack([np.append(np.nan, mono[:-1])[: len(mono)], mono])
    weights = np.nan_to_num(covered(since, times))
    numbers: dict[str, float] = {"span_s": length(times)}
    loaded = (weights > 0) & ~np.isnan(_column(samples, load_signal))
    numbers["seconds"] = float(weights[loaded].sum())
    numbers["samples"] = int(loaded.sum())
    for rate in RATES:
        values = _column(samples, rate)
        known = (weights > 0) & ~np.isnan(values)
        numbers[rate] = float(np.average(values[known], weights=weights[known])) if known.any() else np.nan
    numbers["load"] = numbers[load_signal]
    memory = _column(samples, "memory_bytes")[contains(times, mono)]
    numbers["peak_memory_bytes"] = float(np.nanmax(memory)) if np.isfinite(memory).any() else np.nan
    numbers["energy_j"] = _energy(mono, _column(samples, "energy_j"), times)
    return numbers


def peak_memory(launch: Launch, device: str) -> float:
    """Largest memory reading of a device in the whole launch, bytes; NaN where there is none."""
    return float(launch.samples.loc[launch.samples["device"] == device, "memory_bytes"].max())


def _column(samples: pd.DataFrame, name: str) -> NDArray[np.float64]:
    if name not in samples:
        return np.full(len(samples), np.nan)
    return samples[name].to_numpy(dtype=np.float64)


def _energy(mono: NDArray[np.float64], counter: NDArray[np.float64], times: Intervals) -> float:
    """Joules over `times`; NaN where a part lies outside the readings or the counter went back."""
    known = ~np.isnan(counter)
    if known.sum() < 2 or not len(times) or (np.diff(counter[known]) < 0).any():
        return np.nan
    at = np.interp(times, mono[known], counter[known], left=np.nan, right=np.nan)
    return float((at[:, 1] - at[:, 0]).sum())
