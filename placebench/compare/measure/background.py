"""What is known of a placement's run besides its numbers, for a comparison with sides of other runs and with logs."""

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from placebench.compare.measure.placements import RunSide
from placebench.compare.read.host_facts import host_facts
from placebench.compare.side import Background, LaunchSource
from placebench.logs.head import Facts
from placebench.logs.timing import Kind, Timings
from placebench.spec.nested import flatten
from placebench.spec.phases import STEP, UNATTRIBUTED, phase_order

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


def with_background(side: RunSide) -> RunSide:
    """A placement that has finished launches, with what is known of its run."""
    measured = side.steps.groupby("round").size()
    sources = tuple(
        LaunchSource(str(launch.trial.path), "run", len(launch.steps), int(measured.get(launch.round, 0)))
        for launch in side.launches
    )
    timings = {str(launch.trial.path): _trial_timings(launch.steps) for launch in side.launches}
    return replace(side, background=Background(sources, timings, _facts(side)))


def _trial_timings(steps: pd.DataFrame) -> Timings:
    """The timings of a launch as the controller saw them."""
    seconds = steps.filter(regex="^timing_s/").rename(columns=lambda name: str(name).removeprefix("timing_s/"))
    kinds = {str(phase): Kind.OVERLAP for phase in seconds.columns}
    kinds |= {phase: Kind(phase) for phase in (STEP, UNATTRIBUTED) if phase in kinds}
    return Timings(seconds[phase_order(kinds)], kinds)


def _facts(side: RunSide) -> Facts:
    run = side.run
    devices = [run.devices[device] for device in side.placement.devices]
    facts: Facts = {
        "framework": run.record.job.framework if run.record.job else "placebench",
        "launcher": run.record.launcher,
        "devices": str(len(devices)),
        "kind of device": "GPU" if any(device.kind == "gpu" for device in devices) else "CPU",
        "type of device": ", ".join(sorted({device.name for device in devices})),
    }
    record = run.record
    return facts | facts_of_record(record.workload, record.host, record.versions, record.git) | _measured_facts(side)


def facts_of_record(
    workload: Mapping[str, Any], host: Mapping[str, Any], versions: Mapping[str, Any], git: Mapping[str, Any] | None
) -> Facts:
    """What a run's record says, as people read it."""
    facts: Facts = {}
    for key, value in flatten(workload).items():
        if key not in NOT_WORK and value is not None:
            facts[WORKLOAD_FACTS.get(key, f"workload {key}")] = str(value)
    facts |= {f"host {name}": text for name, text in host_facts(host).items()}
    facts |= {f"{name} version": str(value) for name, value in versions.items() if value}
    if git:
        facts["git commit"] = f"{git.get('commit')}{' with changes' if git.get('dirty') else ''}"
    return {key: value for key, value in facts.items() if value not in ("", "[]")}


def _measured_facts(side: RunSide) -> Facts:
    """Work and clocks of a run, as means of its launches."""
    facts: Facts = {}
    found = {"tokens a step": side.tokens}
    for fact, metric in LENGTHS.items():
        means = [launch.steps[metric].mean() for launch in side.launches if metric in launch.steps]
        found[fact] = fmean(means) if means else np.nan
    devices = side.phase_devices
    if len(devices):
        found["SM clock, MHz"] = devices.loc[devices["phase"] == STEP, "clock_sm_mhz"].mean()
    facts |= {fact: float(value) for fact, value in found.items() if np.isfinite(value)}
    return facts
