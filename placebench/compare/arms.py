"""The arms of a comparison across runs, and those that come from run folders; `log_arms` has those from logs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd

from placebench.compare.comparison import Comparison, PlacementResult, compare_run
from placebench.compare.explain.caveats import caveats
from placebench.compare.explain.reasons import Side
from placebench.compare.read.host_facts import host_facts
from placebench.compare.statistics.estimates import MIN_EFFECT, Ratio
from placebench.compare.statistics.measured import Measured
from placebench.compare.statistics.work import UnequalWork
from placebench.errors import UsageError
from placebench.logs.head import Facts
from placebench.logs.timing import STEP, UNATTRIBUTED, Kind
from placebench.spec.config import flatten

# Run keys of a workload that say how much was measured, not what.
NOT_WORK = ("steps", "warmup_steps", "seed", "trace_kernels")
WORKLOAD_FACTS: Mapping[str, str] = {
    "model": "model",
    "precision": "precision",
    "batch.size": "batch size",
    "batch.mini_batch_size": "mini-batch size",
    "batch.max_prompt_length": "longest prompt",
    "batch.max_response_length": "longest response",
    "batch.group_size": "responses a prompt",
    "algorithm.name": "algorithm",
    "algorithm.epochs": "epochs",
    "rollout.backend": "rollout",
    "rollout.tensor_parallel_size": "rollout tensor parallel",
}
LENGTHS = {"mean prompt length": "prompt_length/mean", "mean response length": "response_length/mean"}


@dataclass(frozen=True)
class ArmLaunch:
    """One launch of an arm.

    Attributes:
        source: its trial folder, or its files.
        format: what was read: `run`, or the names of the logs' formats.
        steps: steps on record.
        measured: those in the numbers.
    """

    source: str
    format: str
    steps: int
    measured: int


@dataclass(frozen=True)
class Arm(Measured):
    """One side of a comparison across runs.

    Attributes:
        label: its name.
        launches: what its numbers come from.
        launch_values: one row a launch: `step_time`, `phase/<phase>`, `part/<phase>` (part of a phase, or outside the
            step), `unattributed`, `tokens_per_s`, `tokens_per_s_per_device`; of a run all else that it measured.
        timings: columns launch, step, phase, seconds, kind: every step, for the figure.
        facts: what is known of the run: text, or a number where a little more or less is no difference.
        flags: what to mind, one line each.
        overlapping: phases that ran beside others or may have.
        step_is_sum: the step time may be a mere sum of phases, so that the log's clock is to be preferred.
        run: the folder of the run, whose rounds are pairs; None for logs.
        origin: the run with the arm's placement alone; None for logs.
        ratios: each number against the first arm.
        work_steps: columns step_time and tokens of the measured steps of each launch, by launch; empty where not known.
        work: how its work differs from the first arm's; None where it does not, or where that is not known.
    """

    label: str
    launches: tuple[ArmLaunch, ...]
    launch_values: pd.DataFrame
    timings: pd.DataFrame
    facts: Facts
    flags: tuple[str, ...]
    overlapping: frozenset[str] = frozenset()
    step_is_sum: bool = False
    run: Path | None = None
    origin: Comparison | None = None
    ratios: Mapping[str, Ratio | None] = field(default_factory=dict)
    work_steps: Mapping[int, pd.DataFrame] = field(default_factory=dict)
    work: UnequalWork | None = None

    @property
    def name(self) -> str:
        """What it is called."""
        return self.label

    @property
    def side(self) -> Side | None:
        """The run, and what it measured under the arm's name and with the arm's ratios; None for logs."""
        if self.origin is None:
            return None
        found = self.origin.first
        return self.origin.run, replace(found, placement=found.placement.renamed(self.label), ratios=self.ratios)

    def renamed(self, label: str) -> "Arm":
        """The same under another name."""
        return replace(self, label=label)


def run_arms(path: Path, placement: str | None = None, min_effect: float = MIN_EFFECT) -> tuple[Arm, ...]:
    """The placements of a run folder, or one of them, compared at a smallest effect of interest.

    Raises:
        UsageError: the folder is not a run's, it has no such placement, or no launch is done.
    """
    comparison = compare_run(path, min_effect)
    names = [result.name for result in comparison.results]
    if placement is not None and placement not in names:
        raise UsageError(f"{path} has no placement {placement!r}: it has {', '.join(names)}")
    chosen = [result for result in comparison.results if placement in (None, result.name)]
    return tuple(_run_arm(path, comparison, result) for result in chosen)


def _run_arm(path: Path, comparison: Comparison, result: PlacementResult) -> Arm:
    if not result.launches:
        raise UsageError(f"{path}: {result.name} has no finished launch: there is nothing to compare")
    own = tuple(launch for launch in comparison.run.launches if launch.placement == result.name)
    alone = replace(comparison, run=replace(comparison.run, launches=own), results=(result,))
    measured = result.steps.groupby("round").size()
    launches = tuple(
        ArmLaunch(str(launch.trial.path), "run", len(launch.steps), int(measured.get(launch.round, 0)))
        for launch in result.launches
    )
    timings = pd.concat([_trial_timings(launch.steps, str(launch.trial.path)) for launch in result.launches])
    return Arm(
        label=result.name,
        launches=launches,
        launch_values=result.launch_values,
        timings=timings,
        facts=_run_facts(comparison, result),
        flags=caveats(alone),
        run=path.resolve(),
        origin=alone,
        work_steps=result.work_steps,
    )


def _trial_timings(steps: pd.DataFrame, launch: str) -> pd.DataFrame:
    """The timings of a launch as the controller saw them."""
    tidy = steps.filter(regex="^timing_s/").rename(columns=lambda name: str(name).removeprefix("timing_s/"))
    tidy = tidy.melt(var_name="phase", value_name="seconds", ignore_index=False).reset_index().dropna(subset="seconds")
    kinds = {STEP: Kind.STEP.value, UNATTRIBUTED: Kind.UNATTRIBUTED.value}
    kind = [kinds.get(phase, Kind.OVERLAP.value) for phase in tidy["phase"]]
    return tidy.assign(launch=launch, kind=kind)[["launch", "step", "phase", "seconds", "kind"]]


def _run_facts(comparison: Comparison, result: PlacementResult) -> Facts:
    run = comparison.run
    devices = [run.devices[device] for device in result.placement.devices]
    facts: Facts = {
        "framework": "placebench",
        "launcher": run.record.launcher,
        "devices": str(len(devices)),
        "kind of device": "GPU" if any(device.kind == "gpu" for device in devices) else "CPU",
        "type of device": ", ".join(sorted({device.name for device in devices})),
    }
    for key, value in flatten(run.record.workload).items():
        if key not in NOT_WORK and value is not None:
            facts[WORKLOAD_FACTS.get(key, f"workload {key}")] = str(value)
    facts |= {f"host {name}": text for name, text in host_facts(run.record.host).items()}
    facts |= {f"{name} version": str(value) for name, value in run.record.versions.items() if value}
    if git := run.record.git:
        facts["git commit"] = f"{git.get('commit')}{' with changes' if git.get('dirty') else ''}"
    facts |= _measured_facts(result)
    return {key: value for key, value in facts.items() if value not in ("", "[]")}


def _measured_facts(result: PlacementResult) -> Facts:
    """Work and clocks of a run, as means of its launches."""
    facts: Facts = {}
    found = {"tokens a step": result.steps["tokens"].mean() if len(result.steps) else np.nan}
    for fact, metric in LENGTHS.items():
        means = [launch.steps[metric].mean() for launch in result.launches if metric in launch.steps]
        found[fact] = fmean(means) if means else np.nan
    devices = result.phase_devices
    if len(devices):
        found["SM clock, MHz"] = devices.loc[devices["phase"] == STEP, "clock_sm_mhz"].mean()
    facts |= {fact: float(value) for fact, value in found.items() if np.isfinite(value)}
    return facts
