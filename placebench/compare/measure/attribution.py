"""Device samples joined to phases, by device and monotonic clock.

A load that a sampler reports describes the time since its previous sample, and phases can be shorter than that. So a
sample counts for a phase by the seconds that its time shares with the phase's spans on that device, and every mean
says how many seconds of samples it rests on. Memory and clocks are readings of one moment and belong to the phase of
that moment. Power and energy: see `energy`; phases share the counter's joules by what they drew.

What GPM reads is late: the driver renews its counters about ten times a second, at moments of its own for every GPU.
On H200s readings five times a second came 0.06 to 0.17 s after what they tell, much the same for all of a launch. So
they are shifted back by the time that makes the phases explain them best.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from placebench.compare.measure.energy import PowerCurve, power_curve
from placebench.compare.read.run import APART, Launch, is_whole_step
from placebench.spec.bound import RunPlacement
from placebench.spec.intervals import Intervals, contains, covered, length, subtract, union
from placebench.spec.phases import STEP

IDLE = "idle"
GPM_RATES = ("sm_activity", "tensor_activity", "dram_activity")
_LOADS = ("util", *GPM_RATES)
_LAGS_S = np.arange(0.0, 0.255, 0.01)
RATES = (*_LOADS, "power_w", "clock_sm_mhz")
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
    "lag_s",
)


@dataclass(frozen=True)
class DeviceSamples:
    """Samples of one device, in order of time."""

    frame: pd.DataFrame
    """Columns as in `Launch.samples`."""
    _columns: dict[str, NDArray[np.float64]] = field(default_factory=dict, init=False, repr=False)
    _readings: dict[str, tuple[NDArray[np.float64], Intervals]] = field(default_factory=dict, init=False, repr=False)

    def column(self, name: str) -> NDArray[np.float64]:
        """Values of a column; NaN where the source does not have it."""
        if name not in self._columns:
            known = self.frame[name] if name in self.frame else np.full(len(self.frame), np.nan)
            self._columns[name] = np.asarray(known, dtype=np.float64)
        return self._columns[name]

    def readings(self, rate: str) -> tuple[NDArray[np.float64], Intervals]:
        """Values of a rate and the times that they tell of, from the reading before; from NaN for the first."""
        if rate not in self._readings:
            values, until = self.column(rate), self.column("mono")
            # GPM is not asked at every tick where ticks are many: a reading covers the time since the one before.
            asked = ~np.isnan(values) if rate in GPM_RATES else np.full(len(values), True)
            values, until = values[asked], until[asked]
            self._readings[rate] = values, np.column_stack([np.append(np.nan, until[:-1])[: len(until)], until])
        return self._readings[rate]


def attribute(launch: Launch, placement: RunPlacement, load_signal: str) -> pd.DataFrame:
    """What the samples of a launch say of its phases.

    Args:
        launch: a launch with spans and samples.
        placement: its placement.
        load_signal: which of `RATES` is the load.

    Returns:
        One row a phase and device, in columns `COLUMNS`; besides the phases the rows `IDLE` (measured steps, no
        phase on the device) and `STEP` (all of it). `span_s` is the phase's time on the device over all
        measured steps, `seconds` the part that samples with a load cover, `samples` their number; `load` and its
        like (shares 0..1) and power (W) are means over time, the clock (MHz) of its readings; `energy_j` is the sum
        over the measured steps, of which the phases and `IDLE` add up to `STEP`; `allocated_bytes` is the most
        that tensors took, where the job counts it; `lag_s` is what was taken out of GPM's readings of the device.
        What the source does not have is NaN.
    """
    spans, whole = launch.spans, union(launch.measured_steps[["start", "end"]].to_numpy(dtype=np.float64))
    spans = spans[~is_whole_step(spans) & (covered(spans[["start", "end"]].to_numpy(dtype=np.float64), whole) > 0)]
    phase_of, device_of = spans["phase"].to_numpy(dtype=object), spans["device"].to_numpy(dtype=object)
    times = spans[["start", "end"]].to_numpy(dtype=np.float64)
    whole = subtract(whole, union(times[np.isin(phase_of, APART)]))
    rows = []
    for device in placement.devices:
        samples = DeviceSamples(launch.samples[launch.samples["device"].to_numpy(dtype=object) == device])
        mine = device_of == device
        # Work ahead of its step may begin before the first measured step, or end after the last one.
        outside = subtract(union(times[mine]), whole)
        phases = {
            str(phase): subtract(union(times[mine & (phase_of == phase)]), outside)
            for phase in dict.fromkeys(phase_of[mine])
        }
        if launch.has_phases:
            phases[IDLE] = subtract(whole, union(np.concatenate([np.empty((0, 2)), *phases.values()])))
        phases[STEP] = whole
        lag = gpm_lag(samples, phases)
        allocated = _highest(phase_of[mine], spans["allocated_bytes"].to_numpy(dtype=np.float64)[mine])
        curve = power_curve(launch, device)
        joules = _share_energy(launch.energy[launch.energy["device"].to_numpy(dtype=object) == device], phases, curve)
        rows += [
            {
                "phase": phase,
                "device": device,
                **attribute_samples(samples, active, load_signal, lag),
                "power_w": curve.mean(active),
                "allocated_bytes": allocated.get(phase, np.nan),
                "energy_j": joules[phase],
                "lag_s": lag,
            }
            for phase, active in phases.items()
        ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def gpm_lag(samples: DeviceSamples, phases: Mapping[str, Intervals]) -> float:
    """By how many seconds a device's GPM readings come after what they tell.

    Of every lag that may be, the load of each phase is fitted to the readings by least squares; the lag with the least
    residual is taken, the smallest of equal ones, and 0 where too few readings lie in the steps.

    Args:
        samples: of one device.
        phases: the disjoint times of each phase on it, with `IDLE` and `STEP`.
    """
    values, windows = samples.readings("sm_activity")
    # The whole window must be explained by the phases, wherever in time it comes to lie.
    reached = windows - np.array([_LAGS_S[-1], 0.0])
    known = ~np.isnan(values) & (covered(reached, phases[STEP]) > 0.95 * (reached[:, 1] - reached[:, 0]))
    values, windows = values[known], windows[known]
    times = [active for phase, active in phases.items() if phase != STEP]
    if not times or len(values) < 2 * len(times):
        return 0.0
    read = values * (windows[:, 1] - windows[:, 0])
    residuals = []
    for lag in _LAGS_S:
        design = np.column_stack([covered(windows - lag, active) for active in times])
        residuals.append(np.linalg.norm(read - design @ np.linalg.lstsq(design, read)[0]))
    return float(_LAGS_S[np.flatnonzero(np.array(residuals) <= min(residuals) + 1e-9)[0]])


def attribute_samples(samples: DeviceSamples, times: Intervals, load_signal: str, lag: float = 0.0) -> dict[str, float]:
    """What one device's samples say of the disjoint `times`; keys as in `attribute`.

    Without what others tell: power and energy, `allocated_bytes` and `lag_s`. `lag`: as of `gpm_lag`.
    """
    numbers: dict[str, float] = {"span_s": length(times)}
    for rate in _LOADS:
        if rate not in samples.frame and rate != load_signal:
            numbers[rate] = np.nan
            continue
        values, windows = samples.readings(rate)
        weights = np.nan_to_num(covered(windows - (lag if rate in GPM_RATES else 0.0), times))
        known = (weights > 0) & ~np.isnan(values)
        numbers[rate] = float(np.average(values[known], weights=weights[known])) if known.any() else np.nan
        if rate == load_signal:
            numbers |= {"load": numbers[rate], "seconds": float(weights[known].sum()), "samples": int(known.sum())}
    inside = contains(times, samples.column("mono"))
    clocks = samples.column("clock_sm_mhz")[inside]
    numbers["clock_sm_mhz"] = float(np.nanmean(clocks)) if np.isfinite(clocks).any() else np.nan
    memory = samples.column("memory_bytes")[inside]
    numbers["peak_memory_bytes"] = float(np.nanmax(memory)) if np.isfinite(memory).any() else np.nan
    return numbers


def peak_memory(launch: Launch, device: str) -> float:
    """Largest memory reading of a device up to the end of the launch's last step, bytes; NaN where there is none.

    A step that is traced after it needs memory for the trace as well.
    """
    samples, end = launch.samples, launch.whole_steps["end"].max()
    read = (samples["device"].to_numpy(dtype=object) == device) & (samples["mono"].to_numpy() <= end)
    memory = samples["memory_bytes"].to_numpy(dtype=np.float64)[read]
    return float(np.fmax.reduce(memory, initial=np.nan))


def _highest(names: NDArray[np.object_], values: NDArray[np.float64]) -> dict[str, float]:
    """The highest value of each name; NaN where none is known."""
    return {str(name): float(np.fmax.reduce(values[names == name])) for name in dict.fromkeys(names)}


def _share_energy(readings: pd.DataFrame, phases: Mapping[str, Intervals], curve: PowerCurve) -> dict[str, float]:
    """Joules of each phase of a device: the counter's over the steps, by what the phases drew.

    Phases may overlap on an engine that takes weights while it generates; together they still have what was counted.
    """
    mono, counter = (readings[column].to_numpy(dtype=np.float64) for column in ("mono", "energy_j"))
    whole = curve.counted(phases[STEP], mono, counter)
    drawn = {phase: curve.drawn(active) for phase, active in phases.items() if phase != STEP}
    together = sum(drawn.values()) or np.nan
    return {phase: whole * joules / together for phase, joules in drawn.items()} | {STEP: whole}
