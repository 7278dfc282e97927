import pytest

from placebench.spec.text import interval, seconds_interval, signed, signed_interval


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (0.5, 2.0, "0.50–2.00"),
        (0.996, 1.004, "0.996–1.004"),
        (0.001, 2.0, "<0.01 to 2.00"),
        (0.5, 3e4, "0.50 to >100"),
        (105.1, 213.9, "105–214"),
    ],
)
def test_an_interval_says_no_more_than_it_knows(low: float, high: float, shown: str) -> None:
    assert interval(low, high) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0.5, "+0.500 s"), (-0.0005, "−0.50 ms"), (1e-17, "0 s"), (-1e-12, "0 s")]
)
def test_a_difference_has_its_sign(value: float, shown: str) -> None:
    assert signed(value, "s") == shown


@pytest.mark.parametrize(
    ("value", "low", "high", "shown"),
    [
        (-0.14, -0.275, 0.0018, "−0.275 to +0.002 s"),
        (0.00001, -0.000038, 0.000057, "−0.038 to +0.057 ms"),
        (-0.0009, -0.0013, -0.0005, "−1.3 to −0.5 ms"),
        (0.0, -0.0003, 0.0003, "−0.30 to +0.30 ms"),
        (59.0, -12.0, 130.0, "−12 to +130 s"),
        (0.0, -1e-12, 0.0, "0 to 0 s"),
        (0.1, float("nan"), float("nan"), "–"),
    ],
)
def test_the_interval_of_a_difference_has_its_unit(value: float, low: float, high: float, shown: str) -> None:
    assert signed_interval(value, low, high) == shown


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (94.0, 104.4, "94.0–104 s"),
        (0.00621, 0.00679, "0.0062–0.0068 s"),
        (1.3, 1.3, "1.300–1.300 s"),
        (1.299, 1.304, "1.299–1.304 s"),
        (0.00061, 0.00072, "0.61–0.72 ms"),
        (0.0004, 250.0, "0.40 ms to 250 s"),
    ],
)
def test_the_interval_of_a_time_has_its_unit(low: float, high: float, shown: str) -> None:
    assert seconds_interval(low, high) == shown
