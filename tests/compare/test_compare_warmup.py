from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from synthetic_run import SyntheticRun

from placebench.compare.comparison import compare_run
from placebench.compare.read.warmup import find_warmup, medians_of_heads, medians_of_tails
from placebench.report.summary import summarize
from placebench.report.tables import launch_grid
from placebench.report.terminal import print_summary


def noisy(steps: int, seed: int, slow: tuple[float, ...] = ()) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Step times that vary by 3 %, the first of them slower by the factors given."""
    seconds = np.exp(np.random.default_rng(seed).normal(0, 0.03, steps))
    seconds[: len(slow)] *= slow
    return seconds


def test_the_configured_steps_are_left_out_in_any_case() -> None:
    assert find_warmup(noisy(12, 0), 2) == 2
    assert find_warmup(noisy(3, 0), 2) == 2
    assert find_warmup(noisy(12, 0), 11) == 11


@pytest.mark.parametrize(("slow", "found"), [((1.7, 1.5, 1.4), 3), ((1.7, 1.5, 1.5, 1.3, 1.3), 5), ((3.0,), 1)])
def test_slow_first_steps_are_found(slow: tuple[float, ...], found: int) -> None:
    assert [find_warmup(noisy(20, seed, slow), 0) for seed in range(5)] == [found] * 5


def test_a_slow_step_in_the_middle_and_fast_first_steps_are_no_warmup() -> None:
    seconds = noisy(20, 0)
    seconds[4] *= 2
    assert find_warmup(seconds, 1) == 1
    assert find_warmup(noisy(20, 0, (0.5, 0.5, 0.5)), 1) == 1


def test_launches_without_a_change_keep_their_steps() -> None:
    cut = [find_warmup(noisy(20, seed), 2) > 2 for seed in range(400)]
    assert np.mean(cut) < 0.03


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=40), st.data())
def test_medians_of_all_heads_and_tails_are_those_of_each(values: list[float], data: st.DataObject) -> None:
    most = data.draw(st.integers(1, len(values) - 1))
    array = np.array(values)
    assert medians_of_heads(array).tolist() == [np.median(array[: cut + 1]) for cut in range(len(array))]
    assert medians_of_tails(array, most).tolist() == [np.median(array[cut + 1 :]) for cut in range(most)]


def test_a_warmup_is_found_among_many_steps() -> None:
    seconds = noisy(300_000, 0, (1.5,) * 100_000)
    rare = noisy(300_000, 1)
    rare[np.random.default_rng(2).integers(0, 150_000, 15_000)] *= 3
    assert find_warmup(seconds, 2) == 100_000
    assert find_warmup(rare, 2) == 2


@given(st.lists(st.floats(0, 1e6), max_size=40), st.integers(0, 50), st.sampled_from([0.001, 60.0]))
def test_at_most_half_is_left_out_and_units_do_not_matter(seconds: list[float], least: int, unit: float) -> None:
    values = np.array(seconds)
    found = find_warmup(values, least)
    assert least <= found <= max(least, len(seconds) // 2)
    if (values > 1e-3).all() and len(set(seconds)) > 1:
        assert find_warmup(values * unit, least) == found


def test_a_longer_warmup_is_left_out_of_its_launch_and_shown(tmp_path: Path) -> None:
    run = SyntheticRun(steps=12, rounds=2, step_pace=lambda round_, _, step: 1.5 if round_ == 2 and step <= 4 else 1.0)
    summary = summarize(compare_run(run.write(tmp_path / "run")))
    assert [launch.warmup_steps for launch in summary.launches] == [2, 2, 4, 4]
    assert len((tmp_path / "run/trials/02-split/steps.jsonl").read_text().splitlines()) == 12
    steps = compare_run(tmp_path / "run").first.steps
    assert steps.loc[steps["round"] == 2, "step"].tolist() == list(range(5, 13))
    output = StringIO()
    print_summary(summary, Console(file=output, width=200))
    assert "2 to 4 warm-up steps left out" in " ".join(output.getvalue().split())
    warmups = launch_grid(summary)
    assert [row[warmups.header.index("warm-up")] for row in warmups.rows] == ["2", "2", "4", "4"]


def test_validation_is_no_part_of_the_step(tmp_path: Path) -> None:
    plain = compare_run(SyntheticRun(rounds=1).write(tmp_path / "plain"))
    validating = compare_run(SyntheticRun(rounds=1, testing_s=0.8).write(tmp_path / "validating"))
    for before, now in zip(plain.placements, validating.placements, strict=True):
        assert now.steps.columns.tolist() == before.steps.columns.tolist()
        pd.testing.assert_frame_equal(now.steps, before.steps, rtol=1e-9)
        seconds = now.samples.set_index(["device", "phase"])["span_s"]
        assert seconds.to_dict() == pytest.approx(before.samples.set_index(["device", "phase"])["span_s"].to_dict())
