import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layouts import SPLIT, STANDARD, Layout, step_spans
from placed import run_placement
from synthetic_run import SyntheticRun, edit_spans, record_walls

from placebench.compare.comparison import compare_run
from placebench.compare.measure.steps import measure_step, split_steps
from placebench.compare.read.launches import RunTimes, launch_times, run_times
from placebench.compare.read.run import KERNEL_TIMES
from placebench.compare.read.run_reading import load_run
from placebench.record.folder import Status
from placebench.spec.bound import RunPlacement


def as_frame(spans: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(spans).rename(columns={"start_mono": "start", "end_mono": "end"})


def as_placement(layout: Layout) -> RunPlacement:
    generates = layout.roles.get("rollout", next(iter(layout.pools)))
    return run_placement("any", layout.pools, {"rollout": generates, "actor": generates, **layout.roles}, "all")


def measure(layout: Layout, extra: list[dict[str, Any]] | None = None) -> dict[str, float]:
    (step,) = split_steps(as_frame([*step_spans(layout, 1, 100.0), *(extra or [])]))
    return measure_step(step, as_placement(layout))


def span(phase: str, device: str, start: float, end: float, step: int = 1) -> dict[str, Any]:
    return {"step": step, "phase": phase, "device": device, "start_mono": 100 + start, "end_mono": 100 + end}


def test_serial_phases_fill_the_step_and_hide_nothing() -> None:
    numbers = measure(STANDARD)
    assert numbers["step_time"] == pytest.approx(1.30)
    assert numbers["phase/gen"] == numbers["controller/gen"] == pytest.approx(0.50)
    assert numbers["unattributed"] == pytest.approx(0.03)
    assert numbers["hidden"] == pytest.approx(0.0, abs=1e-9)
    assert numbers["idle/cpu:0"] == numbers["idle"] == pytest.approx(0.04)
    assert numbers["wait/global_pool/adv"] == pytest.approx(0.01)
    assert numbers["wait/global_pool/no phase"] == pytest.approx(0.03)
    assert not [key for key in numbers if key.startswith("overlap/")]


def test_overlapping_phases_are_not_summed() -> None:
    numbers = measure(SPLIT)
    # Beside the actor pool: reward 0.01 and values 0.20 of the 0.40 of old_log_prob and ref, update_critic 0.40.
    assert numbers["hidden"] == pytest.approx(0.61)
    assert numbers["overlap/old_log_prob+reward"] == pytest.approx(0.01)
    assert numbers["overlap/old_log_prob+values"] == pytest.approx(0.19)
    assert numbers["overlap/ref+values"] == pytest.approx(0.01)
    assert numbers["overlap/update_actor+update_critic"] == pytest.approx(0.40)
    assert numbers["unattributed"] == pytest.approx(0.03)
    assert numbers["idle/cpu:0"] == pytest.approx(0.04)
    assert numbers["idle/cpu:1"] == pytest.approx(1.22)
    assert numbers["idle"] == pytest.approx(0.63)


def test_waiting_is_divided_by_what_ends_it() -> None:
    waits = {
        key.removeprefix("wait/critic_pool/"): value for key, value in measure(SPLIT).items() if "critic_pool" in key
    }
    assert waits == pytest.approx(
        {"gen": 0.90, "ref": 0.19, "adv": 0.01, "update_actor": 0.08, "update_weights": 0.01, "no phase": 0.03}
    )


def test_a_phase_lasts_as_long_as_its_slowest_device() -> None:
    layout = Layout({"pool": ("cpu:0", "cpu:1")}, dict.fromkeys(("rollout", "actor"), "pool"), {}, 1.0)
    numbers = measure(layout, [span("gen", "cpu:0", 0.0, 0.4), span("gen", "cpu:1", 0.0, 0.7)])
    assert numbers["phase/gen"] == pytest.approx(0.7)
    assert numbers["wait/pool/own pool"] == pytest.approx(0.15)  # cpu:0 waits 0.3 for cpu:1, mean of the two
    assert numbers["wait/pool/no phase"] == pytest.approx(0.3)
    assert [numbers[f"wait_slower_ranks/cpu:{rank}"] for rank in (0, 1)] == pytest.approx([0.3, 0.0])
    assert [numbers[f"wait_nothing_to_do/cpu:{rank}"] for rank in (0, 1)] == pytest.approx([0.3, 0.3])


def test_an_engine_that_waits_is_not_said_to_wait_for_other_engines() -> None:
    roles = dict.fromkeys(("actor", "ref", "critic", "reward"), "learners") | {"rollout": "engines"}
    layout = Layout({"learners": ("cpu:0",), "engines": ("cpu:1", "cpu:2")}, roles, {}, 1.0)
    spans = [
        span("update_actor", "cpu:0", 0.2, 1.0),
        span("gen", "cpu:1", 0.0, 0.9),
        span("gen", "cpu:2", 0.0, 0.3),
    ]
    waits = {key: value for key, value in measure(layout, spans).items() if key.startswith("wait/engines/")}
    assert waits == pytest.approx({"wait/engines/update_actor": (0.1 + 0.7) / 2})


def test_a_learner_is_not_said_to_wait_for_work_that_is_for_a_later_step() -> None:
    roles = dict.fromkeys(("actor", "ref", "critic", "reward"), "learners") | {"rollout": "engines"}
    layout = Layout({"learners": ("cpu:0",), "engines": ("cpu:1",)}, roles, {}, 1.0)
    spans = [
        span("gen", "cpu:1", 0.0, 0.2),
        span("ref", "cpu:0", 0.2, 0.5),
        span("gen", "cpu:1", 0.2, 0.9, step=2),
        span("update_actor", "cpu:0", 0.6, 1.0),
    ]
    waits = {key: value for key, value in measure(layout, spans).items() if key.startswith("wait/learners/")}
    assert waits == pytest.approx({"wait/learners/gen": 0.2, "wait/learners/no phase": 0.1})


def test_a_step_has_the_work_done_in_its_time_for_other_steps_too(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=1, steps=4, pace=lambda *_: 1.0).write(tmp_path / "run")

    def ahead(span: dict[str, Any]) -> None:
        # The critic's device generates for the step after the one in whose time it does.
        if span["phase"] == "update_critic":
            span |= {"phase": "gen", "step": span["step"] + 1}

    edit_spans(path, "split", ahead)
    comparison = compare_run(path)
    steps = comparison.sides[1].steps
    assert steps["overlap/gen+update_actor"].tolist() == pytest.approx([0.40, 0.40])


def test_a_rank_that_waits_for_its_pool_is_not_said_to_wait_for_another() -> None:
    """cpu:0 is done with `gen` at 0.4, cpu:1 of its pool at 0.7, and cpu:2 of another pool works all the time."""
    pools = {"pool": ("cpu:0", "cpu:1"), "critic_pool": ("cpu:2",)}
    layout = Layout(pools, {"rollout": "pool", "critic": "critic_pool"}, {}, 1.0)
    spans = [span("gen", "cpu:0", 0.0, 0.4), span("gen", "cpu:1", 0.0, 0.7), span("values", "cpu:2", 0.0, 0.9)]
    numbers = measure(layout, spans)
    assert numbers["wait/pool/own pool"] == pytest.approx(0.15)
    assert numbers["wait/pool/values"] == pytest.approx(0.2)
    assert numbers["wait/pool/no phase"] == pytest.approx(0.1)


def test_a_phase_in_pieces_counts_its_union() -> None:
    layout = Layout({"pool": ("cpu:0",)}, {"rollout": "pool"}, {}, 1.0)
    numbers = measure(layout, [span("gen", "cpu:0", *times) for times in ((0.0, 0.2), (0.1, 0.3), (0.5, 0.6))])
    assert numbers["phase/gen"] == pytest.approx(0.4)
    assert numbers["idle/cpu:0"] == pytest.approx(0.6)


def test_spans_outside_the_step_are_cut_off() -> None:
    layout = Layout({"pool": ("cpu:0",)}, {"rollout": "pool"}, {}, 1.0)
    numbers = measure(layout, [span("gen", "cpu:0", -0.5, 0.25), span("gen", "cpu:0", 0.9, 1.5)])
    assert numbers["phase/gen"] == pytest.approx(0.35)
    assert numbers["idle/cpu:0"] == pytest.approx(0.65)


TICKS = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted)
WORK = st.tuples(st.sampled_from(["gen", "ref", "values"]), st.sampled_from(["cpu:0", "cpu:1", "cpu:2"]), TICKS)


