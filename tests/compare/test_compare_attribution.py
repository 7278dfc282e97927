import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_run import GIB, SyntheticRun, edit_spans

from placebench.compare.comparison import compare_run
from placebench.compare.measure.attribution import (
    IDLE,
    DeviceSamples,
    attribute,
    attribute_samples,
    gpm_lag,
    peak_memory,
)
from placebench.spec.intervals import Intervals, covered
from placebench.spec.phases import STEP


def samples(period: float, loads: list[float | None], **columns: list[float | None]) -> pd.DataFrame:
    """Samples of one device every `period` seconds from 0; a load is that of the period before the sample."""
    content = {"mono": [period * tick for tick in range(len(loads))], "util": loads, **columns}
    return pd.DataFrame(content).astype(float)


def attributed(frame: pd.DataFrame, spans: Intervals, load_signal: str = "util") -> dict[str, float]:
    return attribute_samples(DeviceSamples(frame), spans, load_signal)


def times(*pairs: tuple[float, float]) -> Intervals:
    return np.array(pairs, dtype=np.float64).reshape(-1, 2)


def test_a_sample_speaks_for_the_time_before_it() -> None:
    found = attributed(samples(1.0, [None, 0.2, 1.0, 0.4]), times((0.5, 1.5)))
    assert found["util"] == pytest.approx((0.5 * 0.2 + 0.5 * 1.0) / 1.0)
    assert (found["seconds"], found["samples"], found["span_s"]) == pytest.approx((1.0, 2, 1.0))


def test_a_phase_shorter_than_the_period_has_a_load_and_no_memory() -> None:
    found = attributed(samples(1.0, [None, 0.2, 0.6], memory_bytes=[1.0, 2.0, 3.0]), times((1.3, 1.4)))
    assert found["util"] == pytest.approx(0.6)
    assert found["seconds"] == pytest.approx(0.1)
    assert math.isnan(found["peak_memory_bytes"])


def test_memory_belongs_to_the_moment() -> None:
    found = attributed(samples(1.0, [None] * 4, memory_bytes=[9.0, 2.0, 3.0, 8.0]), times((0.5, 2.5)))
    assert found["peak_memory_bytes"] == 3.0


def test_clocks_belong_to_the_moment() -> None:
    found = attributed(samples(1.0, [None] * 4, clock_sm_mhz=[9.0, 1.0, 3.0, 9.0]), times((0.5, 2.5)))
    assert found["clock_sm_mhz"] == 2.0


def test_a_reading_of_gpm_covers_the_ticks_before_it_that_had_none() -> None:
    activity = {"sm_activity": [None, 0.2, None, 0.6, None]}
    found = attributed(samples(0.1, [1.0] * 5, **activity), times((0.1, 0.3)), "sm_activity")
    assert (found["sm_activity"], found["seconds"], found["samples"]) == pytest.approx((0.6, 0.2, 1))


def test_missing_is_nan_and_not_zero() -> None:
    found = attributed(samples(1.0, [None, None, None]), times((0.0, 2.0)))
    assert found["samples"] == 0
    assert found["seconds"] == 0
    assert all(math.isnan(found[key]) for key in ("util", "sm_activity", "clock_sm_mhz", "peak_memory_bytes"))


def test_no_samples_at_all() -> None:
    found = attributed(samples(1.0, []), times((0.0, 2.0)))
    assert (found["samples"], found["span_s"]) == pytest.approx((0, 2.0))
    assert math.isnan(found["util"])


def test_a_missing_sample_is_left_out_of_the_mean_and_the_seconds() -> None:
    found = attributed(samples(1.0, [None, 0.5, None, 1.0]), times((0.0, 3.0)))
    assert found["util"] == pytest.approx(0.75)
    assert (found["seconds"], found["samples"]) == pytest.approx((2.0, 2))


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12), st.floats(0, 8), st.floats(0.01, 4))
def test_any_mean_load_lies_between_the_samples(loads: list[float], start: float, seconds: float) -> None:
    found = attributed(samples(0.7, list(loads)), times((start, start + seconds)))
    sampled = max(0.0, min(start + seconds, 0.7 * (len(loads) - 1)) - start)
    assert found["seconds"] == pytest.approx(sampled, abs=1e-9)
    if found["samples"]:
        assert min(loads) - 1e-9 <= found["util"] <= max(loads) + 1e-9


