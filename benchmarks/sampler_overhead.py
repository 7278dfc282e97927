"""What the sampler costs: CPU time of its own, and whether it slows down the steps of the job beside it.

    python benchmarks/sampler_overhead.py share --processes 8 --seconds 60
    python benchmarks/sampler_overhead.py steps --pairs 10
    python benchmarks/sampler_overhead.py steps --pairs 12 --side-by-side --devices gpu:2 --file PAIRS
    python benchmarks/sampler_overhead.py switch --block 5 --set steps=120 --file PAIRS
    python benchmarks/sampler_overhead.py pairs PAIRS...

`share` samples processes that wait and prints the sampler's share of one core. `steps` starts the real job in pairs
of launches, one with the sampler and one without, and prints the ratio of the time that their measured steps took in
all, and of each phase of them, with its 95 % interval. The same seed makes both the same work. It is their time in all,
not the median step, because what the sampler does rarely, reading the energy counter for instance, falls on few steps.

The two launches of a pair come one after the other, in an order that alternates from pair to pair. `--side-by-side`
runs them at the same time, each on its half of the devices, and they exchange the halves from pair to pair: what slows
down the whole host for minutes, as neighbors of a virtual machine do, then hits both alike. Either way the log ratio
of pair i in series j is d_ij = e + s_ij · b_j + noise, with e the effect, s_ij = ±1 by which of the two is first, or on
the first half, and b_j what that place is worth; least squares give e, and its interval is Student's t with as many
degrees of freedom as there are pairs less parameters.

`switch` starts and ends the sampler while a launch runs, after every `--block` measured steps. Its pairs are blocks of
steps, and which comes first alternates from pair to pair too, and from launch to launch: what differs between launches,
or changes over minutes, is the same for both, and what the sampler costs the whole host counts. Steps during which the
sampler starts or ends do not, and as many are left out at an end as were at the start.

A launch before the pairs of `steps` fills caches and does not count. With `--file` the pairs are kept, and those there
count too: so a measurement goes on after an interruption. `pairs` prints the ratio that kept pairs give; each of
several files is a series on devices of its own.
"""

import json
import math
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TextIO

import click
import psutil
from sampler_pairs import Pair, Timings, keep_pair, next_order, print_ratios, read_pairs

from placebench.errors import LaunchError, PlacebenchError, UsageError
from placebench.host.devices import discover
from placebench.host.ownership import own_run
from placebench.host.processes import stop_process
from placebench.plan.plan import Plan, PlannedLaunch, make_plan
from placebench.plan.request import RunRequest
from placebench.record.folder import Status, Trial
from placebench.record.progress import LaunchState
from placebench.record.writing import read_jsonl, write_json
from placebench.run.launch import JOB, SAMPLER, Launcher
from placebench.spec.bound import RunPlacement, bind
from placebench.spec.config import parse_settings
from placebench.spec.devices import Device, device_to_dict, parse_devices
from placebench.spec.text import plural
from placebench.telemetry.samples import MAX_HZ

_GRACE_S = 10.0
_START_S = 3.0
_SWITCH_S = 120.0
_FEWEST_PAIRS = 3
_ENDED = "the measurement has ended"

_HZ = click.FloatRange(0, MAX_HZ, min_open=True)


