"""What the finished launches of a run's placements measured: sides with spans and samples as evidence."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import pandas as pd

from placebench.compare.measure.attribution import RATES, attribute, peak_memory
from placebench.compare.measure.critical_path import path_values
from placebench.compare.measure.efficiency import clocked_mfu, measure_efficiency
from placebench.compare.measure.engines import measure_engines, side_rates
from placebench.compare.measure.observed import Arrangement, arrangements, as_seen
from placebench.compare.measure.steps import measure_steps
from placebench.compare.measure.waits import first_trace, traced_waits
from placebench.compare.metrics import PATH_KEYS, STEP_TIME, TOKENS_PER_J
from placebench.compare.read.noise import MeasuredNoise, find_noise
from placebench.compare.read.run import Launch, Run
from placebench.compare.side import ADDITIVE, MEANS, Side
from placebench.compare.statistics.estimates import middle
from placebench.spec.bound import RunPlacement
from placebench.spec.phases import STEP
from placebench.spec.placement import Scaling

GPM_LOAD = "sm_activity"
PLAIN_LOAD = "util"
RARE = ("overlap/", "wait/", *PATH_KEYS)


@dataclass(frozen=True, kw_only=True)
class RunSide(Side):
    """A placement of a run as a side, with the evidence behind its numbers."""

    run: Run
    """The run."""
    placement: RunPlacement
    """The placement, of a job of the user's with its pools on the devices where most launches had them; its name is
    the run's word for it, whatever the side is called."""
    launches: tuple[Launch, ...]
    """Its finished launches, by round."""
    samples: pd.DataFrame
    """One row a round, phase and device: see `attribution.attribute`; `load` is the signal in use, `pool` the one that
    had the device then."""
    load_signal: str
    """Which of the sampler's quantities is the device load."""
    noise: MeasuredNoise | None
    """How much launches vary on this host under this workload; None where nobody measured it."""

    def of_rounds(self, rounds: Collection[int]) -> Self:
        """What the launches of some of its rounds measured; the ratios stay those of all."""
        kept = super().of_rounds(rounds)
        if kept is self:
            return self
        launches = tuple(launch for launch in self.launches if launch.round in rounds)
        return replace(kept, launches=launches, samples=self.samples[self.samples["round"].isin(rounds)])

    def role_pool(self, phase: str) -> str | None:
        """The pool that works on a phase; None for the controller's own."""
        return self._role_pools.get(phase)

    @cached_property
    def _role_pools(self) -> dict[str, str]:
        pools: dict[str, str] = {}
        for launch in self.launches:
            known = launch.spans.dropna(subset="pool").drop_duplicates("phase")
            pools = dict(zip(known["phase"].tolist(), known["pool"].tolist(), strict=True)) | pools
        return pools

    def placed(self, launch: Launch) -> RunPlacement:
        """The placement with the devices that its pools had in one of its launches."""
        return as_seen(launch, self.placement) if self.run.record.job else self.placement

    def pool_idle(self, pool: str) -> float:
        """Idle seconds a step of the devices that a pool had, their mean."""
        return self.value(f"idle_in/{pool}")

    @cached_property
    def arrangements(self) -> tuple[Arrangement, ...]:
        """Where its roles were seen."""
        return arrangements(self.launches, self.placement)

    @cached_property
    def phase_devices(self) -> pd.DataFrame:
        """What the samples of all launches of a placement say of each phase on each device.

        Returns:
            One row a phase and device, in order of appearance: the rates of `attribution.RATES` and `load` as means
            over the seconds sampled, `seconds` and `samples` summed, `peak_memory_bytes` and `allocated_bytes` the
            highest, `energy_j` per step, `launches` how many have samples of the phase.
        """
        if self.samples.empty:
            return pd.DataFrame()
        steps_per_round = self.steps.groupby("round").size() if len(self.steps) else pd.Series(dtype=int)
        samples = self.samples.assign(
            launches=self.samples["samples"] > 0,
            energy_j=self.samples["energy_j"] / self.samples["round"].map(steps_per_round),
        )
        keys = ["phase", "device"]
        groups = samples.groupby(keys, sort=False)
        counts = groups[["samples", "launches"]].sum()
        return _pooled(samples, keys).join(counts).assign(energy_j=groups["energy_j"].mean()).reset_index()

    @cached_property
    def phase_pools(self) -> pd.DataFrame:
        """What the samples of all launches say of each phase on each pool.

        Returns:
            One row a phase and pool, in order of appearance: rates, seconds and peaks as in `phase_devices`,
            `energy_j` per step of all the pool's devices together, NaN where one has none, and `devices`, how many
            there are.
        """
        if self.samples.empty:
            return pd.DataFrame()
        keys = ["phase", "pool"]
        steps_per_round = self.steps.groupby("round").size() if len(self.steps) else pd.Series(dtype=int)
        samples = self.samples.assign(energy_j=self.samples["energy_j"] / self.samples["round"].map(steps_per_round))
        # In each launch by itself: a pool of a user's job may have other devices there.
        energy = samples.groupby([*keys, "round"], sort=False)["energy_j"]
        whole = energy.sum().where(energy.count() == energy.size()).groupby(keys, sort=False).mean()
        devices = energy.size().groupby(keys, sort=False).max()
        return _pooled(samples, keys).assign(devices=devices, energy_j=whole).reset_index()


def measure_run(run: Run, chosen: str | None = None) -> tuple[RunSide, ...]:
    """Every placement of a run, in its order, or the chosen one; without launches where none has finished."""
    noise = find_noise(run)
    done = [launch for placement in run.placements for launch in run.done(placement.name)]
    load_signal = GPM_LOAD if any(_has(launch, GPM_LOAD) for launch in done) else PLAIN_LOAD
    placements = (placement for placement in run.placements if chosen in (None, placement.name))
    return tuple(_measure(run, placement, load_signal, noise) for placement in placements)