def test_a_launch_is_joined_by_device_and_clock(tmp_path: Path) -> None:
    comparison = compare_run(SyntheticRun(pace=lambda *_: 1.0, steps=42).write(tmp_path / "run"))
    standard, split = comparison.placements
    launch = standard.launches[0]
    frame = attribute(launch, standard.placement, "util").set_index(["device", "phase"])
    assert frame.loc[("cpu:1", "gen"), "span_s"] == pytest.approx(40 * 0.5)
    assert frame.loc[("cpu:1", "step"), "util"] == pytest.approx(1.26 / 1.30, abs=0.002)
    assert frame.loc[("cpu:1", "idle"), "span_s"] == pytest.approx(40 * 0.04)
    assert peak_memory(launch, "cpu:1") == 0.75 * GIB
    # Beside work of 0.2 s steps a phase of seconds is nearly its own; an idle device shows its true, low load.
    loads = split.phase_devices.set_index(["device", "phase"])["load"]
    assert loads["cpu:0", "gen"] == pytest.approx(1.0, abs=0.03)
    assert loads["cpu:1", "idle"] < 0.2
    assert split.value("load/cpu:1") == pytest.approx(0.61 / 1.83, abs=0.005)
    assert split.value("load") == pytest.approx((1.79 + 0.61) / 1.83 / 2, abs=0.005)


def test_work_for_the_last_step_of_the_warm_up_counts_in_the_step_in_whose_time_it_is_done(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=1, pace=lambda *_: 1.0).write(tmp_path / "run")

    def outlast(span: dict[str, Any]) -> None:
        if span["phase"] == "update_weights" and span["step"] == 2 and span["device"] != "controller":
            span["end_mono"] += 0.048

    edit_spans(path, "split", outlast)
    split = compare_run(path).placements[1]
    frame = attribute(split.launches[0], split.placement, "util").set_index(["device", "phase"])["span_s"]
    # Each of 4 measured steps has 10 ms of its own; the step before ends 40 ms after its phase would have.
    assert frame["cpu:0", "update_weights"] == pytest.approx(4 * 0.01 + 0.008)
    assert frame["cpu:0"].drop("step").sum() == pytest.approx(frame["cpu:0", "step"])


def test_gpm_is_the_load_where_a_gpu_has_it(tmp_path: Path) -> None:
    run = SyntheticRun(source="nvml", samples={"util": None, "sm_activity": 0.4, "power_w": 300.0})
    comparison = compare_run(run.write(tmp_path / "run"))
    assert comparison.placements[0].load_signal == "sm_activity"
    assert comparison.first.value("load") == pytest.approx(0.4)
    phases = comparison.placements[0].phase_devices
    assert phases["load"].tolist() == pytest.approx([0.4] * len(phases))
    assert phases["power_w"].dropna().tolist() == pytest.approx([300.0] * phases["power_w"].count())


@pytest.mark.parametrize("source", ["the buffer", "the samples", "a buffer that ends early"])
def test_phases_share_the_energy_of_the_steps_by_their_power(tmp_path: Path, source: str) -> None:
    # 700 W in an update and 100 W else, by a counter that is read at the ends and every 30 s. Steps of 1.3 s.
    path = SyntheticRun(source="nvml", samples={"util": 1.0, "power_w": None}, steps=42).write(tmp_path / "run")
    period = 0.02 if source == "the buffer" else 0.2
    for file in path.glob("trials/*-standard/devices.jsonl"):
        _record_power(file, period)
        if source != "the buffer":
            _move_power_to_samples(file, keep=12.0 if source == "a buffer that ends early" else 0.0)
    standard = compare_run(path).placements[0]
    frame = attribute(standard.launches[0], standard.placement, "util").set_index(["device", "phase"])
    for device in standard.placement.devices:
        numbers = ("energy_j", "span_s", "power_w")
        joules, seconds, power = (frame.loc[device][column].astype(float).to_dict() for column in numbers)
        whole = joules.pop("step")
        busy = seconds["update_actor"] + seconds["update_critic"]
        assert whole == pytest.approx(600 * busy + 100 * seconds["step"], rel=0.002 if period < 0.1 else 0.02)
        assert sum(joules.values()) == pytest.approx(whole)
        for phase, found in joules.items():
            watts = 700 if str(phase) in ("update_actor", "update_critic") else 100
            # Readings tell phases apart that are several times as long as what lies between two of them.
            if seconds[phase] / 40 > 4 * period or phase == "gen":
                tolerance = 0.08 if period < 0.1 else 0.35
                assert found == pytest.approx(watts * seconds[phase], rel=tolerance)
                assert power[phase] == pytest.approx(watts, rel=tolerance)
        assert joules[IDLE] > 0


