import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placebench.compare.statistics.allocation import LEAST_STEPS, Spread, best_steps, spread_of
from placebench.compare.statistics.estimates import Floats, paired_difference

PAIRS = [np.array([0.0, 0.2, 0.4]), np.array([0.5, 0.6, 1.3])]


def test_variance_between_pairs_is_told_from_that_within_them() -> None:
    # Variances within: 0.04 and 0.19, mean 0.115, a launch's part 0.115 / 3. Medians 0.2 and 0.6: variance 0.08.
    found = spread_of([PAIRS])
    assert found is not None
    assert (found.within**2, found.between**2) == pytest.approx((0.115, 0.08 - 0.115 / 3))
    twice = spread_of([PAIRS, [values + 1 for values in PAIRS]])
    assert twice is not None
    assert (twice.within, twice.between) == pytest.approx((found.within, found.between))


def test_launches_that_seem_alike_count_as_a_little_different() -> None:
    found = spread_of([[np.array([-0.1, 0.0, 0.1])] * 2])
    assert found is not None
    assert found.between**2 == pytest.approx(0.25 * 0.01 / 3)


@pytest.mark.parametrize(
    "groups", [[], [PAIRS[:1]], [[np.array([0.1]), np.array([0.2])]], [[np.zeros(3), np.zeros(3)]]]
)
def test_nothing_is_told_of_too_little(groups: list[list[Floats]]) -> None:
    assert spread_of(groups) is None


def test_steps_follow_from_costs_and_spread() -> None:
    # sqrt(90 / 10) * 0.04 / 0.01
    assert best_steps(Spread(0.01, 0.04), 90.0, 10.0, precision=0.01) == 12
    # Six pairs with sd s give the width 2 * 2.571 * s / sqrt(6); that of 5 % allows s = 0.02324.
    assert best_steps(Spread(0.01, 0.04), 90.0, 10.0, precision=0.05) == math.ceil(0.04**2 / (0.02324**2 - 0.01**2))
    assert best_steps(Spread(0.1, 0.01), 90.0, 10.0, precision=0.05) == LEAST_STEPS


@given(
    st.floats(1e-4, 0.1), st.floats(1e-4, 0.1), st.floats(1, 1e3), st.floats(0.1, 1e2), st.integers(LEAST_STEPS, 500)
)
def test_no_other_number_of_steps_is_narrower_per_minute(
    between: float, within: float, start_s: float, step_s: float, other: int
) -> None:
    def product(steps: int) -> float:
        return (between**2 + within**2 / steps) * (start_s + steps * step_s)

    best = best_steps(Spread(between, within), start_s, step_s, precision=1e-4)
    assert min(product(best), product(max(best - 1, LEAST_STEPS))) <= product(other) * (1 + 1e-9)


def test_means_of_launches_of_different_lengths_are_covered() -> None:
    # Three launches of few steps and seven of many, as after a choice: every launch counts once.
    random = np.random.default_rng(0)
    shape = (20_000, 10)
    errors = random.normal(0, 1, shape) * np.where(np.arange(10) < 3, 1.5, 1.0)
    found = paired_difference(errors)
    assert (np.abs(found.center) <= found.half_width).mean() == pytest.approx(0.95, abs=0.01)
