import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from placebench.compare.measure.energy import PowerCurve
from placebench.spec.intervals import Intervals

NOTHING = PowerCurve.of_readings(np.empty(0), np.empty(0))


def curve(mono: list[float], power: list[float | None]) -> PowerCurve:
    return PowerCurve.of_readings(np.array(mono), np.array(power, dtype=np.float64))


def times(*pairs: tuple[float, float]) -> Intervals:
    return np.array(pairs, dtype=np.float64).reshape(-1, 2)


def counted(found: PowerCurve, spans: Intervals, mono: list[float], counter: list[float]) -> float:
    return found.counted(spans, np.array(mono), np.array(counter))


def test_a_reading_of_power_holds_for_the_time_since_the_one_before() -> None:
    found = curve([1.0, 2.0, 3.0], [100.0, 300.0, 500.0])
    assert found.drawn(times((1.0, 2.0))) == pytest.approx(300)
    assert found.drawn(times((1.5, 2.5))) == pytest.approx(0.5 * 300 + 0.5 * 500)
    assert found.drawn(times((1.0, 1.25), (2.0, 3.0))) == pytest.approx(0.25 * 300 + 500)
    assert found.mean(times((1.5, 2.5))) == pytest.approx(400)
    assert found.between(np.array([1.0, 2.0, 2.5])) == pytest.approx([300, 500])


def test_a_reading_speaks_for_a_second_at_most_and_a_gap_is_left_out_of_the_mean() -> None:
    found = curve([1.0, 2.0, 12.0], [100.0, 300.0, 700.0])
    assert found.mean(times((0.0, 1.0))) == pytest.approx(100)
    assert found.mean(times((1.0, 12.0))) == pytest.approx((300 + 700) / 2)
    assert math.isnan(found.mean(times((3.0, 10.0))))
    assert math.isnan(found.mean(times((-2.0, -1.0))))
    assert math.isnan(found.mean(times((13.0, 14.0))))
    assert found.between(np.array([1.0, 2.0, 3.0, 5.0])) == pytest.approx([300, math.nan, math.nan], nan_ok=True)


def test_what_is_drawn_in_a_gap_is_taken_for_the_mean() -> None:
    found = curve([1.0, 2.0, 12.0], [100.0, 300.0, 800.0])
    assert found.drawn(times((3.0, 5.0))) == pytest.approx(2 * 400)
    assert found.drawn(times((1.5, 3.0))) == pytest.approx(0.5 * 300 + 400)
    assert found.drawn(times((11.0, 14.0))) == pytest.approx(800 + 2 * 400)


def test_a_missing_reading_leaves_its_time_to_the_next() -> None:
    assert curve([1.0, 1.5, 2.0], [100.0, None, 500.0]).drawn(times((1.0, 2.0))) == pytest.approx(500)


def test_where_power_is_not_known_nothing_is() -> None:
    for found in (NOTHING, curve([1.0, 2.0], [None, None])):
        assert math.isnan(found.mean(times((1.0, 2.0))))
        assert np.isnan(found.between(np.array([1.0, 2.0]))).all()


def test_no_time_draws_nothing_and_has_no_mean() -> None:
    found = curve([1.0, 2.0], [100.0, 300.0])
    assert found.drawn(times()) == 0
    assert math.isnan(found.mean(times()))


def test_the_joules_of_the_counter_lie_where_power_was_high() -> None:
    # The sensor shows half of what the counter counts.
    found = curve([0.0, 1.0, 2.0], [50.0, 50.0, 150.0])
    assert counted(found, times((0.0, 1.0)), [0.0, 2.0], [1000.0, 1400.0]) == pytest.approx(100)
    assert counted(found, times((0.0, 0.5), (1.5, 2.0)), [0.0, 2.0], [1000.0, 1400.0]) == pytest.approx(50 + 150)


@pytest.mark.parametrize("found", [NOTHING, curve([0.0, 3.0], [0.0, 0.0])], ids=["no power", "a sensor that reads 0"])
def test_the_joules_of_the_counter_lie_evenly_where_power_is_not_known(found: PowerCurve) -> None:
    # 100 W in the first second, 300 W in the next.
    assert counted(found, times((0.5, 1.5)), [0.0, 1.0, 3.0], [1000.0, 1100.0, 1700.0]) == pytest.approx(50 + 150)


@pytest.mark.parametrize(
    ("mono", "counter", "span"),
    [
        ([0.0, 1.0, 2.0], [1000.0, 1100.0, 1200.0], (1.5, 32.5)),
        ([0.0, 1.0, 2.0], [1000.0, 1100.0, 1200.0], (-0.5, 0.5)),
        ([0.0, 1.0, 2.0], [1000.0, 20.0, 40.0], (0.5, 1.5)),
        ([1.0], [5.0], (0.5, 1.5)),
        ([], [], (0.5, 1.5)),
    ],
    ids=["beyond the readings", "before them", "counter went back", "one reading", "none"],
)
def test_energy_that_is_not_known_is_nan(mono: list[float], counter: list[float], span: tuple[float, float]) -> None:
    for found in (NOTHING, curve([0.0, 2.0], [100.0, 100.0])):
        assert math.isnan(counted(found, times(span), mono, counter))


def test_a_counter_whose_last_reading_is_lost_goes_on_as_it_did() -> None:
    # The counter counts twice what the sensor shows.
    found = curve([1.0, 2.0, 3.0, 4.0], [50.0, 50.0, 150.0, 350.0])
    assert counted(found, times((1.0, 4.0)), [0.0, 2.0], [1000.0, 1200.0]) == pytest.approx(100 + 300 + 700)


@given(
    st.lists(st.tuples(st.floats(0.01, 1), st.floats(0, 1000)), min_size=2, max_size=20),
    st.lists(st.floats(0, 1), min_size=2, max_size=6, unique=True),
    st.floats(1, 10_000),
)
@example(readings=[(1.0, 0.0), (1.0, 2.3e-309)], cuts=[0.0, 1.0], joules=1.0)
def test_stretches_of_time_add_up_to_the_whole_and_no_mean_leaves_the_readings(
    readings: list[tuple[float, float]], cuts: list[float], joules: float
) -> None:
    mono = np.cumsum([gap for gap, _ in readings])
    power = np.array([watts for _, watts in readings])
    found = PowerCurve.of_readings(mono, power)
    edges = np.clip(mono[0] + np.sort(cuts) * (mono[-1] - mono[0]), mono[0], mono[-1])
    parts = [times((start, end)) for start, end in pairwise(edges) if end > start]
    whole = times((edges[0], edges[-1]))
    marks, counter = np.array([mono[0], mono[-1]]), np.array([0.0, joules])
    assert sum(map(found.drawn, parts)) == pytest.approx(found.drawn(whole), abs=1e-6)
    assert sum(found.counted(part, marks, counter) for part in parts) == pytest.approx(
        found.counted(whole, marks, counter), rel=1e-6, abs=1e-6
    )
    assert found.counted(times((mono[0], mono[-1])), marks, counter) == pytest.approx(joules)
    for part in parts:
        if part[0, 1] - part[0, 0] > 1e-6:
            assert power.min() - 1e-3 <= found.mean(part) <= power.max() + 1e-3
