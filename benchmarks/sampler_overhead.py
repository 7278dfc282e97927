"""What the sampler costs: CPU time of its own, and whether it slows down the steps of the job beside it.

    python benchmarks/sampler_overhead.py share --processes 8 --seconds 60
    python benchmarks/sampler_overhead.py steps --pairs 10

`share` samples processes that wait and prints the sampler's share of one core. `steps` starts the real job in pairs
of launches, one with the sampler and one without, in an order that alternates from pair to pair, and prints the ratio
of their step times, and of each phase, with its 95 % interval. It is the ratio that reports give: of steps paired one
by one, which the same seed makes the same work, a pair of launches counting once. A launch before them fills caches and
does not count. With `--file` the pairs are kept and those there count too: it goes on after an interruption, and on a
host with several GPUs one of these can run on each at the same time.

    for gpu in 0 1 2 3; do
        CUDA_VISIBLE_DEVICES=$gpu python benchmarks/sampler_overhead.py steps --pairs 5 --devices gpu:1 --file p.jsonl &
    done; wait
"""

import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import click
import pandas as pd
import psutil

from placebench.compare.statistics import Better, compare
from placebench.config import parse_settings
from placebench.devices import device_to_dict, discover, parse_devices
from placebench.errors import LaunchError, PlacebenchError
from placebench.launches import JOB, SAMPLER, Launcher
from placebench.ownership import own_run
from placebench.plan import Plan, PlannedLaunch, RunRequest, make_plan
from placebench.processes import stop_process
from placebench.runfolder import Status, Trial, read_jsonl, write_json

_GRACE_S = 10.0
_START_S = 3.0


@click.group(help="Measure what the sampler costs.")
def main() -> None:
    """Let SIGTERM unwind like Ctrl-C does, so that the processes of a launch are ended."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


@main.command()
@click.option("--processes", type=click.IntRange(1, 512), default=4, show_default=True, help="Processes to sample.")
@click.option("--seconds", type=click.FloatRange(5), default=60.0, show_default=True, help="Length of the measurement.")
@click.option("--hz", type=float, default=5.0, show_default=True, help="Samples a second.")
@click.option("--devices", help="cpu:N or gpu:N, as of placebench run.  [default: what is there]")
def share(processes: int, seconds: float, hz: float, devices: str | None) -> None:
    """Print the sampler's share of one core and the time it takes to start."""
    found = discover(parse_devices(devices) if devices else None)
    with tempfile.TemporaryDirectory(prefix="pb-overhead-") as folder, _waiting(processes) as pids:
        trial = Trial(Path(folder))
        write_json(trial.launch_file, {"devices": [device_to_dict(device) for device in found]})
        lines = [{"pid": pid, "device": found[rank % len(found)].id} for rank, pid in enumerate(pids)]
        trial.processes.write_text("".join(json.dumps(line) + "\n" for line in lines))
        began = time.time()
        sampler = subprocess.Popen([*SAMPLER, folder, "--hz", str(hz)])
        try:
            time.sleep(_START_S)
            first = _cpu_seconds(sampler.pid), time.monotonic()
            time.sleep(seconds)
            last = _cpu_seconds(sampler.pid), time.monotonic()
        finally:
            stop_process(sampler, _GRACE_S)
        content = list(read_jsonl(trial.device_samples))
    header, footer = content[0], content[-1]
    click.echo(f"devices             {len(found)} {header['source']}, {processes} processes, {hz:g} Hz, {seconds:g} s")
    click.echo(f"start to header     {header['wall'] - began:.3f} s")
    click.echo(f"share of one core   {(last[0] - first[0]) / (last[1] - first[1]):.3%}")
    click.echo(f"CPU time in all     {footer['cpu_s']:.3f} s, start included")
    click.echo(f"achieved            {footer['achieved_hz']:.3f} Hz, {footer['missed']} ticks missed")


