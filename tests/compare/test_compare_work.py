from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layouts import STANDARD
from synthetic_run import SyntheticRun

from placebench.compare.comparison import compare_run
from placebench.compare.explain.caveats import caveats
from placebench.compare.statistics.verdicts import Verdict
from placebench.compare.statistics.work import unequal_work


def launches(tokens: float, exponent: float, pace: float, seed: int) -> dict[int, pd.DataFrame]:
    """Three launches whose step times follow their tokens."""
    random = np.random.default_rng(seed)
    found = {}
    for number in (1, 2, 3):
        counts = tokens * np.exp(random.normal(0, 0.1, 12))
        seconds = pace * (counts / 1000) ** exponent * np.exp(random.normal(0, 0.005, 12))
        found[number] = pd.DataFrame({"step_time": seconds, "tokens": counts}, index=range(3, 15))
    return found


@pytest.mark.parametrize("exponent", [0.3, 0.7, 1.0])
def test_drift_of_lengths_is_taken_out_by_regression(exponent: float) -> None:
    found = unequal_work(launches(1000, exponent, 1.0, 0), launches(1200, exponent, 1.1, 1))
    assert found is not None
    assert found.fitted
    assert found.exponent == pytest.approx(exponent, abs=0.03)
    assert found.adjusted.value == pytest.approx(1.1, rel=0.01)
    assert found.tokens.value == pytest.approx(1.2, rel=0.05)


def test_tokens_that_do_not_vary_normalise_the_step_time() -> None:
    first, other = (
        {1: pd.DataFrame({"step_time": [seconds] * 12, "tokens": [tokens] * 12})}
        for seconds, tokens in ((1.0, 1000.0), (1.5, 1250.0))
    )
    found = unequal_work(first, other)
    assert found is not None
    assert (found.exponent, found.fitted) == (1.0, False)
    assert found.adjusted.value == pytest.approx(1.5 / 1.25)


def test_equal_or_unknown_work_needs_no_adjustment() -> None:
    steps = launches(1000, 1.0, 1.0, 0)
    slower = {number: frame.assign(step_time=2 * frame["step_time"]) for number, frame in steps.items()}
    assert unequal_work(steps, slower) is None
    assert unequal_work(steps, {number: frame.drop(columns="tokens") for number, frame in slower.items()}) is None
    assert unequal_work(steps, {number: frame.assign(tokens=np.nan) for number, frame in slower.items()}) is None
    assert unequal_work(steps, {}) is None


def test_steps_of_other_numbers_are_compared_by_their_means() -> None:
    first = launches(1000, 1.0, 1.0, 0)
    later = {number: frame.set_axis(range(103, 115)) for number, frame in first.items()}
    for paired in (True, False):
        assert unequal_work(first, later, paired=paired) is None
        longer = {number: frame.assign(tokens=1.2 * frame["tokens"]) for number, frame in later.items()}
        assert unequal_work(first, longer, paired=paired) is not None


@given(st.floats(1.02, 3.0), st.floats(0.2, 5.0))
def test_swapping_the_placements_inverts_the_adjusted_ratio(tokens: float, pace: float) -> None:
    first, other = launches(1000, 0.6, 1.0, 2), launches(1000 * tokens, 0.6, pace, 3)
    found, swapped = unequal_work(first, other), unequal_work(other, first)
    assert found is not None
    assert swapped is not None
    assert swapped.adjusted.value == pytest.approx(1 / found.adjusted.value)
    assert swapped.exponent == pytest.approx(found.exponent)


def test_a_verdict_on_unequal_work_needs_both_figures(tmp_path: Path) -> None:
    # Every step of the copy takes 10 % longer because it has 25 % more tokens: nothing says that it is slower.
    run = SyntheticRun(
        layouts={"standard": STANDARD, "copy": STANDARD},
        pace=lambda round_, name: (1.1 if name == "copy" else 1.0) * (1 + 1e-4 * round_),
        step_tokens=lambda round_, name, step: 1.25 if name == "copy" else 1.0,
    )
    comparison = compare_run(run.write(tmp_path / "run"))
    copy = comparison.sides[1]
    step = copy.ratios["step_time"]
    assert step is not None
    assert copy.work is not None
    assert (step.value, copy.work.adjusted.value) == pytest.approx((1.1, 0.88), rel=1e-3)
    assert copy.work.adjusted.verdict is Verdict.FASTER
    assert step.verdict is Verdict.UNDECIDED
    assert (
        "Unequal work: copy had 1,625 tokens a step, standard 1,300 (+25.0 %). Step time: 1.100 (±<0.0001) as"
        " measured, 0.880 (±<0.0001) per token; a verdict needs both to agree. --ignore-eos makes work equal."
    ) in caveats(comparison)
