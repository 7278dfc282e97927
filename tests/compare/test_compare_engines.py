"""Engines and trainer in the comparison: numbers worked by hand, and the sentence on who waits."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest

from placebench.compare.explain.waiting import slower_side
from placebench.compare.measure.engines import measure_engines, side_rates
from placebench.compare.read.run import Launch
from placebench.compare.side import ADDITIVE, MEANS, Side
from placebench.record.folder import Status, Trial
from placebench.record.launch_lines import LaunchLines, StepLine

COUNTED = {
    "timing_s/step": 2.0,
    "perf/total_num_tokens": 900,
    "training/trainer_wait_s": 0.5,
    "training/engine_wait_s": 0.25,
    "training/queue_mean": 4.0,
    "training/lag_mean": 1.0,
    "training/dropped_sequences": 8,
    "training/generated_tokens": 1200,
    "training/generating_s": 1.5,
}


def side(numbers: Mapping[str, float]) -> Side:
    """A side of a comparison with these numbers in its only launch."""
    return Side(name="apart", launch_values=pd.DataFrame([numbers]), steps=pd.DataFrame())


def launch(folder: Path, *steps: Mapping[str, float]) -> Launch:
    lines = tuple(StepLine(step=number, metrics=dict(metrics)) for number, metrics in enumerate(steps, start=1))
    return Launch(Trial(folder), 1, "apart", Status.DONE, 0, lines=LaunchLines(lines))


def test_rates_are_those_of_the_time_in_which_a_side_works(tmp_path: Path) -> None:
    # What was generated in the second step is finished in the third.
    other = COUNTED | {"training/generated_tokens": 0}
    measured = pd.DataFrame({"step_time": [2.0, 2.0]}, index=pd.Index([1, 2], name="step"))
    steps = measure_engines(measured, launch(tmp_path, COUNTED, other))
    assert all(str(key).startswith((*ADDITIVE, *MEANS)) for key in steps)
    numbers = {str(key): float(value) for key, value in steps.mean().items()}
    assert numbers["flow/dropped"] == 8
    assert side_rates(numbers) == {
        "trainer_tokens_per_s": 900 / (2.0 - 0.5),
        "engine_tokens_per_s": pytest.approx(600 / 1.5),
    }


def test_without_engines_of_their_own_there_are_no_such_numbers(tmp_path: Path) -> None:
    measured = pd.DataFrame({"step_time": [2.0]}, index=pd.Index([1], name="step"))
    plain = launch(tmp_path, {"timing_s/step": 2.0, "perf/total_num_tokens": 900})
    assert measure_engines(measured, plain).columns.empty
    assert side_rates({"step_time": 2.0}) == {}
    assert slower_side(side({"step_time": 2.0}), 0) is None


@pytest.mark.parametrize(
    ("learners", "engines", "staleness", "said"),
    [
        (0.5, 0.0, 1, "The engines are slower: another device helps most there"),
        (0.0, 0.5, 1, "The learners are slower: another device helps most there"),
        (0.01, 0.02, 1, "Neither waits long for the other"),
        (0.5, 1.0, 0, "At staleness 0 they take turns"),
    ],
)
def test_the_side_that_does_not_wait_is_the_slower_one(
    learners: float, engines: float, staleness: int, said: str
) -> None:
    numbers = {
        "step_time": 2.0,
        "queues/trainer_wait": learners,
        "queues/engine_wait": engines,
        "flow/lag": float(staleness),
    }
    sentence = slower_side(side(numbers), staleness)
    assert sentence is not None
    assert sentence.startswith("In apart, learners wait ")
    assert sentence.endswith(f"{said}.")