@main.command()
@click.option("--pairs", type=click.IntRange(2), default=10, show_default=True, help="Launches with, and without.")
@click.option("--placement", default="standard", show_default=True, help="Placement to launch.")
@click.option("--devices", help="cpu:N or gpu:N, as of placebench run.  [default: what is there]")
@click.option("--hz", type=float, default=5.0, show_default=True, help="Samples a second.")
@click.option("--file", "kept", type=click.File("a"), help="Add the pairs to this file.")
@click.option("--set", "settings", multiple=True, help="Workload setting, as of placebench run; repeatable.")
def steps(
    pairs: int, placement: str, devices: str | None, hz: float, kept: TextIO | None, settings: tuple[str, ...]
) -> None:
    """Print the ratio of step times with the sampler to those without."""
    with tempfile.TemporaryDirectory(prefix="pb-overhead-") as folder:
        request = RunRequest(
            placements=placement, workload=parse_settings(settings), devices=devices, rounds=pairs, out=Path(folder)
        )
        try:
            plan = make_plan(request)
            with kept or Path(folder, "pairs.jsonl").open("a") as file:
                for pair in _measured_pairs(plan, hz):
                    file.write(json.dumps(pair) + "\n")
                    file.flush()
            measured = list(read_jsonl(Path(file.name)))
        except PlacebenchError as error:
            raise click.ClickException(str(error)) from None
    click.echo(
        f"time with the sampler at {hz:g} Hz / without, {plan.placements[0].name} on {len(plan.devices)}"
        f" {plan.devices[0].kind} devices, {len(measured)} pairs of launches:"
    )
    for phase in measured[0]["with"]:
        without, sampled = (
            {pair: pd.Series(row[side][phase]) for pair, row in enumerate(measured)} for side in ("without", "with")
        )
        ratio = compare(without, sampled, Better.LESS)
        assert ratio is not None
        click.echo(f"{phase:15} {ratio.value:.4f}, 95 % interval {ratio.low:.4f} to {ratio.high:.4f}")


def _measured_pairs(plan: Plan, hz: float) -> Iterator[dict[str, dict[str, list[float]]]]:
    """What the two launches of each pair took, by `with` and `without`, as soon as both are there."""
    pair: dict[str, dict[str, list[float]]] = {}
    _launch(plan, plan.launches[0], Trial(plan.folder.path / "uncounted"), hz=None)
    for launch in plan.launches:
        for side in ("with", "without") if launch.round % 2 else ("without", "with"):
            trial = Trial(plan.folder.path / f"{launch.round:02d}-{side}")
            pair[side] = _launch(plan, launch, trial, hz if side == "with" else None)
            click.echo(f"pair {launch.round:2d}  {side:7}  {statistics.median(pair[side]['step']):.4f} s a step")
        yield pair


def _launch(plan: Plan, launch: PlannedLaunch, trial: Trial, hz: float | None) -> dict[str, list[float]]:
    """Run one launch; `hz` None leaves the sampler out. Returns seconds of the step and its phases, a number a step.

    Raises:
        LaunchError: the job failed.
    """
    trial.path.mkdir(parents=True)
    with own_run(plan.folder.path) as record:
        launcher = Launcher(replace(plan, sample_hz=hz or 0.0), record, JOB, lambda: None)
        result = launcher.run(launch, trial, lambda state: None)
    if result.status is not Status.DONE:
        raise LaunchError(f"a launch ended as {result.status}: {result.reason}")
    steps = [row["metrics"] for row in read_jsonl(trial.steps) if row["step"] > plan.workload.warmup_steps]
    phases = sorted((key for key in steps[0] if key.startswith("timing_s/")), key=lambda key: key != "timing_s/step")
    return {phase.removeprefix("timing_s/"): [step[phase] for step in steps] for phase in phases}


@contextmanager
def _waiting(count: int) -> Iterator[list[int]]:
    """PIDs of processes that do nothing, so that the sampler has a core to itself."""
    waiting = [subprocess.Popen(["sleep", "infinity"]) for _ in range(count)]
    try:
        yield [process.pid for process in waiting]
    finally:
        for process in waiting:
            process.kill()
            process.wait()


def _cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    sys.exit(main())
