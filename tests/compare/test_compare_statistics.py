import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from placebench.compare.statistics.estimates import (
    Noise,
    compare,
    control_false_discoveries,
    detectable_effect,
    estimate,
    launches_needed,
)
from placebench.compare.statistics.verdicts import Better, Verdict

POSITIVE = st.floats(0.1, 100.0)
LAUNCHES = st.lists(POSITIVE, min_size=1, max_size=6)
MIRRORED = {
    Verdict.FASTER: Verdict.SLOWER,
    Verdict.SLOWER: Verdict.FASTER,
    Verdict.HIGHER: Verdict.LOWER,
    Verdict.LOWER: Verdict.HIGHER,
    Verdict.SAME: Verdict.SAME,
    Verdict.UNDECIDED: Verdict.UNDECIDED,
}


def rounds(values: list[float]) -> dict[int, float]:
    return dict(enumerate(values, start=1))


def test_ratio_worked_by_hand() -> None:
    # d = ln 1.1, ln 1.2, ln 1.3: mean 0.179999, sd 0.083551; t(0.975, 2) = 4.302653; half width 0.207553.
    found = compare(rounds([1.0, 1.0, 1.0]), rounds([1.1, 1.2, 1.3]), Better.LESS)
    assert found is not None
    assert found.value == pytest.approx(math.exp(0.179999), rel=1e-5)
    assert (found.low, found.high) == pytest.approx(
        (math.exp(0.179999 - 0.207553), math.exp(0.179999 + 0.207553)), 1e-4
    )
    assert (found.pairs, found.verdict) == (3, Verdict.UNDECIDED)


@pytest.mark.parametrize(
    ("others", "verdict"),
    [
        ([1.030, 1.031, 1.032], Verdict.SLOWER),
        ([0.970, 0.971, 0.972], Verdict.FASTER),
        ([1.000, 1.001, 1.002], Verdict.SAME),
        ([1.018, 1.020, 1.022], Verdict.UNDECIDED),
        ([0.900, 1.000, 1.100], Verdict.UNDECIDED),
    ],
)
def test_verdict_needs_the_whole_interval(others: list[float], verdict: Verdict) -> None:
    found = compare(rounds([1.0, 1.0, 1.0]), rounds(others), Better.LESS)
    assert found is not None
    assert found.verdict is verdict


def test_words_follow_what_is_better() -> None:
    verdicts = []
    for better in Better:
        found = compare(rounds([10.0, 10.1]), rounds([20.0, 20.1]), better)
        assert found is not None
        verdicts.append(found.verdict)
    assert verdicts == [Verdict.SLOWER, Verdict.FASTER, Verdict.HIGHER]


def test_one_launch_each_has_a_number_and_no_interval() -> None:
    found = compare({1: 1.0}, {1: 3.0}, Better.LESS)
    assert found is not None
    assert found.value == pytest.approx(3.0)
    assert (found.pairs, found.verdict) == (1, Verdict.UNDECIDED)
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_rounds_are_pairs_and_incomplete_ones_are_left_out() -> None:
    # Round 2 is twice as slow for both, round 3 has one side only: neither may show in the ratio.
    found = compare({1: 1.0, 2: 2.0, 3: 9.0}, {1: 1.5, 2: 3.0, 3: math.nan}, Better.LESS)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((1.5, 1.5, 1.5))
    assert found.pairs == 2


def test_no_common_round_gives_a_ratio_without_interval() -> None:
    found = compare({1: 2.0}, {2: 3.0}, Better.LESS)
    assert found is not None
    assert found.value == pytest.approx(1.5)
    assert (found.pairs, found.verdict) == (0, Verdict.UNDECIDED)


@pytest.mark.parametrize("other", [{}, {1: math.nan}, {1: 0.0}, {1: -1.0, 2: 1.0}])
def test_a_ratio_without_meaning_is_none(other: dict[int, float]) -> None:
    assert compare({1: 1.0, 2: 1.0}, other, Better.LESS) is None


def test_equal_launches_that_are_no_pairs_are_the_same() -> None:
    found = compare({1: 2.0, 2: 2.0}, {3: 2.0, 4: 2.0}, Better.LESS, paired=False)
    assert found is not None
    assert (found.low, found.high, found.pairs, found.verdict) == (1.0, 1.0, 0, Verdict.SAME)


@given(LAUNCHES, LAUNCHES, st.sampled_from(Better))
def test_swapping_the_placements_mirrors_everything(first: list[float], other: list[float], better: Better) -> None:
    found = compare(rounds(first), rounds(other), better)
    swapped = compare(rounds(other), rounds(first), better)
    assert found is not None
    assert swapped is not None
    assert swapped.value == pytest.approx(1 / found.value)
    assert (swapped.low, swapped.high) == pytest.approx((1 / found.high, 1 / found.low), nan_ok=True)
    assert swapped.verdict is MIRRORED[found.verdict]


