"""The comparison of a run's placements: measured numbers of every launch, estimates, ratios to the first placement."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from placebench.compare.calibration import Calibration, find_calibration
from placebench.compare.engines import measure_engines, side_rates
from placebench.compare.measure.attribution import RATES, attribute, peak_memory
from placebench.compare.measure.critical_path import PATH_KEYS, path_values
from placebench.compare.measure.efficiency import measure_efficiency
from placebench.compare.measure.metrics import (
    STEP_TIME,
    TOKENS_PER_J,
    Metric,
    controller_metric,
    device_metrics,
    placement_metrics,
)
from placebench.compare.measure.steps import measure_steps
from placebench.compare.measure.waits import first_trace, traced_waits
from placebench.compare.read.run import Launch, Run
from placebench.compare.read.run_reading import load_run
from placebench.compare.statistics.estimates import (
    MIN_EFFECT,
    LaunchValue,
    Ratio,
    middle,
    rounds_of_pairs,
)
from placebench.compare.statistics.measured import ADDITIVE, MEANS, Measured
from placebench.compare.statistics.pairing import hold_details, hold_headlines, pair
from placebench.compare.statistics.work import UnequalWork
from placebench.logs.timing import STEP
from placebench.spec.bound import RunPlacement
from placebench.spec.placement import Scaling

GPM_LOAD = "sm_activity"
PLAIN_LOAD = "util"
RARE = ("overlap/", "wait/", *PATH_KEYS)


@dataclass(frozen=True)
class PlacementResult(Measured):
    """What the finished launches of one placement measured.

    Attributes:
        placement: the placement.
        launches: its finished launches, by round.
        steps: one row a measured step, columns `round`, `step` and the numbers of `measure_steps`.
        samples: one row a round, phase and device: see `attribution.attribute`; `load` is the signal in use.
        launch_values: one row a launch, indexed by round: the median of its steps, of `ADDITIVE` numbers their share
            of it, and its device numbers.
        ratios: each number against the first placement; None where a ratio has no meaning. Empty for the first.
        work: how its work differs from the first placement's; None where it does not.
    """

    placement: RunPlacement
    launches: tuple[Launch, ...]
    steps: pd.DataFrame
    samples: pd.DataFrame
    launch_values: pd.DataFrame
    ratios: Mapping[str, Ratio | None]
    work: UnequalWork | None = None

    @property
    def name(self) -> str:
        """The placement's name."""
        return self.placement.name

    @cached_property
    def steps_by_round(self) -> dict[int, pd.DataFrame]:
        """The measured steps of each launch, indexed by step."""
        if self.steps.empty:
            return {}
        return {int(str(number)): group.set_index("step") for number, group in self.steps.groupby("round")}

    @property
    def work_steps(self) -> Mapping[int, pd.DataFrame]:
        """The measured steps of each launch; none under weak scaling, where their work differs by design."""
        return {} if self.placement.scaling == Scaling.WEAK else self.steps_by_round

    def by_step(self, key: str) -> Mapping[int, LaunchValue]:
        """A number of each launch by its round: a value a step where every step has one above 0, else one value."""
        if key not in self.steps or key.startswith((*ADDITIVE, *MEANS)) or not (self.steps[key] > 0).all():
            return self.by_round(key)
        return {number: steps[key] for number, steps in self.steps_by_round.items()}

    @property
    def measured_rounds(self) -> tuple[int, ...]:
        """The rounds whose launches have a step time."""
        return tuple(number for number, seconds in self.by_round(STEP_TIME.key).items() if not math.isnan(seconds))

    def of_rounds(self, rounds: Collection[int]) -> "PlacementResult":
        """What the launches of some of its rounds measured; the ratios stay those of all."""
        if {launch.round for launch in self.launches} <= set(rounds):
            return self
        return replace(
            self,
            launches=tuple(launch for launch in self.launches if launch.round in rounds),
            steps=self.steps[self.steps["round"].isin(rounds)],
            samples=self.samples[self.samples["round"].isin(rounds)],
            launch_values=self.launch_values[self.launch_values.index.isin(rounds)],
        )

    def role_pool(self, phase: str) -> str | None:
        """The pool that works on a phase; None for the controller's own."""
        for launch in self.launches:
            pools = launch.spans.loc[launch.spans["phase"] == phase, "pool"].dropna()
            if len(pools):
                return str(pools.iloc[0])
        return None

    def pool_idle(self, pool: str) -> float:
        """Idle seconds a step of a pool's devices, their mean."""
        devices = self.placement.pools[pool]
        return sum(self.value(f"idle/{device}") for device in devices) / len(devices)

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
        """The same for each phase and pool.

        Returns:
            One row a phase and pool, in order of appearance: rates, seconds and peaks as in `phase_devices`,
            `energy_j` per step of all the pool's devices together, NaN where one has none, and `devices`, how many
            there are.
        """
        devices = self.phase_devices
        if devices.empty:
            return devices
        devices = devices.assign(pool=devices["device"].map(self.placement.pool_of))
        keys = ["phase", "pool"]
        energy = devices.groupby(keys, sort=False)["energy_j"]
        whole = energy.sum().where(energy.count() == energy.size())
        return _pooled(devices, keys).assign(devices=energy.size(), energy_j=whole).reset_index()


