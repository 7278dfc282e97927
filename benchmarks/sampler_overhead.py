"""What the sampler costs: CPU time of its own, and whether it slows down the steps of the job beside it.

    python benchmarks/sampler_overhead.py share --processes 8 --seconds 60
    python benchmarks/sampler_overhead.py steps --pairs 10
    python benchmarks/sampler_overhead.py steps --pairs 12 --side-by-side --devices gpu:2 --file PAIRS
    python benchmarks/sampler_overhead.py pairs PAIRS...

`share` samples processes that wait and prints the sampler's share of one core. `steps` starts the real job in pairs
of launches, one with the sampler and one without, and prints the ratio of the time that their measured steps took in
all, and of each phase of them, with its 95 % interval. The same seed makes both the same work. It is their time in all,
not the median step, because what the sampler does rarely, reading the energy counter for instance, falls on few steps.

The two launches of a pair come one after the other, in an order that alternates from pair to pair. `--side-by-side`
runs them at the same time, each on its half of the devices, and they exchange the halves from pair to pair: what slows
down the whole host for minutes, as neighbours of a virtual machine do, then hits both alike. Either way the log ratio
of pair i in series j is d_ij = e + s_ij · b_j + noise, with e the effect, s_ij = ±1 by which of the two is first, or on
the first half, and b_j what that place is worth; least squares give e, and its interval is Student's t with as many
degrees of freedom as there are pairs less parameters.

A launch before the pairs fills caches and does not count. With `--file` the pairs are kept, and those there count too:
so a measurement goes on after an interruption. `pairs` prints the ratio that kept pairs give; each of several files is
a series on devices of its own.
"""

import json
import math
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import click
import numpy as np
import psutil
from scipy.stats import t

from placebench.compare.text import plural
from placebench.config import parse_settings
from placebench.devices import Device, device_to_dict, discover, parse_devices
from placebench.errors import LaunchError, PlacebenchError, UsageError
from placebench.launches import JOB, SAMPLER, Launcher
from placebench.ownership import own_run
from placebench.plan import BoundPlacement, Plan, PlannedLaunch, RunRequest, bind, make_plan
from placebench.processes import stop_process
from placebench.runfolder import Status, Trial, read_jsonl, write_json

_GRACE_S = 10.0
_START_S = 3.0

Timings: TypeAlias = dict[str, list[float]]
"""Seconds of the step and of each phase, a number a measured step."""


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
@click.option("--pairs", type=click.IntRange(3), default=10, show_default=True, help="Launches with, and without.")
@click.option("--placement", default="standard", show_default=True, help="Placement to launch.")
@click.option("--devices", help="cpu:N or gpu:N, as of placebench run.  [default: what is there]")
@click.option("--side-by-side", is_flag=True, help="Run both launches of a pair at once, each on half of the devices.")
@click.option("--hz", type=float, default=5.0, show_default=True, help="Samples a second.")
@click.option("--file", "kept", type=click.File("a"), help="Add the pairs to this file.")
@click.option("--set", "settings", multiple=True, help="Workload setting, as of placebench run; repeatable.")
def steps(
    pairs: int,
    placement: str,
    devices: str | None,
    side_by_side: bool,
    hz: float,
    kept: TextIO | None,
    settings: tuple[str, ...],
) -> None:
    """Print the ratio of step times with the sampler to those without."""
    with tempfile.TemporaryDirectory(prefix="pb-overhead-") as folder:
        try:
            places = _places(discover(parse_devices(devices) if devices else None), side_by_side)
            request = RunRequest(
                placements=placement,
                workload=parse_settings(settings),
                devices=f"{places[0][0].kind}:{len(places[0])}",
                rounds=pairs,
                out=Path(folder),
            )
            plan = make_plan(request)
            with kept or Path(folder, "pairs.jsonl").open("a") as file:
                _read_pairs(Path(file.name))
                for pair in _measured_pairs(plan, places, hz):
                    file.write(json.dumps(pair) + "\n")
                    file.flush()
            click.echo(f"{plan.placements[0].name} on {len(plan.devices)} {plan.devices[0].kind} devices, {hz:g} Hz:")
            _print_ratios([_read_pairs(Path(file.name))])
        except PlacebenchError as error:
            raise click.ClickException(str(error)) from None


@main.command("pairs")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def kept_pairs(files: tuple[Path, ...]) -> None:
    """Print the ratio that the pairs in FILES give, each file a series that `steps --file` kept."""
    try:
        _print_ratios([_read_pairs(file) for file in files])
    except PlacebenchError as error:
        raise click.ClickException(str(error)) from None


