import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placebench.compare.statistics.estimates import Estimate
from placebench.spec.devices import Device, with_labels
from placebench.spec.text import change, interval, row, scale, scale_of


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
    ("values", "shown"),
    [
        ((0.0431, 0.0987), ("43.1 ms", "98.7 ms")),
        ((0.43, 0.052, 0.0070), ("430 ms", "52 ms", "7 ms")),
        ((0.9949, 0.4), ("995 ms", "400 ms")),
        ((0.9951, 0.4), ("0.995 s", "0.400 s")),
        ((6.57, 0.4, 0.004), ("6.57 s", "0.40 s", "<0.01 s")),
        ((12345.0, 1.0), ("12,345 s", "1 s")),
        ((0.00038, 0.0), ("380 µs", "0 µs")),
        ((None, 0.0, float("nan")), ("–", "0 s", "–")),
    ],
)
def test_numbers_of_a_row_have_one_unit_and_one_precision(
    values: tuple[float | None, ...], shown: tuple[str, ...]
) -> None:
    assert row("s", *values) == shown


@pytest.mark.parametrize(
    ("unit", "values", "shown"),
    [
        ("B", (600 * 2**20, 141 * 2**30), ("1 GiB", "141 GiB")),
        ("tokens/s", (1037.4, 998.0), ("1,037", "998")),
        ("tokens/J", (0.00123, 0.1), ("0.001", "0.100")),
        ("1", (0.123, 0.9), ("12 %", "90 %")),
        ("B/s", (12.3e9, None), ("12.3 GB/s", "–")),
    ],
)
def test_every_unit_has_its_words(unit: str, values: tuple[float, ...], shown: tuple[str, ...]) -> None:
    assert row(unit, *values) == shown


@pytest.mark.parametrize(
    ("value", "half", "shown"),
    [
        (0.7112, 0.03, "710 ms"),  # its interval is 60 ms wide
        (0.7112, 0.004, "711 ms"),
        (0.7112, 0.5, "710 ms"),  # two digits at least
        (6.573, 0.2, "6.6 s"),
        (6.573, 1e-5, "6.57 s"),  # three at most
        (6.573, 0.0, "6.57 s"),
        (98.7, 5.0, "99 s"),
    ],
)
def test_a_number_has_the_digits_that_its_interval_supports(value: float, half: float, shown: str) -> None:
    assert scale_of("s", Estimate(value, value - half, value + half, 3)).text(value) == shown


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ((7.34, 10.7), ["7.3 s", "10.7 s"]),  # 1.46 times as much, which 11 s and 7 s are not
        ((0.66, 1.06), ["0.66 s", "1.06 s"]),
        ((9.96, 11.2), ["10 s", "11 s"]),
        ((11.2, 104.0), ["11 s", "104 s"]),  # three digits of the largest at most
        ((1.12, 11.4), ["1 s", "11 s"]),
        ((1.14, 11.2, 11.38), ["1.1 s", "11.2 s", "11.4 s"]),
        ((820.0, 1234.0), ["820 s", "1,230 s"]),
    ],
)
def test_numbers_beside_each_other_have_two_digits_each(values: tuple[float, ...], shown: list[str]) -> None:
    told = scale_of("s", *(Estimate(value, value / 3, value * 3, 2) for value in values))
    assert [told.text(value) for value in values] == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.5, "+500 ms"), (-0.0005, "−500 µs"), (1e-17, "0 s"), (-1e-12, "0 s"), (-0.2, "−200 ms")],
)
def test_a_difference_has_its_sign(value: float, shown: str) -> None:
    assert scale("s", [value if abs(value) > 1e-9 else 0.0]).signed(value) == shown


def test_a_difference_that_rounds_to_nothing_has_no_sign() -> None:
    assert [scale("s", [1.3]).signed(value) for value in (0.0001, -0.0001)] == ["<0.01 s", "<0.01 s"]


def test_an_interval_of_a_ratio_has_digits_until_its_ends_differ() -> None:
    found = [(0.7, 0.7), (0.69994, 0.70004), (1.27, 1.35), (0.5, 200.0)]
    assert [interval(*ends) for ends in found] == ["±<0.0001", "0.6999–0.7000", "1.27–1.35", "0.50 to >100"]


