import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import wait_for
from nvml_fake import FakeGpu, install

from placebench.errors import PlacebenchError
from placebench.host.devices import discover
from placebench.record.folder import Trial
from placebench.record.tail import JsonlTail
from placebench.record.writing import read_jsonl
from placebench.spec.devices import DeviceSpec, device_to_dict
from placebench.telemetry import sampler
from placebench.telemetry.samples import keys_of
from placebench.telemetry.spans import SpanClock

SAMPLER = [sys.executable, "-m", "placebench.telemetry.sampler"]
SPIN = "while True: pass"
SLEEP = "import time; print(flush=True); time.sleep(600)"
DEADLINE_S = 60
# Two readings of the kernel's user and system time, in ticks of 10 ms.
KERNEL_COUNT_S = 0.05
# What a loaded host may do between a reading of the sampler and its stamp.
STAMP_SHARE = 0.1

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    devices = [device_to_dict(device) for device in discover(DeviceSpec("cpu", 2))]
    (tmp_path / "launch.json").write_text(json.dumps({"schema_version": 1, "devices": devices}))
    return Trial(tmp_path)


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def start_one(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(command, **options))
        return started[-1]

    yield start_one
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def register(trial: Trial, pid: int, device: str) -> None:
    with trial.processes.open("a") as stream:
        stream.write(json.dumps({"pid": pid, "device": device, "pool": "global_pool", "rank": 0}) + "\n")


def samples(trial: Trial, device: str) -> list[dict[str, Any]]:
    return [line for line in read_jsonl(trial.device_samples) if line["kind"] == "sample" and line["device"] == device]


def cpu_seconds(pid: int) -> tuple[float, float, float]:
    """CPU time that the kernel counts, between the two moments in which it was read: before, after, seconds."""
    before = time.monotonic()
    times = psutil.Process(pid).cpu_times()
    return before, time.monotonic(), float(times.user + times.system)


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def busy_share(rows: list[dict[str, Any]]) -> float:
    """Mean load over the samples' time, however unevenly a loaded host lets them come."""
    known = [(row["mono"] - before["mono"], row["util"]) for before, row in itertools.pairwise(rows) if row["util"]]
    return float(sum(seconds * util for seconds, util in known) / (rows[-1]["mono"] - rows[0]["mono"]))


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_spinning_process_is_busy_a_sleeping_one_is_not_and_sigterm_ends_the_file(trial: Trial, start: Start) -> None:
    spinning, sleeping = start(python(SPIN)), start(python(SLEEP), stdout=subprocess.PIPE)
    assert sleeping.stdout is not None
    sleeping.stdout.readline()  # it sleeps from now on: what its start took is no load of its own
    os.sched_setaffinity(spinning.pid, {min(os.sched_getaffinity(0))})
    register(trial, spinning.pid, "cpu:0")
    register(trial, sleeping.pid, "cpu:1")
    register(trial, sleeping.pid, "controller")
    started = time.time()
    process = start([*SAMPLER, str(trial.path), "--hz", "10"])
    wait_for(lambda: samples(trial, "controller"))
    before_begin, after_begin, used_at_begin = cpu_seconds(spinning.pid)
    wait_for(lambda: len(samples(trial, "controller")) >= 15)
    before_end, after_end, used_at_end = cpu_seconds(spinning.pid)
    wait_for(lambda: samples(trial, "cpu:0")[-1]["mono"] > after_end)
    process.terminate()
    assert process.wait(DEADLINE_S) == 0

    content = list(read_jsonl(trial.device_samples))
    header, footer = content[0], content[-1]
    assert (header["kind"], header["schema_version"], header["hz"], header["source"]) == ("header", 1, 10, "cpu")
    assert header["gpm"] is False
    assert [device["id"] for device in header["devices"]] == ["cpu:0", "cpu:1"]
    assert any("pages shared" in note for note in header["notes"])

    spin, sleep = samples(trial, "cpu:0"), samples(trial, "cpu:1")
    assert list(spin[0]) == ["kind", "wall", "mono", "device", *keys_of("cpu")]
    assert spin[0]["util"] is None, "there is nothing to take a difference from yet"
    assert 0 < busy_share(spin) < 1.5
    # The kernel's count lies between that of the samples inside its window and that of all that reach into it, however
    # long a loaded host lets a tick wait and however little of a core it gives the process.
    used = used_at_end - used_at_begin
    inside, touching = 0.0, 0.0
    for before, row in itertools.pairwise(spin):
        busy_s = (row["mono"] - before["mono"]) * row["util"]
        inside += busy_s * (after_begin <= before["mono"] and row["mono"] <= before_end)
        touching += busy_s * (before_begin < row["mono"] and before["mono"] < after_end)
    assert 0 < inside <= used * (1 + STAMP_SHARE) + KERNEL_COUNT_S
    assert touching >= used * (1 - STAMP_SHARE) - KERNEL_COUNT_S
    assert busy_share(sleep) < 0.1
    assert busy_share(samples(trial, "controller")) < 0.1
    assert spin[-1]["memory_bytes"] > 2**20
    assert {row["power_w"] for row in spin} == {None}
    for row in spin:
        assert started <= row["wall"] <= time.time()
        assert row["wall"] - row["mono"] == pytest.approx(header["wall"] - header["mono"], abs=1e-4)

    assert (footer["kind"], footer["ticks"]) == ("footer", len(spin))
    assert footer["missed"] >= 0
    assert 0 < footer["achieved_hz"] < 11
    assert 0 < footer["cpu_s"] < DEADLINE_S