@given(st.lists(WORK, max_size=12))
def test_any_step_adds_up(work: list[tuple[str, str, list[int]]]) -> None:
    layout = Layout({"a": ("cpu:0", "cpu:1"), "b": ("cpu:2",)}, {}, {}, 2.0)
    numbers = measure(layout, [span(phase, device, start / 10, end / 10) for phase, device, (start, end) in work])
    busy = {
        device: len({tick for _, other, (start, end) in work if other == device for tick in range(start, end)}) / 10
        for device in ("cpu:0", "cpu:1", "cpu:2")
    }
    for device, seconds in busy.items():
        parts = [numbers[f"wait_{cause}/{device}"] for cause in ("nothing_to_do", "slower_ranks")]
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(numbers[f"idle/{device}"])
        assert numbers[f"idle/{device}"] == pytest.approx(2.0 - seconds)
    for pool, devices in layout.pools.items():
        waits = sum(value for key, value in numbers.items() if key.startswith(f"wait/{pool}/"))
        slower = [numbers[f"wait_slower_ranks/{device}"] for device in devices]
        assert numbers.get(f"wait/{pool}/own pool", 0.0) == pytest.approx(sum(slower) / len(devices))
        assert waits == pytest.approx(sum(numbers[f"idle/{device}"] for device in devices) / len(devices))
    assert -1e-9 <= numbers["hidden"] <= busy["cpu:2"] + 1e-9
    under_way = len({tick for _, _, (start, end) in work for tick in range(start, end)}) / 10
    is_known = any(start < 20 and end > 0 for *_, (start, end) in work)
    assert numbers["unattributed"] == pytest.approx(2.0 - under_way if is_known else math.nan, nan_ok=True)


