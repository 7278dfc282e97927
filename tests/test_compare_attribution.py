import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_run import GIB, SyntheticRun

from placebench.compare.attribution import IDLE, attribute, attribute_samples, counted_energy, peak_memory
from placebench.compare.comparison import compare_run
from placebench.intervals import Intervals


def samples(period: float, loads: list[float | None], **columns: list[float | None]) -> pd.DataFrame:
    """Samples of one device every `period` seconds from 0; a load is that of the period before the sample."""
    content = {"mono": [period * tick for tick in range(len(loads))], "util": loads, **columns}
    return pd.DataFrame(content).astype(float)


def attributed(frame: pd.DataFrame, spans: Intervals, load_signal: str = "util") -> dict[str, float]:
    return attribute_samples(frame, spans, load_signal)


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


def test_power_and_clock_belong_to_the_moment_and_power_is_the_sensors_own_where_it_is_known() -> None:
    columns: dict[str, list[float | None]] = {"power_w": [300.0] * 4, "clock_sm_mhz": [9.0, 1.0, 3.0, 9.0]}
    found = attributed(samples(1.0, [None] * 4, **columns), times((0.5, 2.5)))
    assert (found["power_w"], found["clock_sm_mhz"]) == (300.0, 2.0)
    at_once: dict[str, list[float | None]] = {**columns, "power_instant_w": [9.0, 600.0, None, 9.0]}
    assert attributed(samples(1.0, [None] * 4, **at_once), times((0.5, 2.5)))["power_w"] == 600.0


def test_a_reading_of_gpm_covers_the_ticks_before_it_that_had_none() -> None:
    activity = {"sm_activity": [None, 0.2, None, 0.6, None]}
    found = attributed(samples(0.1, [1.0] * 5, **activity), times((0.1, 0.3)), "sm_activity")
    assert (found["sm_activity"], found["seconds"], found["samples"]) == pytest.approx((0.6, 0.2, 1))


def test_missing_is_nan_and_not_zero() -> None:
    found = attributed(samples(1.0, [None, None, None]), times((0.0, 2.0)))
    assert found["samples"] == 0
    assert found["seconds"] == 0
    assert all(
        math.isnan(found[key]) for key in ("util", "sm_activity", "power_w", "clock_sm_mhz", "peak_memory_bytes")
    )
    assert math.isnan(counted_energy(samples(1.0, [None, None, None]), times((0.0, 2.0))))


def test_no_samples_at_all() -> None:
    found = attributed(samples(1.0, []), times((0.0, 2.0)))
    assert (found["samples"], found["span_s"]) == pytest.approx((0, 2.0))
    assert math.isnan(found["util"])


def test_a_missing_sample_is_left_out_of_the_mean_and_the_seconds() -> None:
    found = attributed(samples(1.0, [None, 0.5, None, 1.0]), times((0.0, 3.0)))
    assert found["util"] == pytest.approx(0.75)
    assert (found["seconds"], found["samples"]) == pytest.approx((2.0, 2))


def test_energy_is_the_difference_of_the_counter() -> None:
    # 100 W in the first second, 300 W in the second; the counter is not read at every sample.
    frame = samples(0.5, [1.0] * 5, energy_j=[1000.0, None, 1100.0, None, 1400.0])
    assert counted_energy(frame, times((0.5, 1.5))) == pytest.approx(50 + 150)
    assert counted_energy(frame, times((0.0, 0.2), (1.0, 1.1))) == pytest.approx(20 + 30)


@pytest.mark.parametrize(
    ("counter", "span"),
    [([1000.0, 1100.0, 1200.0], (1.5, 2.5)), ([1000.0, 20.0, 40.0], (0.5, 1.5)), ([None, 5.0, None], (0.5, 1.5))],
    ids=["beyond the readings", "counter went back", "one reading"],
)
def test_energy_that_is_not_known_is_nan(counter: list[float | None], span: tuple[float, float]) -> None:
    assert math.isnan(counted_energy(samples(1.0, [1.0] * 3, energy_j=counter), times(span)))


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12), st.floats(0, 8), st.floats(0.01, 4))
def test_any_mean_load_lies_between_the_samples(loads: list[float], start: float, seconds: float) -> None:
    found = attributed(samples(0.7, list(loads)), times((start, start + seconds)))
    sampled = max(0.0, min(start + seconds, 0.7 * (len(loads) - 1)) - start)
    assert found["seconds"] == pytest.approx(sampled, abs=1e-9)
    if found["samples"]:
        assert min(loads) - 1e-9 <= found["util"] <= max(loads) + 1e-9


def test_a_launch_is_joined_by_device_and_clock(tmp_path: Path) -> None:
    comparison = compare_run(SyntheticRun(pace=lambda *_: 1.0, steps=42).write(tmp_path / "run"))
    standard, split = comparison.results
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


def test_gpm_is_the_load_where_a_gpu_has_it(tmp_path: Path) -> None:
    run = SyntheticRun(source="nvml", samples={"util": None, "sm_activity": 0.4, "power_w": 300.0})
    comparison = compare_run(run.write(tmp_path / "run"))
    assert comparison.load_signal == "sm_activity"
    assert comparison.first.value("load") == pytest.approx(0.4)
    phases = comparison.first.phase_devices
    assert phases["load"].tolist() == pytest.approx([0.4] * len(phases))
    assert phases["power_w"].dropna().tolist() == pytest.approx([300.0] * phases["power_w"].count())


def test_phases_share_the_energy_of_the_steps_by_their_power(tmp_path: Path) -> None:
    # 700 W in an update and 100 W else, by a counter that is read at every other sample.
    path = SyntheticRun(source="nvml", samples={"util": 1.0, "power_w": None}, steps=42).write(tmp_path / "run")
    for file in path.glob("trials/*-standard/devices.jsonl"):
        spans = [json.loads(line) for line in (file.parent / "spans.jsonl").read_text().splitlines()]
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for tick, line in enumerate(line for line in lines if line["kind"] == "sample"):
            busy = [
                (max(0.0, min(line["mono"], span["end_mono"]) - span["start_mono"]), span)
                for span in spans
                if span["device"] == line["device"] and span["phase"].startswith("update_")
            ]
            at_work = any(span["start_mono"] <= line["mono"] < span["end_mono"] for _, span in busy)
            line["power_w"], line["power_instant_w"] = 400.0, 700.0 if at_work else 100.0
            counter = 100.0 * line["mono"] + 600.0 * sum(seconds for seconds, _ in busy)
            line["energy_j"] = None if tick % 2 else counter
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    standard = compare_run(path).first
    frame = attribute(standard.launches[0], standard.placement, "util").set_index(["device", "phase"])
    for device in standard.placement.devices:
        joules, seconds = (frame.loc[device][column].astype(float).to_dict() for column in ("energy_j", "span_s"))
        whole = joules.pop("step")
        assert sum(joules.values()) == pytest.approx(whole)
        for phase, found in joules.items():
            if found > 0.01 * whole:
                watts = 700 if str(phase).startswith("update_") else 100
                assert found == pytest.approx(watts * seconds[phase], rel=0.05)
        assert joules[IDLE] > 0