def _record_power(file: Path, period: float) -> None:
    """Write the lines that a GPU would give: readings of its power every `period` seconds, and its counter."""
    spans = [json.loads(line) for line in (file.parent / "spans.jsonl").read_text().splitlines()]
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    ticks = sorted({line["mono"] for line in lines if line["kind"] == "sample"})
    for device in sorted({line["device"] for line in lines if line["kind"] == "sample"}):
        updates = [
            (span["start_mono"], span["end_mono"])
            for span in spans
            if span["device"] == device and span["phase"].startswith("update_") and span["phase"] != "update_weights"
        ]
        joules = [
            100 * now + 600 * sum(max(0.0, min(now, end) - start) for start, end in updates)
            for now in (ticks[0], ticks[0] + 30, ticks[-1])
        ]
        for now, counter in zip((ticks[0], ticks[0] + 30, ticks[-1]), joules, strict=True):
            lines.append({"kind": "energy", "mono": now, "wall": now, "device": device, "energy_j": counter})
        readings = np.arange(ticks[0], ticks[-1], period)
        busy = [any(start <= now - period / 2 < end for start, end in updates) for now in readings]
        for first in range(0, len(readings), 50):
            now = float(readings[first : first + 50][-1])
            lines.append(
                {
                    "kind": "power",
                    "mono": now,
                    "wall": now,
                    "device": device,
                    "ago_s": (now - readings[first : first + 50]).tolist(),
                    "power_w": [700.0 if at_work else 100.0 for at_work in busy[first : first + 50]],
                }
            )
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _move_power_to_samples(file: Path, keep: float) -> None:
    """Leave only the first `keep` seconds of the buffer, and give each sample the reading that was nearest."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    readings = {
        (line["device"], round((line["mono"] - ago) / 0.2)): watts
        for line in lines
        if line["kind"] == "power"
        for ago, watts in zip(line["ago_s"], line["power_w"], strict=True)
    }
    start = min(line["mono"] for line in lines if line["kind"] == "sample")
    kept = [line for line in lines if line["kind"] != "power" or line["mono"] < start + keep]
    for line in kept:
        if line["kind"] == "sample":
            line["power_w"] = readings.get((line["device"], round(line["mono"] / 0.2)))
    file.write_text("".join(json.dumps(line) + "\n" for line in kept))


def late_readings(lag: float, levels: dict[str, float], spans: dict[str, Intervals], end: float) -> DeviceSamples:
    """Readings of GPM every 0.2 s, each the mean activity of 0.2 s that ended `lag` before it."""
    mono = np.arange(0.2, end, 0.2)
    windows = np.column_stack([mono - 0.2, mono]) - lag
    activity = sum(level * covered(windows, spans[phase]) / 0.2 for phase, level in levels.items())
    return DeviceSamples(pd.DataFrame({"mono": mono, "sm_activity": activity}))


def steps_of(phases: dict[str, float], steps: int) -> dict[str, Intervals]:
    """Times of phases of these lengths, one after the other, step after step."""
    edges = np.cumsum([0.0, *phases.values()])
    starts = np.arange(steps) * edges[-1]
    spans = {
        phase: np.column_stack([starts + edges[number], starts + edges[number + 1]])
        for number, phase in enumerate(phases)
    }
    return spans | {STEP: times((0.0, steps * edges[-1]))}


@given(lag=st.integers(0, 25))
def test_readings_that_come_late_count_for_the_phase_that_they_tell_of(lag: int) -> None:
    levels = {"gen": 0.4, "wake_up": 0.0, "old_log_prob": 0.9, "update_actor": 0.8}
    lengths = dict(zip(levels, (1.43, 0.17, 0.31, 1.02), strict=True))
    spans = steps_of(lengths, 8)
    readings = late_readings(lag / 100, levels, spans, 8 * sum(lengths.values()))
    found = gpm_lag(readings, spans)
    assert found == pytest.approx(lag / 100)
    wake_up = attribute_samples(readings, spans["wake_up"], "sm_activity", found)
    # Windows of 0.2 s reach over its ends, but no longer lie a tenth of a second beside it.
    assert wake_up["load"] < 0.4
    exact = late_readings(0.0, levels, spans, 8 * sum(lengths.values()))
    for phase in levels:
        on_time = attribute_samples(exact, spans[phase], "sm_activity")["load"]
        assert attribute_samples(readings, spans[phase], "sm_activity", found)["load"] == pytest.approx(
            on_time, abs=0.06
        )


def test_no_lag_is_found_where_nothing_tells_of_it() -> None:
    spans = steps_of({"gen": 1.43, "update_actor": 1.02}, 8)
    even = late_readings(0.1, {"gen": 0.5, "update_actor": 0.5}, spans, 19.6)
    assert gpm_lag(even, spans) == 0
    frame = even.frame
    for lacking in (frame.head(3), frame.assign(sm_activity=np.nan), frame.drop(columns="sm_activity")):
        assert gpm_lag(DeviceSamples(lacking), spans) == 0
