"""Logs of two runs that wrote into one file in turn, and those of one run whose steps are in no order."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_reading import flags, write

from placebench.errors import UsageError
from placebench.logs.layout import fall_in_turn
from placebench.logs.run import read_run

Line = Callable[[int], str]
LINES: dict[str, Line] = {
    "verl": lambda step: f"step:{step} - timing_s/gen:1.5 - timing_s/step:2.5\n",
    "jsonl": lambda step: f'{{"step": {step}, "data": {{"timing_s/step": 2.5}}}}\n',
    "openrlhf": lambda step: f"Global step {step}: {{'timing/step_total': 2.5}}\n",
}


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize(
    ("steps", "line", "fall"),
    [
        ([step for pair in zip(range(1, 9), range(101, 109), strict=True) for step in pair], 3, (2, 101)),
        ([*range(1, 20), *(step for first in range(20, 24) for step in (first, first + 980))], 22, (21, 1000)),
        ([step for first in range(1, 6) for step in (first, first + 100, first + 200)], 4, (2, 201)),
        ([step for first in range(1, 30, 4) for step in (*range(first + 500, first + 504), *range(first, first + 4))],
         5, (1, 504)),
    ],
    ids=["one by one", "the second one later", "three", "several at a time"],
)  # fmt: skip
def test_steps_of_several_runs_in_turn_are_refused(
    tmp_path: Path, name: str, steps: list[int], line: int, fall: tuple[int, int]
) -> None:
    with pytest.raises(UsageError) as refused:
        read_run([write(tmp_path, "".join(map(LINES[name], steps)))])
    assert str(refused.value).endswith(
        f": line {line}: step {fall[0]} comes after step {fall[1]}, and so again and again: the file holds the steps"
        " of several runs in turn; give each run its own file"
    )


def test_lines_of_one_run_that_come_late_are_sorted(tmp_path: Path) -> None:
    run = read_run([write(tmp_path, "".join(LINES["verl"](step) for step in (1, 3, 2, 5, 4, 7, 6, 9, 8)))])
    assert flags(run) == {"out-of-order", "no-tokens"}
    assert run.metrics.index.tolist() == list(range(1, 10))


rising = st.lists(st.integers(1, 10), min_size=3, max_size=40).map(np.cumsum)


@given(lower=rising, upper=rising, data=st.data())
def test_two_rising_series_in_turn_are_told(lower: np.ndarray, upper: np.ndarray, data: st.DataObject) -> None:
    upper = upper + lower[-1]
    size = min(len(lower), len(upper))
    begin = data.draw(st.integers(0, len(lower) - size))
    found = [*lower[:begin]]
    for low, high in zip(lower[begin:], upper, strict=False):
        found += [high, low]
    steps = np.array(found)
    assert fall_in_turn(steps) == begin + 1


@given(steps=rising, data=st.data())
def test_one_run_is_told_from_two(steps: np.ndarray, data: st.DataObject) -> None:
    # Parts of a log joined in another order, and lines that come up to two lines late.
    cut = data.draw(st.integers(0, len(steps)))
    assert fall_in_turn(np.concatenate([steps[cut:], steps[:cut]])) is None
    late = [place + data.draw(st.sampled_from([0, 0, 1.5, 2.5])) for place in range(len(steps))]
    assert fall_in_turn(steps[np.argsort(late, kind="stable")]) is None
    assert fall_in_turn(steps[::-1]) is None


def test_steps_in_no_order_are_those_of_one_run() -> None:
    assert fall_in_turn(np.random.default_rng(0).permutation(1000)) is None