def test_load_is_shared_out_over_the_pinned_cores_and_counts_children(trial: Trial, start: Start) -> None:
    content = json.loads(trial.launch_file.read_text())
    content["devices"] = [content["devices"][0] | {"cores": [0, 1]}]
    trial.launch_file.write_text(json.dumps(content))
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {SPIN!r}]); time.sleep(60)"
    worker = start(python(parent))
    wait_for(psutil.Process(worker.pid).children)
    (child,) = psutil.Process(worker.pid).children()
    try:
        register(trial, worker.pid, "cpu:0")
        register(trial, worker.pid, "controller")
        process = start([*SAMPLER, str(trial.path), "--hz", "10"])
        wait_for(lambda: len(samples(trial, "cpu:0")) >= 10)
        process.terminate()
        process.wait(DEADLINE_S)
    finally:
        child.kill()
    rows = samples(trial, "cpu:0")
    assert rows[-1]["processes"] == 2
    assert 0 < busy_share(rows) < 0.75, "one core of two"
    assert samples(trial, "controller")[-1]["processes"] == 1, "the controller's children are the workers"


def test_a_process_may_come_late_and_leave(trial: Trial, start: Start) -> None:
    process = start([*SAMPLER, str(trial.path), "--hz", "10"])
    wait_for(lambda: samples(trial, "cpu:0"))
    worker = start(python(SLEEP), stdout=subprocess.DEVNULL)
    register(trial, worker.pid, "cpu:0")
    wait_for(lambda: samples(trial, "cpu:0")[-1]["util"] is not None)
    worker.kill()  # and not waited for: what is left of it has no memory and must not count
    wait_for(lambda: samples(trial, "cpu:0")[-1]["processes"] == 0)
    last = samples(trial, "cpu:0")[-1]
    assert (last["util"], last["memory_bytes"]) == (None, None)
    assert process.poll() is None, "the sampler goes on"


def test_the_sampler_ends_when_its_parent_is_killed(trial: Trial, start: Start) -> None:
    command = [*SAMPLER, str(trial.path)]
    code = f"import subprocess, time; print(subprocess.Popen({command!r}).pid, flush=True); time.sleep(60)"
    parent = start(python(code), stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    wait_for(lambda: samples(trial, "controller"))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_for(lambda: has_ended(pid))
    assert list(read_jsonl(trial.device_samples))[-1]["kind"] == "footer"


DEVICE = {"id": "cpu:0", "kind": "cpu", "index": 0, "node": "n", "name": "x", "memory_bytes": 1, "cores": [0]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read it: No such file"),
        ("{", "not the description of a launch"),
        ("[]", "not the description of a launch"),
        ('{"devices": []}', "at least one device"),
        ('{"devices": [1]}', "at least one device"),
        (
            json.dumps({"devices": [{key: value for key, value in DEVICE.items() if key != "cores"}]}),
            "'cores' is missing",
        ),
    ],
)
def test_an_unreadable_launch_file_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "launch.json").write_text(content)
    assert subprocess.run([*SAMPLER, str(tmp_path)], check=False, timeout=DEADLINE_S).returncode == 2
    error = capfd.readouterr().err
    assert re.fullmatch(r"sampler: .*launch\.json: .*\n", error)
    assert message in error


@pytest.mark.parametrize("hz", ["0", "-1", "nan", "1000"])
def test_a_rate_that_cannot_be_is_one_line(trial: Trial, capsys: pytest.CaptureFixture[str], hz: str) -> None:
    restore = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert sampler.main([str(trial.path), "--hz", hz]) == 2
    finally:
        for number, handler in restore.items():
            signal.signal(number, handler)
    assert re.fullmatch(r"sampler: --hz .*: must be above 0 and at most 50\n", capsys.readouterr().err)


def test_a_full_disk_is_one_line(trial: Trial, capfd: pytest.CaptureFixture[str]) -> None:
    trial.device_samples.symlink_to("/dev/full")
    assert subprocess.run([*SAMPLER, str(trial.path)], check=False, timeout=DEADLINE_S).returncode == 3
    assert re.fullmatch(r"sampler: .*devices\.jsonl: No space left on device\n", capfd.readouterr().err)