def effect(series: Sequence[Sequence[Mapping[str, Any]]], phase: str) -> tuple[float, float, float]:
    """The ratio of a phase's time with the sampler to that without, and the ends of its 95 % interval.

    Args:
        series: pairs as `--file` keeps them, by the file that keeps them.
        phase: of their timings.

    Raises:
        UsageError: the pairs are too few to tell the effect from the places and from noise.
    """
    terms, ratios = [], []
    for number, measured in enumerate(series):
        for pair in measured:
            places = [0.0] * len(series)
            places[number] = 1.0 if pair["first"] == "with" else -1.0
            terms.append([1.0, *places])
            ratios.append(math.log(sum(pair["with"][phase]) / sum(pair["without"][phase])))
    design, observed = np.array(terms), np.array(ratios)
    free = len(ratios) - len(series) - 1
    if free < 1 or np.linalg.matrix_rank(design) <= len(series):
        found = plural(len(ratios), "pair")
        raise UsageError(f"{found} of launches do not tell the sampler from the places: measure more, in both orders")
    fitted, *_ = np.linalg.lstsq(design, observed)
    variance = float(np.sum((observed - design @ fitted) ** 2)) / free
    half = float(t.ppf(0.975, free)) * math.sqrt(variance * np.linalg.inv(design.T @ design)[0, 0])
    return math.exp(fitted[0]), math.exp(fitted[0] - half), math.exp(fitted[0] + half)


def _print_ratios(series: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    pairs = [pair for measured in series for pair in measured]
    phases = {tuple(pair[side]) for pair in pairs for side in ("with", "without")}
    if len(phases) > 1:
        raise UsageError("the pairs have different phases: they are not of one work")
    click.echo(f"time with the sampler / without, {plural(len(pairs), 'pair')} of launches:")
    for phase in phases.pop() if phases else ("step",):
        ratio, low, high = effect(series, phase)
        click.echo(f"{phase:15} {ratio:.4f}, 95 % interval {low:.4f} to {high:.4f}")


def _read_pairs(file: Path) -> list[dict[str, Any]]:
    """The pairs that `--file` kept.

    Raises:
        UsageError: the file holds something else.
    """
    refused = UsageError(f"{file}: not pairs of launches as steps --file keeps them")
    try:
        pairs = list(read_jsonl(file))
        first = {pair["first"] for pair in pairs}
        totals = [sum(times) for pair in pairs for side in ("with", "without") for times in pair[side].values()]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise refused from None
    if first - {"with", "without"} or min(totals, default=1.0) <= 0:
        raise refused
    return pairs


def _places(devices: Sequence[Device], side_by_side: bool) -> list[Sequence[Device]]:
    """The devices of the launches that run at the same time.

    Raises:
        UsageError: there are no two halves.
    """
    if not side_by_side:
        return [devices]
    half, odd = divmod(len(devices), 2)
    if odd or not half:
        raise UsageError(f"--side-by-side: {len(devices)} devices have no two halves; give an even number by --devices")
    return [devices[:half], devices[half:]]


def _measured_pairs(plan: Plan, places: Sequence[Sequence[Device]], hz: float) -> Iterator[dict[str, Any]]:
    """The timings of each pair by `with` and `without`, and which of them was first, as soon as both are there."""
    bound = [bind(plan.placements[0].placement, devices) for devices in places]
    _launch_at_once(plan, 0, {f"uncounted-{number}": (place, None) for number, place in enumerate(bound)})
    for number in range(1, plan.rounds + 1):
        order = ("with", "without") if number % 2 else ("without", "with")
        place = dict(zip(order, bound * (2 // len(bound)), strict=True))
        launches = {side: (place[side], hz if side == "with" else None) for side in order}
        groups = [launches] if len(bound) == 2 else [{side: launches[side]} for side in order]
        pair: dict[str, Any] = {"first": order[0]}
        for group in groups:
            pair |= _launch_at_once(plan, number, group)
        for side in order:
            click.echo(f"pair {number:2d}  {side:7}  {statistics.fmean(pair[side]['step']):.4f} s a step")
        yield pair


def _launch_at_once(
    plan: Plan, number: int, launches: Mapping[str, tuple[BoundPlacement, float | None]]
) -> dict[str, Timings]:
    """Run launches at the same time, each on its devices and with its rate of the sampler.

    Raises:
        LaunchError: a job failed; the others have been ended.
    """
    ended = threading.Event()
    with ThreadPoolExecutor(len(launches)) as pool:
        running = {
            side: pool.submit(
                _launch, plan, PlannedLaunch(number, place), Trial(plan.folder.path / f"{number:02d}-{side}"), hz, ended
            )
            for side, (place, hz) in launches.items()
        }
        try:
            for launch in wait(running.values(), return_when=FIRST_EXCEPTION).done:
                launch.result()
            return {side: launch.result() for side, launch in running.items()}
        finally:
            ended.set()


def _launch(plan: Plan, launch: PlannedLaunch, trial: Trial, hz: float | None, ended: threading.Event) -> Timings:
    """Run one launch; `hz` None leaves the sampler out.

    Raises:
        LaunchError: the job failed, or had to end.
    """
    trial.path.mkdir(parents=True)
    with own_run(trial.path) as record:
        plan = replace(plan, sample_hz=hz or 0.0)
        launcher = Launcher(plan, record, JOB, lambda: "the measurement has ended" if ended.is_set() else None)
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
