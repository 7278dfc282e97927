"""How far predictions are to be trusted: classes, intervals, ties."""

from math import exp, isnan, log
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placebench.predict.interval import (
    LEAST_CASES,
    ClassError,
    HeldOut,
    LaunchNoise,
    PredictionClass,
    class_error,
    held_out_cases,
    ratio_interval,
    run_ratio_interval,
    step_interval,
)

SAME = PredictionClass.SAME_RUN


def case(group: str, error: float, *, bound: bool = False) -> HeldOut:
    return HeldOut(SAME, group, "split", "m", "g", bound, exp(error), 1.0, 1, "s")


def test_errors_that_cases_have_in_common_leave_their_ratios_alone() -> None:
    cases = [case("a", 0.20), case("a", 0.21), case("b", -0.15), case("b", -0.16)]
    found = class_error(SAME, is_host_bound=False, cases=cases)
    assert found.n == 4
    assert found.spread == pytest.approx(0.182, rel=0.01)
    assert found.ratio_spread == pytest.approx(0.01)
    assert found.worst == pytest.approx(exp(0.21) - 1)
    near, far = ratio_interval(1.01, found), ratio_interval(1.05, found)
    assert near
    assert near.holds_one
    assert far
    assert not far.holds_one


def test_a_class_with_few_cases_has_no_interval_and_nothing_but_ties() -> None:
    found = class_error(SAME, is_host_bound=False, cases=[case("a", 0.1)])
    assert (found.n, step_interval(5.0, found, 0.05, 1), ratio_interval(2.0, found)) == (1, None, None)
    assert isnan(class_error(PredictionClass.MORE_NODES, is_host_bound=False, cases=[]).mean)


def test_cases_that_the_host_holds_up_are_told_apart_where_there_are_enough() -> None:
    bound = [case("a", 0.3, bound=True)] * LEAST_CASES
    cases = [*bound, *[case("a", 0.01)] * LEAST_CASES]
    assert class_error(SAME, is_host_bound=True, cases=cases).spread == pytest.approx(0.3)
    assert class_error(SAME, is_host_bound=False, cases=cases).spread == pytest.approx(0.01)
    assert class_error(SAME, is_host_bound=False, cases=bound).spread == pytest.approx(0.3)


@given(st.floats(0.001, 1e4), st.floats(0, 0.5), st.floats(0, 0.2), st.integers(1, 20))
def test_an_interval_lies_about_its_step_and_narrows_with_launches(
    seconds: float, spread: float, launch_sd: float, launches: int
) -> None:
    found = ClassError(SAME, 10, 0.1, 0.2, spread, spread)
    one, more = (step_interval(seconds, found, launch_sd, count) for count in (launches, launches + 1))
    assert one is not None
    assert more is not None
    assert one.low <= more.low <= seconds * (1 + 1e-9)
    assert seconds * (1 - 1e-9) <= more.high <= one.high
    assert log(one.high / seconds) == pytest.approx(log(seconds / one.low), abs=1e-9)


def test_no_interval_is_narrower_than_what_launches_showed() -> None:
    found = ClassError(SAME, 10, 0.1, 0.2, 0.05, 0.05)
    quiet, loud = LaunchNoise(0.001, 2, 2), LaunchNoise(0.2, 2, 2)
    assert step_interval(5.0, found, 0.001, 2, quiet) == step_interval(5.0, found, 0.001, 2)
    assert ratio_interval(1.3, found, quiet, quiet) == ratio_interval(1.3, found)
    # Student's t at 95 % with two degrees of freedom.
    reach = 2.919986 * 0.2
    step, ratio = step_interval(5.0, found, 0.2, 2, loud), ratio_interval(1.3, found, loud, loud)
    assert step
    assert log(step.high / 5.0) == pytest.approx(reach / 2**0.5, rel=1e-5)
    assert ratio
    assert log(ratio.high / 1.3) == pytest.approx(reach, rel=1e-5)
    assert ratio.holds_one


def test_launches_of_the_same_rounds_are_compared_in_pairs_where_that_tells_less() -> None:
    found = ClassError(SAME, 10, 0.1, 0.2, 0.01, 0.01)
    first = LaunchNoise(0.05, 2, 2, {1: 1.0, 2: 0.9})
    for steps in ({1: 1.0, 2: 1.1}, {2: 1.1}, {3: 1.0, 4: 1.1}):
        interval = ratio_interval(1.1, found, first, LaunchNoise(0.05, 2, 2, steps))
        assert interval
        # Student's t at 95 % with one degree of freedom for two pairs, with the two of the pooled deviation else.
        reach = 6.313752 * log(1.1 / 0.9) / 2 if 1 in steps else 2.919986 * 0.05
        assert log(interval.high / 1.1) == pytest.approx(reach, rel=1e-5)


def test_of_placements_that_were_both_run_launches_alone_tell_and_what_they_showed_is_held() -> None:
    first, other = (LaunchNoise(0.001, 4, 3, dict.fromkeys((1, 2, 3), seconds)) for seconds in (1.0, 1.1))
    quiet, off = run_ratio_interval(1.1, first, other), run_ratio_interval(1.2, first, other)
    # Student's t at 95 % with four degrees of freedom.
    assert log(quiet.high / 1.1) == pytest.approx(2.131847 * 0.001 * (2 / 3) ** 0.5, rel=1e-4)
    assert off.low == pytest.approx(1.1)


def test_cases_are_chosen_by_any_kind_of_truth_and_all_where_nothing_is_known() -> None:
    cases = [*[case("a", 0.3, bound=True)] * LEAST_CASES, *[case("a", 0.01)] * LEAST_CASES]
    truths: tuple[Any, ...] = (True, np.float64(1) > 0.5, None)
    found = [class_error(SAME, is_host_bound=truth, cases=cases) for truth in truths]
    assert [one.n for one in found] == [LEAST_CASES, LEAST_CASES, 2 * LEAST_CASES]
    assert [one.is_host_bound for one in found] == [*truths]


def test_the_kept_table_can_be_read_and_every_class_has_a_sane_error() -> None:
    cases = held_out_cases()
    assert {one.kind for one in cases} >= {SAME, PredictionClass.OTHER_MODEL, PredictionClass.OTHER_HOST}
    assert all(0.05 < one.predicted_s / one.measured_s < 20 for one in cases)
