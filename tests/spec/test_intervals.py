import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from placebench.spec.intervals import Intervals, contains, covered, length, subtract, union

HOURS = 24
WHOLE_HOURS = st.lists(st.tuples(st.integers(0, HOURS), st.integers(0, HOURS)).map(sorted), max_size=8)


def as_intervals(pairs: list[list[int]]) -> Intervals:
    return np.array(pairs, dtype=np.float64).reshape(-1, 2)


def hours(pairs: list[list[int]]) -> NDArray[np.bool_]:
    """The same set as one flag an hour: what every operation is checked against."""
    flags = np.zeros(HOURS, dtype=bool)
    for start, end in pairs:
        flags[start:end] = True
    return flags


@given(WHOLE_HOURS)
def test_union_is_sorted_apart_and_complete(pairs: list[list[int]]) -> None:
    joined = union(as_intervals(pairs))
    assert (joined[:, 0] < joined[:, 1]).all()
    assert (joined[1:, 0] > joined[:-1, 1]).all()
    assert length(joined) == hours(pairs).sum()
    assert (contains(joined, np.arange(0.5, HOURS)) == hours(pairs)).all()


@given(WHOLE_HOURS, WHOLE_HOURS)
def test_subtract_and_covered_agree_with_counting_hours(pairs: list[list[int]], others: list[list[int]]) -> None:
    rest = subtract(union(as_intervals(pairs)), union(as_intervals(others)))
    assert length(rest) == (hours(pairs) & ~hours(others)).sum()
    expected = [hours([pair]) & hours(others) for pair in pairs]
    assert covered(as_intervals(pairs), union(as_intervals(others))) == pytest.approx(
        [flags.sum() for flags in expected]
    )


def test_contains_takes_the_start_and_not_the_end() -> None:
    assert contains(as_intervals([[1, 2]]), np.array([0.9, 1.0, 1.9, 2.0])).tolist() == [False, True, True, False]
