import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import ttest_ind

from placebench.compare.statistics import Better, Verdict, compare, estimate

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


@given(LAUNCHES, LAUNCHES)
def test_launches_that_are_no_pairs_get_the_interval_of_welch(first: list[float], other: list[float]) -> None:
    found = compare(rounds(first), rounds(other), Better.LESS, paired=False)
    assert found is not None
    assert found.pairs == 0
    logs = [np.log(side) for side in (other, first)]
    if min(len(first), len(other)) < 2:
        assert math.isnan(found.low)
        assert found.verdict is Verdict.UNDECIDED
    elif all(np.ptp(side) > 1e-6 for side in logs):
        expected = ttest_ind(*logs, equal_var=False).confidence_interval()
        assert (found.low, found.high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))


def test_equal_launches_that_are_no_pairs_are_the_same() -> None:
    found = compare({1: 2.0, 2: 2.0}, {3: 2.0, 4: 2.0}, Better.LESS, paired=False)
    assert found is not None
    assert (found.low, found.high, found.verdict) == (1.0, 1.0, Verdict.SAME)


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