@pytest.mark.parametrize(
    ("beside", "low", "high", "shown"),
    [
        (0.14, -0.275, 0.0018, "−275 to +2 ms"),
        (1.8, -0.204, -0.2, "−0.204 to −0.200 s"),
        (1.8, -0.275, 0.0018, "−0.275 to +0.002 s"),
        (59.0, -12.0, 130.0, "−10 to +130 s"),
        (1.0, 0.0, 0.0, "0 to 0 s"),
    ],
)
def test_the_interval_of_a_difference_has_the_unit_of_its_row(
    beside: float, low: float, high: float, shown: str
) -> None:
    assert scale("s", [beside]).ends(low, high, signed=True) == shown


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (94.0, 104.4, "94–104 s"),
        (0.00621, 0.00679, "6.2–6.8 ms"),
        (1.3, 1.3, "±<0.001 s"),
        (1.299, 1.304, "1.299–1.304 s"),
        (0.00061, 0.00072, "610–720 µs"),
        (0.0004, 250.0, "<1–250 s"),
        (0.0075, 11000.0, "<1–11,000 s"),
    ],
)
def test_the_interval_of_a_time_has_the_digits_that_its_width_supports(low: float, high: float, shown: str) -> None:
    assert scale("s", [high]).ends(low, high) == shown


def number_in(text: str) -> float:
    """What a text says, in the unit that it says it in."""
    return float(text.split(" ")[0].replace(",", "").replace("−", "-").removeprefix("<"))


def decimals_in(text: str) -> int:
    return len(text.split(" ")[0].partition(".")[2])


positive = st.floats(1e-6, 1e6)
SIZES = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}


@given(st.lists(positive, min_size=1, max_size=5))
def test_a_row_has_one_unit_one_precision_and_the_order_of_its_numbers(values: list[float]) -> None:
    cells = row("s", *sorted(values))
    assert len({cell.split(" ")[1] for cell in cells}) == 1
    assert len({decimals_in(cell) for cell in cells}) == 1
    told = [0.0 if cell.startswith("<") else number_in(cell) for cell in cells]
    assert told == sorted(told)
    size = SIZES[cells[0].split(" ")[1]]
    assert max(abs(told[-1] * size - max(values)), 0) <= 0.006 * max(values)
    assert not any(re.fullmatch(r"[−-]?0(\.0+)?", cell.split(" ")[0]) for cell in cells)


@given(positive, st.floats(1e-3, 0.5))
def test_rounding_stays_within_half_of_the_half_width(value: float, relative: float) -> None:
    half = relative * value
    text = scale_of("s", Estimate(value, value - half, value + half, 3)).text(value)
    error = abs(number_in(text) * SIZES[text.split(" ")[1]] - value)
    assert error <= max(half / 2, 0.005 * value) * (1 + 1e-6)
    digits = text.split(" ")[0].replace(",", "").replace(".", "").strip("0")
    assert len(digits) <= 3 or "." not in text
    # And the last digit is worth a tenth of the half width, unless it is one of the first two, or of whole units.
    assert len(digits) <= 2 or "." not in text or 10.0 ** -decimals_in(text) * SIZES[text.split(" ")[1]] >= 0.1 * half


@given(positive, st.floats(1e-3, 0.9))
def test_both_ends_of_an_interval_have_one_precision_and_differ(value: float, relative: float) -> None:
    low, high = value * (1 - relative), value * (1 + relative)
    text = scale("s", [high]).ends(low, high)
    ends = text.rsplit(" ", 1)[0].split("–")
    assert ends[0] != ends[1]
    assert decimals_in(ends[0]) == decimals_in(ends[1])


@given(st.floats(-1e3, 1e3), st.floats(1e-6, 1e3))
def test_a_difference_is_never_minus_0(value: float, beside: float) -> None:
    text = scale("s", [value, beside]).signed(value).split(" ")[0]
    assert not re.fullmatch(r"[+−-]0(\.0+)?", text)
    assert "-" not in text


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        ((0.75, 0.67, 0.83), ("25 % less", "17 to 33 % less")),
        ((1.2, 1.01, 1.42), ("20 % more", "1 to 42 % more")),
        ((0.8, 0.61, 1.05), ("20 % less", "39 % less to 5 % more")),
        ((0.909, 0.905, 0.913), ("9.1 % less", "8.7 to 9.5 % less")),
        ((1.001, 0.9, 1.1), ("as much", "10 % less to 10 % more")),
        ((2.1, 1.9, 2.4), ("2.10 times the", "1.90 to 2.40 times")),
        ((0.98, 0.31, 3.09), ("2 % less", "69 % less to 209 % more")),
        ((1.66, 1.36, 2.02), ("66 % more", "36 to 102 % more")),
        ((0.59, 0.09, 40.0), ("0.59 times the", "0.09 to 40.00 times")),
        ((1.1, 0.9996, 1.21), ("10 % more", "0.04 % less to 21 % more")),
        ((0.9, 0.8, 1.0003), ("10 % less", "20 % less to 0.03 % more")),
        ((0.7, 0.6998, 0.7001), ("30.0 % less", "29.99 to 30.02 % less")),
        ((0.7, 0.7, 0.7), ("30.0 % less", "±<0.01 %")),
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