@click.group(help="Measure what the sampler costs.")
def main() -> None:
    """Let SIGTERM unwind like Ctrl-C does, so that the processes of a launch are ended."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


@main.command()
@click.option("--processes", type=click.IntRange(1, 512), default=4, show_default=True, help="Processes to sample.")
@click.option("--seconds", type=click.FloatRange(5), default=60.0, show_default=True, help="Length of the measurement.")
@click.option("--hz", type=_HZ, default=5.0, show_default=True, help="Samples a second.")
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


def _job_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--set", "settings", multiple=True, help="Workload setting, as of placebench run; repeatable."),
        click.option("--file", "kept", type=click.File("a"), help="Add the pairs to this file."),
        click.option("--hz", type=_HZ, default=5.0, show_default=True, help="Samples a second."),
        click.option("--devices", help="cpu:N or gpu:N, as of placebench run.  [default: what is there]"),
        click.option("--placement", default="standard", show_default=True, help="Placement to launch."),
    ):
        command = option(command)
    return command


@main.command()
@click.option(
    "--pairs", type=click.IntRange(_FEWEST_PAIRS), default=10, show_default=True, help="Launches with, and without."
)
@click.option("--side-by-side", is_flag=True, help="Run both launches of a pair at once, each on half of the devices.")
@_job_options
def steps(pairs: int, side_by_side: bool, hz: float, **job: Any) -> None:
    """Print the ratio of step times with the sampler to those without."""
    with _measurement(pairs, side_by_side, hz, **job) as (plan, places, before, keep):
        for pair in _measured_pairs(plan, places, hz, next_order(before)):
            keep(pair)


@main.command()
@click.option("--launches", type=click.IntRange(1), default=1, show_default=True, help="Launches, one after the other.")
@click.option("--block", type=click.IntRange(1), default=5, show_default=True, help="Steps in a row that count.")
@_job_options
def switch(launches: int, block: int, hz: float, **job: Any) -> None:
    """Print the ratio of times of steps with the sampler to those of steps without, in the same launches."""
    with _measurement(launches, False, hz, **job) as (plan, (devices,), before, keep):
        placement, order = plan.placements[0].placement, next_order(before)
        if placement.staleness:
            raise UsageError(f"--placement {placement.name}: its steps overlap, so that none is of one side alone")
        pairs = max(1, math.ceil((_FEWEST_PAIRS - len(before)) / launches))
        # A pair's second block is followed by the first one of the next pair, without a change.
        needed = plan.workload.warmup_steps + pairs * (1 + 2 * block) + 1
        if plan.workload.steps < needed:
            raise UsageError(
                f"--set steps={plan.workload.steps}: {plural(pairs, 'pair')} of blocks need at least {needed}"
            )
        for number in range(1, launches + 1):
            trial = Trial(plan.folder.path / f"{number:02d}")
            with _Switch(trial, plan.workload.warmup_steps, block, hz, order, keep) as sampler:
                _launch(
                    replace(plan, sample_hz=0.0),
                    PlannedLaunch(number, bind(placement, devices), plan.steps),
                    trial,
                    on_state=sampler.follow,
                )
            order = order[::-1]


@main.command("pairs")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def kept_pairs(files: tuple[Path, ...]) -> None:
    """Print the ratio that the pairs in FILES give, each file a series that `--file` kept."""
    try:
        print_ratios([read_pairs(file) for file in files])
    except PlacebenchError as error:
        raise click.ClickException(str(error)) from None


class _Switch:
    """Starts and ends the sampler while a launch runs, and keeps a pair whenever two blocks of its steps are done.

    Args:
        trial: the launch's folder.
        skipped: steps before the first block.
        block: steps that count in each.
        hz: samples a second.
        order: of the first pair; the next has the other one.
        keep: takes the pairs.
    """

    def __init__(
        self, trial: Trial, skipped: int, block: int, hz: float, order: tuple[str, str], keep: Callable[[Pair], None]
    ) -> None:
        self._trial, self._skipped, self._block, self._hz, self._keep = trial, skipped, block, hz, keep
        self._own = Trial(trial.path / "sampler")
        self._sampler: subprocess.Popen[bytes] | None = None
        self._first = 0  # steps before the block; 0 while the sampler starts or ends
        self._last = skipped  # steps up to the end of the block before
        self._left_out = 1  # steps between two blocks: as many as the sampler took to start
        self._changing_since = 0.0
        self._pair: Pair = {"number": 1}
        self._order = order

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._sampler:
            stop_process(self._sampler, _GRACE_S)
            self._sampler.kill()
            self._sampler.wait()

    def follow(self, state: LaunchState) -> None:
        """Act on what the launch has done.

        Raises:
            LaunchError: the sampler ended by itself, or does not start or end.
        """
        done = len(state.step_times)
        side = self._order["first" in self._pair]
        if side == "with" and self._sampler and self._sampler.poll() is not None:
            raise LaunchError(f"the sampler ended by itself, with exit code {self._sampler.returncode}")
        if done < self._skipped:
            return
        if not self._first:
            self._change(done, side)
        elif done >= self._first + self._block:
            self._last = self._first + self._block
            self._pair = {"first": side} | self._pair | {side: _timings(self._trial, self._first, self._last)}
            if not {"with", "without"} <= self._pair.keys():
                self._first = 0
                return
            self._keep(self._pair)
            self._pair, self._order = {"number": self._pair["number"] + 1}, self._order[::-1]
            self._first = self._last  # the first block of the next pair is as the last one of this

    def _change(self, done: int, side: str) -> None:
        """Start or end the sampler, and let the next block begin once that is done."""
        self._changing_since = self._changing_since or time.monotonic()
        if self._is_switched(on=side == "with"):
            first = done + 1  # the step that runs now saw both
            if side == "with":
                self._left_out = first - self._last
            self._first, self._changing_since = max(first, self._last + self._left_out), 0.0
        elif time.monotonic() > self._changing_since + _SWITCH_S:
            raise LaunchError(f"the sampler did not {'start' if side == 'with' else 'end'} within {_SWITCH_S:.0f} s")

    def _is_switched(self, on: bool) -> bool:
        """Start or end the sampler; whether that is done."""
        if on:
            if self._sampler is None:
                # Its files are not the launch's: who follows those would stumble over one that begins again.
                shutil.rmtree(self._own.path, ignore_errors=True)
                self._own.path.mkdir()
                for name in (self._trial.launch_file.name, self._trial.processes.name):
                    (self._own.path / name).symlink_to(self._trial.path / name)
                self._sampler = subprocess.Popen([*SAMPLER, str(self._own.path), "--hz", str(self._hz)])
            return next(read_jsonl(self._own.device_samples), None) is not None
        if self._sampler:
            self._sampler.terminate()
            if self._sampler.poll() is None:
                return False
            self._sampler = None
        return True


@contextmanager
def _measurement(
    rounds: int,
    side_by_side: bool,
    hz: float,
    placement: str,
    devices: str | None,
    kept: TextIO | None,
    settings: tuple[str, ...],
) -> Iterator[tuple[Plan, list[Sequence[Device]], list[Pair], Callable[[Pair], None]]]:
    """What to launch, on which devices at the same time, the pairs there are, and what keeps one; prints the ratios."""
    with tempfile.TemporaryDirectory(prefix="pb-overhead-") as folder:
        try:
            places = _places(discover(parse_devices(devices) if devices else None), side_by_side)
            request = RunRequest(
                placements=placement,
                workload=parse_settings(settings),
                devices=f"{places[0][0].kind}:{len(places[0])}",
                rounds=rounds,
                out=Path(folder),
            )
            plan = make_plan(request)
            with kept or Path(folder, "pairs.jsonl").open("a") as file:
                yield plan, places, read_pairs(Path(file.name)), partial(keep_pair, file)
            click.echo(f"{plan.placements[0].name} on {len(plan.devices)} {plan.devices[0].kind} devices, {hz:g} Hz:")
            print_ratios([read_pairs(Path(file.name))])
        except PlacebenchError as error:
            raise click.ClickException(str(error)) from None


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


def _measured_pairs(
    plan: Plan, places: Sequence[Sequence[Device]], hz: float, order: tuple[str, str]
) -> Iterator[Pair]:
    """The timings of each pair by `with` and `without`, and which of them was first, as soon as both are there."""
    bound = [bind(plan.placements[0].placement, devices) for devices in places]
    _launch_at_once(plan, 0, {f"uncounted-{number}": (place, None) for number, place in enumerate(bound)})
    for number in range(1, plan.rounds + 1):
        place = dict(zip(order, bound * (2 // len(bound)), strict=True))
        launches = {side: (place[side], hz if side == "with" else None) for side in order}
        groups = [launches] if len(bound) == 2 else [{side: launches[side]} for side in order]
        pair: Pair = {"first": order[0]}
        for group in groups:
            pair |= _launch_at_once(plan, number, group)
        yield pair
        order = order[::-1]


def _launch_at_once(
    plan: Plan, number: int, launches: Mapping[str, tuple[RunPlacement, float | None]]
) -> dict[str, Timings]:
    """Run launches at the same time, each on its devices and with its rate of the sampler.

    Raises:
        LaunchError: a job failed; the others have been ended.
    """
    ended = threading.Event()

    def timings(side: str, place: RunPlacement, hz: float | None) -> Timings:
        trial = Trial(plan.folder.path / f"{number:02d}-{side}")
        launch = PlannedLaunch(number, place, plan.steps)
        _launch(replace(plan, sample_hz=hz or 0.0), launch, trial, lambda: _ENDED if ended.is_set() else None)
        return _timings(trial, plan.workload.warmup_steps, plan.workload.steps)

    with ThreadPoolExecutor(len(launches)) as pool:
        running = {side: pool.submit(timings, side, *launch) for side, launch in launches.items()}
        try:
            for launch in wait(running.values(), return_when=FIRST_EXCEPTION).done:
                launch.result()
            return {side: launch.result() for side, launch in running.items()}
        finally:
            ended.set()


def _launch(
    plan: Plan,
    launch: PlannedLaunch,
    trial: Trial,
    stop: Callable[[], str | None] = lambda: None,
    on_state: Callable[[LaunchState], None] = lambda state: None,
) -> None:
    """Run one launch.

    Raises:
        LaunchError: the job failed, or had to end.
    """
    trial.path.mkdir(parents=True)
    with own_run(trial.path) as record, Launcher(plan, record, JOB, stop) as launcher:
        result = launcher.run(launch, None, trial, on_state)
    if result.status is not Status.DONE:
        raise LaunchError(f"a launch ended as {result.status}: {result.reason}")


def _timings(trial: Trial, first: int, end: int) -> Timings:
    """Of the steps after the first `first`, to `end`."""
    steps = [row["metrics"] for row in read_jsonl(trial.steps)][first:end]
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
