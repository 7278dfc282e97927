"""How often the CPU source looks children up, and what it says of the host; what else it samples: `test_sampler`."""

import os
import time
from collections import namedtuple
from itertools import pairwise

import psutil
import pytest
from set_clock import SetClock

from placebench.telemetry import cpu_source
from placebench.telemetry.cpu_source import CpuSource, JobProcess
from placebench.telemetry.spans import CONTROLLER

SAMPLE_S = 0.0625
Times = namedtuple("Times", ["user", "nice", "system", "idle", "irq", "softirq", "steal"])


@pytest.mark.parametrize(
    ("takes_s", "every_s"),
    # Once a second up to 5 ms, which are 0.5 % of that; beyond, as often as makes it 0.5 %.
    [(0.0, 1.0), (0.004, 1.0), (0.01, 2.0), (0.1, 20.0)],
)
def test_a_look_for_children_takes_half_a_percent_of_a_core_at_most(
    monkeypatch: pytest.MonkeyPatch, takes_s: float, every_s: float
) -> None:
    clock, looks = SetClock(), list[float]()

    def children(_: object) -> list[int]:
        looks.append(clock.now)
        clock.now += takes_s
        return []

    monkeypatch.setattr(cpu_source._Process, "children", children)
    added = [JobProcess(os.getpid(), "cpu:0")]
    source = CpuSource({"cpu:0": 1}, lambda: [added.pop()] if added else [], clock)
    for sample in range(1000):
        clock.now = max(clock.now, 100.0 + sample * SAMPLE_S)
        list(source.read())
    between = [later - earlier for earlier, later in pairwise(looks)]
    assert between
    assert all(every_s - 1e-9 <= seconds <= every_s + SAMPLE_S + 1e-9 for seconds in between)


def test_cpu_time_that_other_guests_got_is_a_share_of_what_was_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter(
        [
            Times(user=10.0, nice=0.0, system=5.0, idle=100.0, irq=0.0, softirq=0.0, steal=1.0),
            Times(user=12.0, nice=0.5, system=5.5, idle=900.0, irq=0.0, softirq=0.0, steal=2.0),
            Times(user=12.0, nice=0.5, system=5.5, idle=999.0, irq=0.0, softirq=0.0, steal=2.0),
            Times(user=15.0, nice=0.5, system=5.5, idle=999.0, irq=0.0, softirq=0.0, steal=1.0),
        ]
    )
    monkeypatch.setattr(psutil, "cpu_times", lambda: next(readings))
    source = CpuSource({"cpu:0": 1}, lambda: [], SetClock())
    samples = [{line["device"]: line["stolen"] for line in source.read()} for _ in range(3)]
    assert samples == [{"cpu:0": None, CONTROLLER: share} for share in (0.25, None, 0.0)]


def test_what_this_host_counts_is_a_share() -> None:
    source = CpuSource({}, lambda: [], SetClock())
    deadline = time.monotonic() + 10.0
    while (share := next(source.read())["stolen"]) is None:
        assert time.monotonic() < deadline
    assert 0.0 <= share <= 1.0
