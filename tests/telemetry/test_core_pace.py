"""How fast the cores are that a job runs on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
from set_clock import SetClock

from placebench.telemetry.core_pace import CorePace


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is there until the test kills it."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def test_a_loop_five_times_a_second_on_the_cores_of_the_job_s_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = sorted(os.sched_getaffinity(0))
    asked = list[set[int]]()
    change = os.sched_setaffinity

    def noted(pid: int, mask: set[int]) -> None:
        asked.append(set(mask))
        change(pid, mask)

    monkeypatch.setattr(os, "sched_setaffinity", noted)
    at = iter((cores[-1], cores[0], cores[-1]))
    monkeypatch.setattr(psutil.Process, "cpu_num", lambda _: next(at))
    clock = SetClock()
    pace = CorePace(clock)
    assert pace.loop_s() is None  # no process
    pace.add(os.getpid())
    for now, is_due in ((100.1, False), (100.19, True), (100.3, False), (100.5, True), (103.1, True)):
        clock.now = now
        seconds = pace.loop_s()
        assert (seconds is not None) == is_due
        assert seconds is None or 0 < seconds < 0.1
    every = set(cores)
    assert asked == [{cores[-1]}, every, {cores[0]}, every, {cores[-1]}, every]
    assert os.sched_getaffinity(0) == every


def test_processes_take_turns_until_they_end(sleeper: subprocess.Popen[bytes]) -> None:
    clock = SetClock()
    pace = CorePace(clock)
    pace.add(sleeper.pid)
    assert pace.loop_s() is not None
    sleeper.send_signal(signal.SIGKILL)
    sleeper.wait()
    clock.now += 1.0
    assert pace.loop_s() is None
    pace.add(sleeper.pid)
    clock.now += 1.0
    assert pace.loop_s() is None


def test_a_core_that_the_sampler_may_not_use_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getaffinity(0)
    monkeypatch.setattr(psutil.Process, "cpu_num", lambda _: os.cpu_count() or 1)
    pace = CorePace(SetClock())
    pace.add(os.getpid())
    assert pace.loop_s() is None
    assert os.sched_getaffinity(0) == before


def test_waiting_for_a_core_is_no_slowness() -> None:
    """Beside two processes that never leave the core, a loop waits for most of the time."""
    (core, *_) = os.sched_getaffinity(0)
    busy = [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"]
    rivals = [subprocess.Popen(busy) for _ in range(2)]
    try:
        clock, loops, begin = SetClock(), list[float](), time.monotonic()
        pace = CorePace(clock)
        for rival in rivals:
            pace.add(rival.pid)
        while len(loops) < 20:
            clock.now += 1.0
            if seconds := pace.loop_s():
                loops.append(seconds)
            assert time.monotonic() - begin < 60
        assert sorted(loops)[10] < 3 * min(loops)
    finally:
        for rival in rivals:
            rival.kill()
            rival.wait()