def _has(launch: Launch, signal: str) -> bool:
    return signal in launch.samples and bool(launch.samples[signal].notna().any())


def _measure(run: Run, planned: RunPlacement, load_signal: str, noise: MeasuredNoise | None) -> RunSide:
    launches = run.done(planned.name)
    bound = [as_seen(launch, planned) if run.record.job else planned for launch in launches]
    # Launches that differ are each measured as they were, and shown as most of them were.
    placement = max(bound, key=lambda one: sum(one.pools == other.pools for other in bound), default=planned)
    rollout = run.record.workload.get("rollout", {})
    shared_by = placement.tensor_parallel or rollout.get("tensor_parallel_size", 1)
    trace = first_trace(launches)
    steps, samples, values = [], [], {}
    for launch, placed in zip(launches, bound, strict=True):
        measured = measure_steps(launch, placed)
        measured = measured.join(measure_efficiency(measured, launch, placed, run))
        measured = measured.join(measure_engines(measured, launch))
        attributed = attribute(launch, placed, load_signal)
        steps.append(measured.reset_index().assign(round=launch.round))
        samples.append(attributed.assign(round=launch.round, pool=attributed["device"].map(placed.pool_of)))
        numbers = _steps_values(measured) | _device_values(launch, placed, attributed, len(measured))
        numbers |= _pool_values(numbers, placed)
        if launch.has_path:
            numbers |= path_values(launch, placed, measured.index, numbers.get(STEP_TIME.key, np.nan))
        numbers |= clocked_mfu(numbers, attributed, placed, run.devices)
        numbers |= side_rates(numbers)
        numbers |= traced_waits(trace, attributed, numbers, placed, shared_by)
        if numbers["energy"] > 0:
            numbers[TOKENS_PER_J.key] = float(measured["tokens"].mean()) / numbers["energy"]
        values[launch.round] = numbers
    launch_values = pd.DataFrame.from_dict(values, orient="index")
    rare = [str(key) for key in launch_values.columns if str(key).startswith(RARE)]
    if STEP_TIME.key in launch_values:
        measured_launches = launch_values[STEP_TIME.key].notna()
        launch_values.loc[measured_launches, rare] = launch_values.loc[measured_launches, rare].fillna(0.0)
    return RunSide(
        name=placement.name,
        launch_values=launch_values,
        steps=pd.concat(steps, ignore_index=True) if steps else pd.DataFrame(),
        home=run.folder.path.resolve(),
        grows=placement.scaling == Scaling.WEAK,
        run=run,
        placement=placement,
        launches=launches,
        samples=pd.concat(samples, ignore_index=True) if samples else pd.DataFrame(),
        load_signal=load_signal,
        noise=noise,
    )


def _steps_values(measured: pd.DataFrame) -> dict[str, float]:
    """Medians of the steps; of parts, whose medians would not add up, their mean share of a step of the median one."""
    if measured.empty:
        return {}
    additive = measured.columns.str.startswith(ADDITIVE)
    step = measured[STEP_TIME.key]
    median = middle(step)
    parts = measured.loc[:, additive].div(step, axis="index").mean() * median
    means = measured.columns.str.startswith(MEANS)
    medians = {key: middle(measured[key]) for key in measured.columns[~additive & ~means]}
    return {**medians, **parts, **measured.loc[:, means].mean()}


def _device_values(launch: Launch, placement: RunPlacement, attributed: pd.DataFrame, steps: int) -> dict[str, float]:
    """Load, peak memory and energy of every device of a launch, and those of all devices."""
    whole = attributed[attributed["phase"] == STEP].set_index("device")
    memory = pd.Series({device: peak_memory(launch, device) for device in placement.devices})
    energy = whole["energy_j"] / (steps or np.nan)
    numbers = {f"load/{device}": float(load) for device, load in whole["load"].items()}
    numbers |= {f"peak_memory/{device}": float(peak) for device, peak in memory.items()}
    numbers |= {f"energy/{device}": float(joules) for device, joules in energy.items()}
    numbers["load"] = float(whole["load"].mean(skipna=False))
    numbers["peak_memory"] = float(memory.max())
    numbers["energy"] = float(energy.sum(skipna=False))
    return numbers


def _pool_values(numbers: Mapping[str, float], placement: RunPlacement) -> dict[str, float]:
    """Of the devices that a pool had in a launch: mean load and idle time, the highest memory, energy of them all."""
    found = {}
    for pool, devices in placement.pools.items():
        for key, together in _TOGETHER.items():
            parts = [numbers.get(f"{key}/{device}", np.nan) for device in devices]
            found[f"{key}_in/{pool}"] = float(together(parts))
    return found


# What becomes of a number of devices where they are taken together; NaN where one of them has none.
_TOGETHER: Mapping[str, Callable[[list[float]], float]] = {
    "load": np.mean,
    "peak_memory": np.max,
    "idle": np.mean,
    "energy": np.sum,
}


def _pooled(samples: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Groups in order of appearance: rates as means over the seconds sampled, the seconds summed, the highest peaks.

    Power does not come from the samples that have the load, so it counts for all time of the phase.
    """
    rates = samples[["load", *RATES]]
    known = rates.notna().mul(samples["seconds"], axis=0)
    known["power_w"] = rates["power_w"].notna() * samples["span_s"]
    by = [samples[key] for key in keys]
    means = (rates * known).groupby(by, sort=False).sum() / known.groupby(by, sort=False).sum()
    groups = samples.groupby(keys, sort=False)
    return means.join(groups[["seconds", "span_s"]].sum()).join(groups[["peak_memory_bytes", "allocated_bytes"]].max())
