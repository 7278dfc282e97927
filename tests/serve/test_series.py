"""Series stay small, keep their means, and tell each reader what it lacks."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placebench.record.folder import RunFolder
from placebench.record.writing import append_jsonl, append_to
from placebench.serve.launch_files import LaunchSteps
from placebench.serve.series import Seen, Series

VALUES = st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), max_size=200)


def extended(known: dict[str, list[Any]], told: dict[str, Any]) -> dict[str, list[Any]]:
    """What a page has after it was told more, as page.js does it."""
    start = told["from"]
    return {name: known.get(name, [])[:start] + more for name, more in told.items() if name != "from"}


@given(VALUES, st.integers(2, 20), st.integers(1, 7))
def test_a_reader_that_is_told_what_is_new_has_what_one_has_that_is_told_all(
    values: list[float | None], most: int, every: int
) -> None:
    series = Series(["load"], most)
    known: dict[str, list[Any]] = {"at": [], "load": []}
    seen: Seen | None = None
    for at, value in enumerate(values):
        series.append(at, {"load": value})
        if at % every == 0:
            told, seen = series.since(seen)
            known = extended(known, told) if told else known
        assert len(series) < most + most % 2
    told, seen = series.since(seen)
    known = extended(known, told) if told else known
    whole, now = series.since(None)
    assert whole is not None
    assert known == {name: column for name, column in whole.items() if name != "from"}
    assert series.since(seen) == (None, now)


def test_neighbors_become_their_mean_and_what_is_missing_counts_for_nothing() -> None:
    series = Series(["load"], 4)
    for at, value in enumerate([1.0, 3.0, None, 5.0, math.nan, None, 8.0, 8.0]):
        series.append(at, {"load": value})
    told, _ = series.since(None)
    assert told == {"from": 0, "at": [1.5, 5.5], "load": [3.5, 8.0]}


def test_the_median_of_a_launch_leaves_out_the_warm_up_that_was_found(tmp_path: Path) -> None:
    trial = RunFolder(tmp_path).trial(1, "standard")
    trial.path.mkdir(parents=True)
    seconds = [2.0] * 6 + [1.0 + 0.02 * step for step in range(6)]
    with append_to(trial.steps) as stream:
        for step, took in enumerate(seconds, start=1):
            append_jsonl(stream, {"step": step, "wall": 0.0, "mono": 0.0, "metrics": {"timing_s/step": took}})
    launch = LaunchSteps(trial, 1, "standard", 100, None)
    launch.read()
    launch.close(1)
    assert launch.warmup == 6
    assert launch.step_time == pytest.approx(1.05)