def test_launches_count_with_the_median_after_the_warm_up(tmp_path: Path) -> None:
    comparison = compare_run(SyntheticRun(steps=7, pace=lambda round_, _: float(round_)).write(tmp_path / "run"))
    standard, split = comparison.sides
    assert standard.launch_values["step_time"].to_dict() == pytest.approx({1: 1.30, 2: 2.60, 3: 3.90})
    assert standard.value("step_time") == pytest.approx(1.30 * 6 ** (1 / 3))
    assert standard.launch_values["tokens_per_s"][2] == pytest.approx(1300 / 2.60)
    assert standard.launch_values["tokens_per_s_per_device"][2] == pytest.approx(650 / 2.60)
    ratio = split.ratios["step_time"]
    assert ratio is not None
    assert ratio.value == pytest.approx(1.83 / 1.30)
    assert sorted(standard.steps["step"].unique()) == [3, 4, 5, 6, 7]


def test_the_waits_of_a_device_add_up_over_uneven_steps(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=1, steps=7, pace=lambda *_: 1.0).write(tmp_path / "run")

    def early(span: dict[str, Any]) -> None:
        # In steps 4 and 6 of 3 to 7, cpu:1 is done with gen 0.25 s before cpu:0.
        if (span["phase"], span["device"], span["step"] % 2) == ("gen", "cpu:1", 0):
            span["end_mono"] -= 0.25

    edit_spans(path, "standard", early)
    standard = compare_run(path).first
    assert standard.value("wait_slower_ranks/cpu:1") == pytest.approx(0.1)
    assert standard.value("wait_nothing_to_do/cpu:1") == pytest.approx(0.04)
    assert standard.value("idle/cpu:1") == pytest.approx(0.14)


TRACED = {"phase": "gen", "device": "cpu:0", **dict.fromkeys(KERNEL_TIMES, 0.1)}


@pytest.mark.parametrize(("kernels", "trace_s"), [((), 0.0), ((TRACED,), 4.0)])
def test_the_time_of_a_launch_is_divided(tmp_path: Path, kernels: Sequence[Mapping[str, Any]], trace_s: float) -> None:
    synthetic = SyntheticRun(rounds=1, pace=lambda *_: 1.0, kernels=kernels)
    run = load_run(synthetic.write(tmp_path / "run"))
    times = launch_times(run.launches[0])
    expected = (3.0, (2 * 2 + 4) * 1.30, trace_s, 0.5)
    assert (times.startup_s, times.steps_s, times.trace_s, times.stop_s) == pytest.approx(expected)
    assert times.steps == 6


def test_the_wall_time_of_a_run_is_divided(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=2, pace=lambda *_: 1.0, kernels=[TRACED], statuses={(2, "split"): Status.OOM}).write(
        tmp_path / "run"
    )
    assert run_times(load_run(path)) is None  # as a version that did not record it has left it
    record_walls(path, 60.0)
    # Two steps of warm-up a launch, twice as long as the four measured ones; of 3 launches done, 2 were traced.
    steps = 2 * STANDARD.step_s + SPLIT.step_s
    expected = RunTimes(
        60.0, start_s=3 * 3.0, warmup_s=4 * steps, measured_s=4 * steps, trace_s=8.0, end_s=3 * 5.0 - 8.0
    )
    assert vars(run_times(load_run(path))) == pytest.approx(vars(expected))