@given(LAUNCHES, LAUNCHES, st.sampled_from([1e-3, 1e3, 60.0]))
def test_units_do_not_matter(first: list[float], other: list[float], unit: float) -> None:
    found = compare(rounds(first), rounds(other), Better.LESS)
    scaled = compare(rounds([unit * value for value in first]), rounds([unit * value for value in other]), Better.LESS)
    assert found is not None
    assert scaled is not None
    assert (scaled.value, scaled.low, scaled.high) == pytest.approx((found.value, found.low, found.high), nan_ok=True)


def test_estimate_is_geometric_above_zero_and_arithmetic_else() -> None:
    assert estimate([1.0, 4.0]).value == pytest.approx(2.0)
    assert estimate([0.0, 4.0]).value == pytest.approx(2.0)
    alone = estimate([3.0, math.nan])
    assert (alone.value, alone.n) == pytest.approx((3.0, 1))
    assert math.isnan(alone.low)
    missing = estimate([])
    assert missing.n == 0
    assert math.isnan(missing.value)


def launches(random: np.random.Generator, n: int, rounds_: NDArray[np.float64], ratio: float) -> dict[int, float]:
    """Medians of the steps of n launches: round and launch effects, AR(1) steps with outliers."""
    effects = np.exp(rounds_ + random.normal(0, 0.02, n))
    noise = np.zeros((n, 8))
    noise[:, 0] = random.normal(0, 0.05, n)
    for step in range(1, 8):
        noise[:, step] = 0.6 * noise[:, step - 1] + random.normal(0, 0.04, n)
    noise += 0.5 * (random.random((n, 8)) < 0.03)
    return rounds((ratio * effects * np.median(np.exp(noise), axis=1)).tolist())


@pytest.mark.parametrize("n", [2, 3, 5])
def test_intervals_cover_the_truth_as_often_as_they_say(n: int) -> None:
    random = np.random.default_rng(0)
    trials, inside = 2000, 0
    for _ in range(trials):
        shared = random.normal(0, 0.05, n)
        found = compare(launches(random, n, shared, 1.0), launches(random, n, shared, 1.1), Better.LESS)
        assert found is not None
        inside += found.low <= 1.1 <= found.high
    assert 0.93 <= inside / trials <= 0.97


def test_equal_placements_are_rarely_told_apart() -> None:
    random = np.random.default_rng(1)
    wrong = 0
    for _ in range(2000):
        shared = random.normal(0, 0.05, 3)
        found = compare(launches(random, 3, shared, 1.0), launches(random, 3, shared, 1.0), Better.LESS)
        assert found is not None
        wrong += found.verdict in (Verdict.FASTER, Verdict.SLOWER)
    assert wrong / 2000 <= 0.05


def steps(values: list[float]) -> "pd.Series[float]":
    return pd.Series(values, index=range(3, 3 + len(values)))


def test_steps_are_paired_step_by_step() -> None:
    # The medians differ by 1.5; every step of the other launch takes 1.1 times as long as the same step of the first.
    first, other = steps([1.0, 2.0, 3.0]), steps([1.1, 2.2, 3.3]).iloc[1:]
    found = compare({1: first, 2: first}, {1: other, 2: other}, Better.LESS)
    assert found is not None
    assert found.value == pytest.approx(1.1)
    assert found.pairs == 2


def test_an_outlying_step_does_not_move_a_pair() -> None:
    found = compare({1: steps([1.0] * 5)}, {1: steps([1.2, 1.2, 9.0, 1.2, 1.2])}, Better.LESS)
    assert found is not None
    assert found.value == pytest.approx(1.2)


def test_launches_without_steps_in_common_are_compared_by_their_medians() -> None:
    found = compare({1: steps([1.0, 2.0, 3.0])}, {1: steps([1.0, 1.0, 1.0, 4.0, 4.0, 4.0]).iloc[3:]}, Better.LESS)
    assert found is not None
    assert found.value == pytest.approx(2.0)


