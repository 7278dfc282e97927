"""What the live page costs: how fast it answers, its memory and CPU, and what open pages do to the run they show.

python benchmarks/serving.py long                # 8 hours on 64 GPUs, made up: answers, memory, CPU
python benchmarks/serving.py pages --pairs 5     # step time with five open pages over the time with none
"""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO

import click
import psutil

from placebench.compare.statistics.estimates import compare
from placebench.compare.statistics.verdicts import Better
from placebench.record.folder import RunFolder, Status
from placebench.record.writing import read_jsonl
from placebench.spec.text import factor

RUN = "20260301T100000Z-long"
STEP_S = 10.0
PHASES = ("gen", "reward", "old_log_prob", "ref", "values", "update_critic", "update_actor", "update_weights")
_ROLES = dict(zip(PHASES, ("rollout", "reward", "actor", "ref", "critic", "critic", "actor", "rollout"), strict=True))
ROLES = ("actor", "rollout", "ref", "critic", "reward")


@click.group(help="Measure what the live page costs.")
def main() -> None:
    """Let SIGTERM unwind like Ctrl-C does."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


@main.command()
@click.option("--hours", type=click.FloatRange(0, min_open=True), default=8.0, show_default=True, help="Of the launch.")
@click.option("--gpus", type=click.IntRange(1, 512), default=64, show_default=True, help="Devices.")
@click.option("--hz", type=float, default=5.0, show_default=True, help="Samples a second of each.")
@click.option("--seconds", type=float, default=30.0, show_default=True, help="Length of each part of the measurement.")
@click.option("--readers", type=click.IntRange(1), default=5, show_default=True, help="Open pages.")
def long(hours: float, gpus: int, hz: float, seconds: float, readers: int) -> None:
    """Follow a launch that has run for hours and goes on."""
    with tempfile.TemporaryDirectory(prefix="pb-serving-") as above, ExitStack() as behind:
        run = LongRun(Path(above) / RUN, gpus, hz)
        run.write(hours * 3600)
        click.echo(f"files               {sum(path.stat().st_size for path in run.trial.iterdir()) / 1e9:.2f} GB")
        link, served = behind.enter_context(_served(Path(above)))
        behind.enter_context(run.going_on())
        idle = _share(served, seconds)
        click.echo(f"at rest             {idle:.2%} of a core")
        click.echo(f"the page            {_answer_s(link, '/'):.3f} s")
        click.echo(f"first news          {_answer_s(link, f'/runs/{RUN}/events'):.3f} s")
        click.echo(f"/metrics            {_answer_s(link, '/metrics'):.3f} s")
        behind.enter_context(_open_pages(link, RUN, readers))
        catching_up = _share(served, seconds)
        followed = _share(served, seconds)
        answers = [_answer_s(link, path) for path in ("/", "/metrics", f"/runs/{RUN}/events") for _ in range(5)]
        click.echo(f"with {readers} pages        {catching_up:.1%} of a core, then {followed:.1%}")
        click.echo(f"answers meanwhile   {median(answers):.3f} s, the slowest {max(answers):.3f} s")
        click.echo(
            f"memory              {served.memory_info().rss / 2**20:.0f} MiB, at most {_most_memory(served):.0f} MiB"
        )


@main.command()
@click.option("--pairs", type=click.IntRange(2), default=5, show_default=True, help="Launches with pages and without.")
@click.option(
    "--steps", type=click.IntRange(4), default=10, show_default=True, help="Of a launch, two of them warm-up."
)
@click.option("--readers", type=click.IntRange(1), default=5, show_default=True, help="Open pages.")
@click.option("--devices", default="cpu:2", show_default=True, help="As of placebench run.")
def pages(pairs: int, steps: int, readers: int, devices: str) -> None:
    """Print the step time with open pages over that with none, from launches in turn of one run.

    A page is what its browser reads from the server. What a browser draws costs the machine that it runs on.
    """
    options = ["--placements", "standard", "--rounds", str(2 * pairs + 1), "--steps", str(steps), "--devices", devices]
    with tempfile.TemporaryDirectory(prefix="pb-serving-") as above, tempfile.TemporaryFile("w+") as said:
        command = [sys.executable, "-m", "placebench", "run", *options, "--serve", "--out", above]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
            assert running.stderr is not None
            link = running.stderr.readline().partition("live page: ")[2].strip()
            launches = {False: _Launches(), True: _Launches()}
            with _kept(running, running.stderr, said):
                for number in range(1, 2 * pairs + 2):  # the first fills caches and does not count
                    is_watched = number % 4 in (0, 3)  # in pairs, whose order alternates
                    launch = _follow(running, Path(above), number, link, readers if is_watched else 0)
                    if number > 1:
                        launches[is_watched].add(number // 2, launch)
                running.wait()
            if running.returncode:
                said.seek(0)
                raise click.ClickException(said.read())
    for name, found in (("without pages", launches[False]), (f"with {readers} pages", launches[True])):
        steps_s = ", ".join(f"{seconds:.3f}" for seconds in found.step_s.values())
        click.echo(f"{name:19} step {steps_s} s; the server {found.server_share:.1%} of a core")
    ratio = compare(launches[False].step_s, launches[True].step_s, Better.LESS)
    assert ratio is not None
    click.echo(f"with over without   {factor(ratio.value, ratio.low, ratio.high)}")


@contextmanager
def _kept(process: "subprocess.Popen[str]", says: IO[str], said: IO[str]) -> Iterator[None]:
    """Keep what a process says, which must not fill a pipe that nobody reads; end the process with the block."""
    reading = threading.Thread(target=lambda: said.writelines(says))
    reading.start()
    try:
        yield
    finally:
        process.terminate()  # does nothing to one that is over
        reading.join()


@dataclass(frozen=True)
class _Launch:
    """A launch that is over: its step time, its length, and the CPU time of the server meanwhile, seconds."""

    step_s: float
    seconds: float
    server_s: float


class _Launches:
    """Launches of one kind: their step times by pair, and the server's share of a core."""

    def __init__(self) -> None:
        self.step_s: dict[int, float] = {}
        self._seconds = self._server_s = 0.0

    def add(self, pair: int, launch: _Launch) -> None:
        self.step_s[pair] = launch.step_s
        self._seconds += launch.seconds
        self._server_s += launch.server_s

    @property
    def server_share(self) -> float:
        return self._server_s / self._seconds


