import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import run

import pytest

from placebench.telemetry.spans import CONTROLLER, SpanClock, SpanRecorder


def test_span_has_the_files_keys_and_one_offset_between_its_clocks() -> None:
    recorder = SpanRecorder(device="cpu:0", pool="global_pool")
    before = time.time()
    with recorder.span(step=3, phase="gen", role="rollout"):
        time.sleep(0.02)
    (span,) = recorder.drain()
    assert list(span) == [
        "step", "phase", "role", "pool", "device", "start_wall", "end_wall", "start_mono", "end_mono",
    ]  # fmt: skip
    assert (span["step"], span["phase"], span["role"]) == (3, "gen", "rollout")
    assert (span["pool"], span["device"]) == ("global_pool", "cpu:0")
    assert span["end_mono"] - span["start_mono"] >= 0.02
    assert span["end_wall"] - span["start_wall"] == pytest.approx(span["end_mono"] - span["start_mono"], abs=1e-6)
    assert before - 0.01 <= span["start_wall"] <= span["end_wall"] <= time.time() + 0.01
    assert json.loads(json.dumps(span)) == span


class Meter:
    """A device whose queued work takes the seconds in `queue`."""

    def __init__(self) -> None:
        self.queue = [0.03]
        self.peak = 7
        self.kept = 0

    def synchronize(self) -> None:
        while self.queue:
            time.sleep(self.queue.pop())

    def reset_peaks(self) -> None:
        self.peak = 0

    def peaks(self) -> tuple[int, int]:
        return self.peak - self.kept, 2 * self.peak - self.kept

    @contextmanager
    def left_out(self) -> Iterator[None]:
        yield
        self.kept = self.peak


def test_both_ends_are_read_after_the_device_has_finished() -> None:
    meter = Meter()
    recorder = SpanRecorder("cpu:0", meter=meter)
    entered = time.monotonic()
    with recorder.span(1, "update_actor"):
        assert not meter.queue, "work of the phase before must not count"
        meter.queue.append(0.02)
    (span,) = recorder.drain()
    assert span["start_mono"] >= entered + 0.03
    assert span["end_mono"] - span["start_mono"] >= 0.02


def test_memory_peaks_are_the_spans_own_and_absent_where_not_counted() -> None:
    meter = Meter()
    counting, plain = SpanRecorder("gpu", meter=meter), SpanRecorder("cpu:0")
    for recorder in (counting, plain):
        with recorder.span(1, "values"):
            meter.peak = max(meter.peak, 5)
    (span,), (other,) = counting.drain(), plain.drain()
    assert (span["memory_peak_bytes"], span["memory_reserved_bytes"]) == (5, 10)
    assert not {"memory_peak_bytes", "memory_reserved_bytes"} & set(other)


def test_what_an_engine_keeps_is_left_out_of_the_peaks() -> None:
    meter = Meter()
    counting, plain = SpanRecorder("gpu", meter=meter), SpanRecorder("cpu:0")
    for recorder in (counting, plain):
        with recorder.left_out():
            meter.peak = 3
        with recorder.span(1, "values"):
            meter.peak = 5
    assert [span["memory_peak_bytes"] for span in counting.drain()] == [2]
    assert len(plain.drain()) == 1


def test_drain_hands_each_span_over_once() -> None:
    recorder = SpanRecorder("cpu:1")
    for phase in ("values", "update_critic"):
        with recorder.span(1, phase):
            pass
    assert [span["phase"] for span in recorder.drain()] == ["values", "update_critic"]
    assert recorder.drain() == []


def test_a_body_that_raises_leaves_no_span() -> None:
    recorder = SpanRecorder("cpu:0")
    with pytest.raises(ZeroDivisionError), recorder.span(1, "gen"):
        _ = 1 / 0
    assert recorder.drain() == []


def test_controller_spans_may_overlap_and_name_the_phases_pool() -> None:
    recorder = SpanRecorder(CONTROLLER)
    critic, actor = recorder.now(), recorder.now()
    recorder.add(2, "update_critic", critic, recorder.now(), role="critic", pool="critic_pool")
    recorder.add(2, "update_actor", actor, recorder.now(), role="actor", pool="actor_pool")
    first, second = recorder.drain()
    assert (first["pool"], second["pool"]) == ("critic_pool", "actor_pool")
    assert first["start_mono"] <= second["start_mono"] <= first["end_mono"] <= second["end_mono"]


def test_setting_the_wall_clock_does_not_stretch_a_span(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SpanClock()
    recorder = SpanRecorder("cpu:0", clock=clock)
    start = recorder.now()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    recorder.add(1, "gen", start, start + 2.5)
    (span,) = recorder.drain()
    assert span["end_wall"] - span["start_wall"] == pytest.approx(2.5, abs=1e-6)


def test_recording_needs_no_heavy_package() -> None:
    code = (
        "import sys, placebench.telemetry.spans;"
        "print(sorted({'torch', 'ray', 'pandas', 'numpy', 'psutil', 'pynvml'} & set(sys.modules)))"
    )
    assert run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


class HandClock(SpanClock):
    """A clock that stands still until it is moved."""

    now = 100.0

    def mono(self) -> float:
        return self.now


def test_an_interruption_cuts_the_span_around_it_in_two() -> None:
    clock = HandClock()
    recorder = SpanRecorder("cpu:0", clock=clock)
    with recorder.span(2, "gen", "rollout"):
        clock.now += 1
        with recorder.interruption(1, "update_weights", "rollout"):
            clock.now += 2
        clock.now += 4
    first, between, second = recorder.drain()
    assert [(span["step"], span["phase"]) for span in (first, between, second)] == [
        (2, "gen"), (1, "update_weights"), (2, "gen"),
    ]  # fmt: skip
    times = [(span["start_mono"], span["end_mono"]) for span in (first, between, second)]
    assert times == [(100, 101), (101, 103), (103, 107)]
