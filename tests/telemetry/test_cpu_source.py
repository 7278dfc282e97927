"""How often the CPU source looks children up; what it samples is in `test_sampler`."""

import os
from itertools import pairwise

import pytest

from placebench.telemetry import cpu_source
from placebench.telemetry.cpu_source import CpuSource, JobProcess
from placebench.telemetry.spans import SpanClock

SAMPLE_S = 0.0625


class SetClock(SpanClock):
    """A clock that goes on when it is told to."""

    now = 100.0

    def mono(self) -> float:
        """What it was set to."""
        return self.now


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