@given(st.lists(POSITIVE, min_size=2, max_size=7), st.lists(POSITIVE, min_size=2, max_size=7))
def test_intervals_and_p_values_are_scipys(first: list[float], other: list[float]) -> None:
    logs, others = np.log(first), np.log(other)
    shared = min(len(first), len(other))
    differences = others[:shared] - logs[:shared]
    assume(np.ptp(differences) > 1e-6 and np.ptp(logs) > 1e-6 and np.ptp(others) > 1e-6)
    bound = math.log1p(0.02)
    for paired in (True, False):
        found = compare(rounds(first), rounds(other), Better.LESS, paired=paired)
        assert found is not None
        if paired:
            interval = stats.ttest_1samp(differences, 0).confidence_interval()
            tests = [stats.ttest_1samp(differences, sign * bound) for sign in (-1, 1)]
        else:
            interval = stats.ttest_ind(others, logs, equal_var=False).confidence_interval()
            tests = [stats.ttest_ind(others, logs + sign * bound, equal_var=False) for sign in (-1, 1)]
        assert (math.log(found.low), math.log(found.high)) == pytest.approx(tuple(interval), rel=1e-6, abs=1e-9)
        assert found.p_value == pytest.approx(max(test.pvalue for test in tests), rel=1e-6, abs=1e-9)
        decided = found.verdict is not Verdict.UNDECIDED
        assert decided == (found.p_value < 0.05)


def test_one_launch_on_one_side_is_never_a_verdict() -> None:
    found = compare({1: 1.0}, {1: 5.0, 2: 5.0, 3: 5.0}, Better.LESS)
    assert found is not None
    assert found.value == pytest.approx(5.0)
    assert (found.verdict, found.launches) == (Verdict.UNDECIDED, (1, 3))
    assert math.isnan(found.low)


def test_undecided_says_how_many_launches_would_decide() -> None:
    # sd(d) = 0.02, effect 0.05, bound ln 1.02: (t(0.975, n-1) + t(0.8, n-1)) * 0.02 / sqrt(n) <= 0.0302 from n = 6 on.
    pairs = np.exp([0.03, 0.05, 0.07])
    found = compare(rounds([1.0] * 3), rounds(pairs.tolist()), Better.LESS)
    assert found is not None
    assert (found.verdict, found.needed) == (Verdict.UNDECIDED, 6)
    quiet = compare(rounds([1.0] * 3), rounds(pairs.tolist()), Better.LESS, noise=Noise(0.005, 20))
    assert quiet is not None
    assert (quiet.verdict, quiet.needed) == (Verdict.UNDECIDED, 4)
    alone = compare({1: 1.0}, {1: 1.05}, Better.LESS, noise=Noise(0.02, 4))
    assert alone is not None
    assert (alone.verdict, alone.needed) == (Verdict.UNDECIDED, 6)
    never = compare(rounds([1.0] * 3), rounds([0.5, 1.0, 2.1]), Better.LESS)
    assert never is not None
    assert (never.verdict, never.needed) == (Verdict.UNDECIDED, None)


@given(st.floats(0.03, 0.3), st.floats(0.001, 0.2))
def test_the_launches_needed_find_a_detectable_effect(effect: float, sd: float) -> None:
    needed = launches_needed(math.log1p(effect), sd, math.log1p(0.02))
    if needed is None:
        assert detectable_effect(sd, 1000) > effect
        return
    assert detectable_effect(sd, needed) <= effect * (1 + 1e-9)
    assert needed == 2 or detectable_effect(sd, needed - 1) > effect


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=40))
def test_p_values_of_a_family_are_corrected_as_scipy_does(p_values: list[float]) -> None:
    ratio = compare(rounds([1.0] * 4), rounds([1.03, 1.07, 1.045, 1.07]), Better.LESS)
    assert ratio is not None
    corrected = control_false_discoveries({index: replace(ratio, p_value=one) for index, one in enumerate(p_values)})
    found = [one.p_value for one in corrected.values() if one is not None]
    assert found == pytest.approx(stats.false_discovery_control(p_values).tolist())


def test_a_family_of_metrics_is_corrected() -> None:
    weak = compare(rounds([1.0] * 4), rounds([1.03, 1.07, 1.045, 1.07]), Better.LESS)
    vague = compare(rounds([1.0] * 4), rounds([0.9, 1.1, 0.95, 1.1]), Better.LESS)
    assert weak is not None
    assert weak.verdict is Verdict.SLOWER
    family = {"weak": weak, **dict.fromkeys("abcdefgh", vague), "absent": None}
    corrected = control_false_discoveries(family)
    found = corrected["weak"]
    assert found is not None
    assert found.p_value == pytest.approx(9 * weak.p_value)
    assert (found.verdict, found.low) == (Verdict.UNDECIDED, weak.low)
    assert corrected["absent"] is None
    assert control_false_discoveries({"weak": weak})["weak"] == weak
    strong = compare(rounds([1.0] * 4), rounds([2.0, 2.01, 2.0, 2.01]), Better.LESS)
    assert control_false_discoveries(dict.fromkeys("abcd", strong))["a"] == strong
