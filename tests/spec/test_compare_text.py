import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placebench.spec.devices import Device, with_labels
from placebench.spec.text import change, interval, seconds_interval, signed, signed_interval


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


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        ((0.75, 0.67, 0.83), ("25 % less", "17 to 33 % less")),
        ((1.2, 1.01, 1.42), ("20 % more", "1 to 42 % more")),
        ((0.8, 0.61, 1.05), ("20 % less", "39 % less to 5 % more")),
        ((0.909, 0.905, 0.913), ("9.1 % less", "8.7 to 9.5 % less")),
        ((1.001, 0.9, 1.1), ("as much", "10 % less to 10 % more")),
        ((2.1, 1.9, 2.4), ("2.10 times the", "1.90 to 2.40 times")),
        ((0.98, 0.31, 3.09), ("2 % less", "0.31 to 3.09 times")),
        ((1.5, math.nan, math.nan), ("50 % more", "")),
        ((1.004, math.nan, math.nan), ("0.4 % more", "")),
    ],
)
def test_a_ratio_is_told_as_people_say_it(found: tuple[float, float, float], shown: tuple[str, str]) -> None:
    assert change(*found) == shown


@given(st.floats(0.01, 100), st.floats(1, 2), st.floats(1, 2))
def test_what_is_told_of_a_ratio_is_on_its_side_of_1(value: float, below: float, above: float) -> None:
    text, ends = change(value, value / below, value * above)
    assert ends
    assert "less" not in text or value < 1
    assert "more" not in text or value > 1
    assert not (value * above < 0.99 and "more" in ends)
    assert not (value / below > 1.01 and "less" in ends)


def test_a_message_names_a_device_as_its_user_does() -> None:
    gpus = [Device(f"GPU-{name}", "gpu", index, "node", "NVIDIA H200", 141 << 30) for index, name in enumerate("ab")]
    cpus = [Device("cpu:0", "cpu", 0, "node", "EPYC", 1 << 30)]
    assert with_labels("lost GPU-b in gen", gpus) == "lost gpu:1 (GPU-b) in gen"
    assert with_labels("lost cpu:0 in gen", cpus) == "lost cpu:0 in gen"