class LongRun:
    """A made-up run of one launch, whose files are as long as those of hours.

    Args:
        path: its folder.
        gpus: its devices.
        hz: samples a second of each.
    """

    def __init__(self, path: Path, gpus: int, hz: float) -> None:
        self.path, self._hz = path, hz
        self.trial = RunFolder(path).trial(1, "standard").path
        self._devices = [f"GPU-{number:04d}" for number in range(gpus)]
        self._began = time.monotonic()

    def write(self, seconds: float) -> None:
        """Write all files up to now, which is so many seconds after the start."""
        self.trial.mkdir(parents=True)
        pools = {"global_pool": self._devices}
        placement = {"name": "standard", "pools": pools, "roles": dict.fromkeys(ROLES, "global_pool"), "overlap": "all"}
        device = {"kind": "gpu", "node": "bench", "name": "NVIDIA H200", "memory_bytes": 141 << 30, "cores": []}
        content = {
            "schema_version": 1, "name": "long", "status": "running", "command": ["placebench", "run"],
            "started": "2026-03-01T10:00:00Z", "ended": None, "rounds": 3, "steps": 100_000, "warmup_steps": 2,
            "workload": {}, "models": None, "placements": [placement], "host": {}, "versions": {}, "git": None,
            "devices": [device | {"id": name, "index": index} for index, name in enumerate(self._devices)],
            "order": [["standard"]] * 3, "launches": [], "wall": {},
        }  # fmt: skip
        (self.path / "run.json").write_text(json.dumps(content))
        (self.trial / "launch.json").write_text("{}")
        (self.trial / "status").write_text("running\n")
        self._began -= seconds
        with (self.trial / "devices.jsonl").open("w") as stream:
            for tick in range(int(seconds * self._hz)):
                stream.write(self._samples(self._began + tick / self._hz))
        with (self.trial / "steps.jsonl").open("w") as steps, (self.trial / "spans.jsonl").open("w") as spans:
            for step in range(1, int(seconds / STEP_S) + 1):
                steps.write(self._step(step))
                spans.write(self._spans(step))

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Let the launch go on in the body, as fast as the clock."""
        ends = threading.Event()

        def write() -> None:
            step = int((time.monotonic() - self._began) / STEP_S)
            with (
                (self.trial / "devices.jsonl").open("a") as samples,
                (self.trial / "steps.jsonl").open("a") as steps,
                (self.trial / "spans.jsonl").open("a") as spans,
            ):
                while not ends.wait(1 / self._hz):
                    now = time.monotonic()
                    samples.write(self._samples(now))
                    if now - self._began > (step + 1) * STEP_S:
                        step += 1
                        steps.write(self._step(step))
                        spans.write(self._spans(step))
                    for stream in (samples, steps, spans):
                        stream.flush()
                    self._write_progress(step + 1, now)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()

    def _samples(self, now: float) -> str:
        rest = (
            '"util": 0.93, "memory_bytes": 98765432100, "power_w": 612.345, "memory_reserved_bytes": 612345678,'
            ' "temperature_c": 61, "clock_sm_mhz": 1890, "clock_memory_mhz": 3201, "event_reasons": 4,'
            ' "compute_processes": 1, "earlier_processes": 0, "sm_activity": 0.731, "tensor_activity": 0.41,'
            ' "dram_activity": 0.52, "nvlink_rx_bytes_s": 1.2e10, "nvlink_tx_bytes_s": 1.2e10,'
            ' "pcie_rx_bytes_s": 1.0e8, "pcie_tx_bytes_s": 1.0e8}\n'
        )
        head = f'{{"kind": "sample", "wall": {now + 1.7e9:.6f}, "mono": {now:.6f}, "device": "'
        return "".join(f'{head}{device}", {rest}' for device in self._devices)

    def _step(self, step: int) -> str:
        more = {f"critic/metric_{number}/mean": 0.123456789 * number for number in range(50)}
        metrics = {"timing_s/step": STEP_S + step % 7 / 10, "perf/total_num_tokens": 9e5, **more}
        return json.dumps({"step": step, "wall": 0.0, "mono": 0.0, "metrics": metrics}) + "\n"

    def _spans(self, step: int) -> str:
        start = self._began + (step - 1) * STEP_S
        lines = []
        for number, phase in enumerate(PHASES):
            begin, end = start + number * STEP_S / len(PHASES), start + (number + 1) * STEP_S / len(PHASES)
            lines += [_span(step, phase, device, begin, end) for device in self._devices]
        return "".join([*lines, _span(step, "step", "controller", start, start + STEP_S)])

    def _write_progress(self, step: int, now: float) -> None:
        start = self._began + (step - 1) * STEP_S
        content = {"stage": "step", "step": step, "running": ["gen"], "phases": [{"phase": "gen", "start": start}]}
        scratch = self.trial / ".progress"
        scratch.write_text(json.dumps(content | {"wall": time.time(), "mono": now}))
        scratch.replace(self.trial / "progress.json")


def _span(step: int, phase: str, device: str, start: float, end: float) -> str:
    role = _ROLES.get(phase)
    times = {"start_wall": start, "end_wall": end, "start_mono": start, "end_mono": end}
    content = {"step": step, "phase": phase, "role": role, "pool": role and "global_pool", "device": device, **times}
    return json.dumps(content) + "\n"


@contextmanager
def _served(above: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A server of a folder's runs: its link and its process."""
    command = [sys.executable, "-m", "placebench", "serve", str(above)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        try:
            yield served.stdout.readline().strip(), psutil.Process(served.pid)
        finally:
            served.terminate()


@contextmanager
def _get(link: str, path: str) -> Iterator[http.client.HTTPResponse]:
    """An answer, whose connection is closed behind the body."""
    host, token = re.findall(r"//(.*)/\?token=([\w-]+)", link)[0]
    with closing(http.client.HTTPConnection(host)) as connection:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        with connection.sock as wire, connection.getresponse() as answer:
            try:
                yield answer
            finally:
                with suppress(OSError):
                    wire.shutdown(socket.SHUT_RDWR)  # also under one who reads


def _answer_s(link: str, path: str) -> float:
    """Seconds until all of an answer is there, or the first event of one without end."""
    began = time.monotonic()
    with _get(link, path) as answer:
        assert answer.status == http.client.OK, answer.status
        if path.endswith("events"):
            next(line for line in answer if line.startswith(b"data: "))
        else:
            answer.read()
    return time.monotonic() - began


@contextmanager
def _open_pages(link: str, run: str, readers: int) -> Iterator[None]:
    """Read the events of a run, as so many open pages do."""

    def read(answer: http.client.HTTPResponse) -> None:
        with suppress(OSError, ValueError, http.client.HTTPException, AttributeError):
            while answer.readline():
                pass

    with ExitStack() as behind:
        threads = []
        for _ in range(readers):
            answer = behind.enter_context(_get(link, f"/runs/{run}/events"))
            threads.append(threading.Thread(target=read, args=(answer,)))
            threads[-1].start()
        yield
    for thread in threads:
        thread.join()


def _share(process: psutil.Process, seconds: float) -> float:
    """The share of a core that a process uses."""
    before = process.cpu_times()
    time.sleep(seconds)
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / seconds


def _most_memory(process: psutil.Process) -> float:
    """The most memory that a process had, MiB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.findall(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)[0]) / 1024


def _follow(running: "subprocess.Popen[str]", above: Path, number: int, link: str, readers: int) -> _Launch:
    """Wait for a launch of a run and for its end, with so many open pages."""

    def wait(is_there: Callable[[], bool]) -> None:
        while not is_there() and running.poll() is None:
            time.sleep(0.05)

    wait(lambda: any(above.glob("*/run.json")))
    folder = RunFolder(next(above.iterdir()))
    trial = folder.trial(number, "standard")
    wait(lambda: not trial.stands_at(Status.PLANNED))
    began, cpu_s = time.monotonic(), _server_cpu_s(running.pid)
    with _open_pages(link, folder.path.name, readers):
        wait(lambda: not trial.stands_at(Status.RUNNING))
    seconds, server_s = time.monotonic() - began, _server_cpu_s(running.pid) - cpu_s
    times = [row["metrics"]["timing_s/step"] for row in list(read_jsonl(trial.steps))[2:]]
    return _Launch(float(median(times)), seconds, server_s)


def _server_cpu_s(run: int) -> float:
    """CPU seconds so far of the server that a run has started."""
    served = [one for one in psutil.Process(run).children(recursive=True) if "serve" in one.cmdline()]
    return sum(sum(one.cpu_times()[:2]) for one in served)


if __name__ == "__main__":
    sys.exit(main())