def test_gpus_of_a_launch_are_sampled_beside_the_controller(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [FakeGpu("GPU-a"), FakeGpu("GPU-b")]
    library = install(monkeypatch, gpus)
    trial.launch_file.write_text(json.dumps({"devices": [device_to_dict(device) for device in discover()]}))
    register(trial, os.getpid(), "controller")

    class StopAfterThreeTicks(threading.Event):
        """Ends the sampling, and loses a GPU on the way."""

        left = 3

        def is_set(self) -> bool:
            return self.left == 0

        def wait(self, timeout: float | None = None) -> bool:
            self.left -= 1
            gpus[0].errors["nvmlDeviceGetClockInfo"] = pynvml.NVML_ERROR_GPU_IS_LOST
            return super().wait(timeout)

    sampler.sample_launch(trial, 20, StopAfterThreeTicks(), os.getppid())
    header, *content, footer = read_jsonl(trial.device_samples)
    assert (header["source"], header["driver"], header["gpm"]) == ("nvml", library.driver, True)
    assert len([note for note in header["notes"] if "controller" in note]) == 2
    assert [(line["kind"], line["device"]) for line in content] == [
        ("sample", "GPU-a"), ("energy", "GPU-a"), ("sample", "GPU-b"), ("energy", "GPU-b"), ("sample", "controller"),
        ("device_error", "GPU-a"), ("sample", "GPU-b"), ("sample", "controller"),
        ("sample", "GPU-b"), ("sample", "controller"),
        ("energy", "GPU-b"),
    ]  # fmt: skip
    assert footer["ticks"] == 3
    assert library.samples_held == 0


def test_the_power_buffer_is_emptied_between_rare_ticks(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu("GPU-a", gpm_supported=False)
    install(monkeypatch, [gpu])
    trial.launch_file.write_text(json.dumps({"devices": [device_to_dict(device) for device in discover()]}))
    passed = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: passed[0])
    monkeypatch.setattr("time.time", lambda: 1.7e9 + passed[0])

    class StopAfterFourWaits(threading.Event):
        """Ends the sampling; power is read once in each wait, at 0.1 Hz."""

        waits: ClassVar[list[float | None]] = []

        def wait(self, timeout: float | None = None) -> bool:
            self.waits.append(timeout)
            passed[0] += 1.0
            gpu.power_buffer.append((round(time.time() * 1e6), 100_000 * len(self.waits)))
            if len(self.waits) == 4:
                self.set()
            return self.is_set()

    stop = StopAfterFourWaits()
    sampler.sample_launch(trial, 0.1, stop, os.getppid())
    content = list(read_jsonl(trial.device_samples))
    assert stop.waits == [1.0] * 4
    assert [line["power_w"] for line in content if line["kind"] == "power"] == [[100], [200], [300], [400]]
    assert len([line for line in content if line["kind"] == "sample" and line["device"] == "GPU-a"]) == 1


@settings(max_examples=50)
@given(st.lists(st.floats(0, 3), max_size=20), st.sampled_from([1.0, 5.0, 50.0]))
def test_ticks_stay_on_their_grid_whatever_a_tick_takes(durations: list[float], hz: float) -> None:
    now = 1000.0
    clock = SpanClock()
    clock.mono = lambda: now  # type: ignore[method-assign]
    ticker = sampler.Ticker(hz, clock)
    for duration in durations:
        ticker.begin()
        now += duration
        wait = ticker.wait_s()
        assert 0 <= wait <= 1 / hz + 1e-6
        now += wait
        assert (now - 1000) * hz == pytest.approx(round((now - 1000) * hz), abs=1e-6)
    assert ticker.ticks == len(durations)
    assert ticker.ticks + ticker.missed == pytest.approx((now - 1000) * hz, abs=1e-6)


def test_lines_of_a_growing_file_are_handed_out_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "processes.jsonl"
    file = JsonlTail(path)
    assert sampler.added_processes(file) == []
    path.write_text('{"pid": 1, "device": "cpu:0"}\n{"pid": 2, "dev')
    assert [entry.pid for entry in sampler.added_processes(file)] == [1]
    assert sampler.added_processes(file) == []
    with path.open("a") as stream:
        stream.write('ice": "cpu:1"}\n')
    assert [(entry.pid, entry.device) for entry in sampler.added_processes(file)] == [(2, "cpu:1")]
    for damaged in ('{"pid": null}', "[" * 100_000):
        with path.open("a") as stream:
            stream.write(f"{damaged}\n")
        with pytest.raises(PlacebenchError, match="is not a process"):
            sampler.added_processes(file)


def test_the_sampler_loads_nothing_heavy() -> None:
    code = (
        "import sys, placebench.telemetry.sampler as s\n"
        "print(sorted({'torch', 'ray', 'pandas', 'numpy', 'pydantic', 'click', 'rich'} & set(sys.modules)))"
    )
    assert subprocess.run(python(code), capture_output=True, text=True, check=True).stdout.strip() == "[]"