@dataclass(frozen=True)
class Comparison:
    """A run's placements, each against the first.

    Attributes:
        run: the run.
        results: one a placement, in the run's order; without launches where none has finished.
        load_signal: which of the sampler's quantities is the device load.
        min_effect: smallest effect of interest, as a fraction.
        calibration: how much launches vary on this host under this workload; None where nobody measured it.
    """

    run: Run
    results: tuple[PlacementResult, ...]
    load_signal: str
    min_effect: float
    calibration: Calibration | None = None

    @property
    def first(self) -> PlacementResult:
        """The placement that the others are compared with."""
        return self.results[0]

    @cached_property
    def phases(self) -> tuple[str, ...]:
        """Every phase of any placement."""
        return tuple(dict.fromkeys(phase for result in self.results for phase in result.keys("phase/")))

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The numbers that stand side by side and that any placement has."""
        return tuple(
            metric
            for metric in placement_metrics(self.phases)
            if any(result.estimate(metric.key).n for result in self.results)
        )


def compare_run(path: Path, min_effect: float | None = None) -> Comparison:
    """Read a run folder, finished or not, and compare its placements.

    Args:
        path: the run's folder.
        min_effect: smallest effect of interest, as a fraction; None for what the run was started with, or 2 %.

    Raises:
        UsageError: the folder is not a run's, or a file in it is damaged.
    """
    run = load_run(path)
    calibration = find_calibration(run)
    if min_effect is None:
        min_effect = run.record.min_effect or MIN_EFFECT
    done = [launch for placement in run.placements for launch in run.done(placement.name)]
    load_signal = GPM_LOAD if any(_has(launch, GPM_LOAD) for launch in done) else PLAIN_LOAD
    results: list[PlacementResult] = []
    for placement in run.placements:
        measured = _measure(run, placement, load_signal)
        results.append(against(results[0], measured, run, min_effect, calibration) if results else measured)
    held = hold_headlines([result.ratios for result in results])
    results = [replace(result, ratios=ratios) for result, ratios in zip(results, held, strict=True)]
    return Comparison(run, tuple(results), load_signal, min_effect, calibration)


def _has(launch: Launch, signal: str) -> bool:
    return signal in launch.samples and bool(launch.samples[signal].notna().any())


def _measure(run: Run, placement: RunPlacement, load_signal: str) -> PlacementResult:
    launches = run.done(placement.name)
    rollout = run.record.workload.get("rollout", {})
    shared_by = placement.tensor_parallel or rollout.get("tensor_parallel_size", 1)
    trace = first_trace(launches)
    steps, samples, values = [], [], {}
    for launch in launches:
        measured = measure_steps(launch, placement)
        measured = measured.join(measure_efficiency(measured, launch, placement, run))
        measured = measured.join(measure_engines(measured, launch))
        attributed = attribute(launch, placement, load_signal)
        steps.append(measured.reset_index().assign(round=launch.round))
        samples.append(attributed.assign(round=launch.round))
        numbers = _steps_values(measured) | _device_values(launch, placement, attributed, len(measured))
        numbers |= path_values(launch, placement, measured.index, numbers.get(STEP_TIME.key, np.nan))
        numbers |= side_rates(numbers)
        numbers |= traced_waits(trace, attributed, numbers, placement, shared_by)
        if numbers["energy"] > 0:
            numbers[TOKENS_PER_J.key] = float(measured["tokens"].mean()) / numbers["energy"]
        values[launch.round] = numbers
    launch_values = pd.DataFrame.from_dict(values, orient="index")
    rare = [str(key) for key in launch_values.columns if str(key).startswith(RARE)]
    if STEP_TIME.key in launch_values:
        measured_launches = launch_values[STEP_TIME.key].notna()
        launch_values.loc[measured_launches, rare] = launch_values.loc[measured_launches, rare].fillna(0.0)
    return PlacementResult(
        placement,
        launches,
        pd.concat(steps, ignore_index=True) if steps else pd.DataFrame(),
        pd.concat(samples, ignore_index=True) if samples else pd.DataFrame(),
        launch_values,
        {},
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
    return {**measured.loc[:, ~additive & ~means].apply(middle), **parts, **measured.loc[:, means].mean()}


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


def against(
    first: PlacementResult, other: PlacementResult, run: Run, min_effect: float, calibration: Calibration | None
) -> PlacementResult:
    """A placement with its ratios to another one of its run.

    Every ratio but the headlines is corrected for the family that it belongs to; these are corrected for how many
    placements are compared, by `hold_headlines`.
    """
    phases = dict.fromkeys([*first.keys("phase/"), *other.keys("phase/")])
    families = (
        placement_metrics(phases),
        tuple(controller_metric(phase) for phase in phases),
        tuple(metric for device in run.devices for metric in device_metrics(device)),
    )
    pairing = pair(first, other, min_effect)
    ratios: dict[str, Ratio | None] = {}
    for family in families:
        found = {
            metric.key: pairing.ratio(metric, calibration.noise(metric.key) if calibration else None)
            for metric in family
        }
        ratios |= hold_details(found)
    return replace(other, ratios=ratios, work=pairing.work)


def launches_compared(
    first: PlacementResult, other: PlacementResult, *, interleaved: bool = True
) -> tuple[PlacementResult, PlacementResult, bool]:
    """Two placements with the launches alone on which the ratio of their step times rests.

    Args:
        first: the first placement.
        other: the other.
        interleaved: whether launches of the same round belong together, as in one run.

    Returns:
        Both, and whether their launches are pairs: then launches of other rounds than those of both are left out.
    """
    rounds = rounds_of_pairs(first.measured_rounds, other.measured_rounds) if interleaved else []
    return (first.of_rounds(rounds), other.of_rounds(rounds), True) if rounds else (first, other, False)


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
