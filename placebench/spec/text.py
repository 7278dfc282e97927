"""Numbers as people read them: as many digits as are known, one unit for those that are read together."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

MISSING = "–"
# In a reason it stands between what speaks against the verdict and what led to it.
AGAINST = ", but "
# Before a reason without a verdict, in which nothing led to one.
UNCERTAIN = "Measured, but as uncertain as the verdict: "
# Significant digits of a number of which no more is known, and at most of the ends of an interval.
DIGITS, _DIGITS_OF_ENDS = 3, 6
_MORE_FOR_ENDS = 2
MAX_DECIMALS = 4
# Seconds are told in the largest of these that is not above the largest of them.
_TIMES = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
# What is below this is a matter of rounding alone.
NEGLIGIBLE = 1e-9
# An end of a ratio's interval beyond these says no more than that it is far away.
LOWEST, HIGHEST = 0.01, 100
# From this on a ratio is told as a factor, below it in percent.
TWICE = 1.995  # which is shown as 2.00
# An interval that reaches beyond is told in factors, too.
FAR = 10
# Percentage points: below this width an interval bears a decimal.
NARROW = 2
_PERCENT_DECIMALS = 2


@dataclass(frozen=True)
class Scale:
    """One unit and one precision for the numbers of a table's row, of an interval or of a sentence: see `scale`."""

    unit: str
    """The unit's name; empty where it stands in the row's name."""
    size: float
    """How much of the number's own unit it is."""
    decimals: int
    """Decimals of all numbers; below 0 they are rounded to tens, hundreds, ..."""

    def text(self, value: float | None) -> str:
        """A number with its unit, a dash for None and NaN; one that would be shown as 0 is told to be less."""
        if value is None or math.isnan(value):
            return MISSING
        return self._with_unit(f"{'−' if value < 0 else ''}{self._size(value)}")

    def as_fine_as(self, others: Iterable["Scale"]) -> "Scale":
        """With the decimals by which it tells apart what any of the others does, whose units may be smaller."""
        needed = (one.decimals + round(math.log10(self.size / one.size)) for one in others)
        return replace(self, decimals=max([self.decimals, *needed]))

    def rounded(self, value: float) -> float:
        """A number as it is shown."""
        return round(value / self.size, self.decimals) * self.size

    def signed(self, value: float) -> str:
        """A difference with its sign, a true minus, and its unit; without a sign where it would be shown as 0."""
        size = self._signed_size(value)
        return self._with_unit(size[1:] if size[1:].startswith("<") else size)

    def ends(self, low: float, high: float, *, signed: bool = False) -> str:
        """The ends of an interval, both with the digits that its width supports; with signs of a difference.

        Of one that is too narrow for them to differ, it is said how narrow it is.
        """
        own = self._of_interval(low, high)
        ends = [own._signed_size(end) if signed else own._size(end) for end in (low, high)]
        if ends[0] == ends[1] != "0":
            return own._with_unit(_within(max(own.decimals, 0)))
        return own._with_unit((" to " if signed else "–").join(ends))

    def _of_interval(self, low: float, high: float) -> "Scale":
        largest, half = max(abs(low), abs(high)) / self.size, (high - low) / 2 / self.size
        if not half * self.size > NEGLIGIBLE:
            return replace(self, decimals=_decimals(largest, None, DIGITS + 1))
        decimals = _decimals(largest, half, _DIGITS_OF_ENDS)
        # An end near 0 is told with a digit of its own, if few more suffice: on which side of 0 it is, matters.
        near = min((abs(end) for end in (low, high) if abs(end) >= NEGLIGIBLE), default=self.size) / self.size
        needed = math.ceil(-math.log10(near))
        return replace(self, decimals=needed if decimals < needed <= decimals + _MORE_FOR_ENDS else decimals)

    def _signed_size(self, value: float) -> str:
        size = self._size(value)
        return size if size == "0" else f"{'−' if value < 0 else '+'}{size}"

    def _size(self, value: float) -> str:
        shown = abs(value) / self.size
        if abs(value) < NEGLIGIBLE:
            return "0"
        rounded, decimals = round(shown, self.decimals), max(self.decimals, 0)
        # Not the 1,000 that others are rounded to, for the lower end of an interval around 8.
        step = 10.0**-decimals if self.decimals >= 0 else 10.0 ** max(math.floor(math.log10(shown)) + 1, 0)
        return f"{rounded:,.{decimals}f}" if rounded else f"<{step:,.{decimals}f}"

    def _with_unit(self, text: str) -> str:
        return f"{text} {self.unit}" if self.unit else text


def scale(
    unit: str, values: Iterable[float | None], halves: Iterable[float | None] = (), digits: int = DIGITS
) -> Scale:
    """How numbers that are read together are told: the largest one's unit, and digits that the intervals support.

    The last digit is worth no more than the half width of the narrowest interval. The largest number has two
    significant digits at least and `digits` at most, which it has where no interval is known. Those of a tenth of it
    and more have two as well, as far as that allows: of `11 s` and `7 s` nobody sees that one is 1.46 times the other.

    Args:
        unit: of the numbers: `s`, `tokens/s`, `tokens/J`, `1` (a share, told in whole percent), `B`, `B/s`, `J`, `W`
            or `MHz`. Rates of tokens stand without their unit, which is in the row's name.
        values: the numbers; None and NaN are missing.
        halves: half widths of their intervals, as far as known.
        digits: significant digits that the largest number has at most.
    """
    known = [abs(value) for value in values if value is not None and math.isfinite(value)]
    largest = max(known, default=0.0)
    least = min((value for value in known if value >= largest / FAR), default=largest)
    name, size = _unit(unit, largest)
    if unit == "1":
        return Scale(name, size, 0)
    half = min((half for half in halves if half is not None), default=0.0)
    worth = half / size if half > NEGLIGIBLE else None
    return Scale(name, size, _decimals(largest / size, worth, digits, least / size))


class Estimated(Protocol):
    """A number with the ends of its interval; None and NaN are missing."""

    @property
    def value(self) -> float | None:
        """The number."""

    @property
    def low(self) -> float | None:
        """Lower end."""

    @property
    def high(self) -> float | None:
        """Upper end."""


def scale_of(unit: str, *found: Estimated, ratio: Estimated | None = None) -> Scale:
    """How numbers with their intervals are told beside each other: see `scale`.

    Args:
        unit: of the numbers.
        found: the numbers.
        ratio: between them; of pairs it may be known better than either of them, and is then not to be rounded away.
    """
    values = [one.value for one in found]
    halves = [half_width(one.low, one.high) for one in found]
    if ratio and (half := half_width(ratio.low, ratio.high)) is not None:
        halves += [half * abs(value) for value in values if value]
    return scale(unit, values, halves)


def row(unit: str, *values: float | None) -> tuple[str, ...]:
    """Numbers of a table's row in one unit, with as many decimals each: see `scale`."""
    told = scale(unit, values)
    return tuple(map(told.text, values))


def quantity(value: float | None, unit: str) -> str:
    """A number by itself with its unit; a missing one, None or NaN, is a dash. Units are as of `scale`."""
    return scale(unit, [value]).text(value)


def half_width(low: float | None, high: float | None) -> float | None:
    """Of an interval; None where there is none."""
    return None if low is None or high is None or math.isnan(low) or math.isnan(high) else (high - low) / 2


def _unit(unit: str, largest: float) -> tuple[str, float]:
    """Name and size of the unit in which numbers are told of which this is the largest."""
    if unit == "s":
        # A little earlier than at 1, so that no rounding makes 1,000 of it.
        return next((found for found in _TIMES if largest >= 0.995 * found[1]), _TIMES[-1] if largest else _TIMES[0])
    if unit == "B":
        return ("GiB", 2.0**30) if largest >= 1000 * 2**20 else ("MiB", 2.0**20)
    if unit.startswith("tokens/"):
        return "", 1.0
    return {"1": ("%", 0.01), "B/s": ("GB/s", 1e9)}.get(unit, (unit, 1.0))


def _decimals(largest: float, half: float | None, digits: int, least: float | None = None) -> int:
    """Decimals with which the largest of some numbers has so many significant digits, or as few as suffice.

    Of these two for the largest and, if that takes no more than so many of the largest, for the `least` one too.
    """
    if not largest:
        return 0
    top = _power(largest, digits)
    most = min(max(digits - 1 - top, 0), MAX_DECIMALS)
    if half is None:
        return most
    two = max(1 - top, min(most, 1 - _power(least or largest, 2)))
    return max(min(most, math.ceil(-math.log10(half))), two)


def _power(value: float, digits: int) -> int:
    """The power of ten that a number's first digit counts, rounded to so many digits."""
    return math.floor(math.log10(float(f"{value:.{digits}g}")))


def number(value: float, digits: int = 3) -> str:
    """A few significant digits, at most four decimals, thousands set apart."""
    if not value:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(float(f"{value:.{digits}g}"))))
    return f"{value:,.{min(max(decimals, 0), MAX_DECIMALS)}f}"


def ratio(value: float, low: float | None, high: float | None) -> str:
    """A ratio with as many decimals, two or three, as its interval makes sensible."""
    return f"{value:.{_ratio_decimals(low, high)}f}"


def interval(low: float | None, high: float | None) -> str:
    """The ends of a ratio's interval, for instance `1.27–1.35` or `0.50 to >100`; a dash where there is none.

    Ends have digits until they differ, `MAX_DECIMALS` at most; if they do not then, it is `±<0.0001`.
    """
    if low is None or high is None or math.isnan(low):
        return MISSING
    decimals = _ratio_decimals(low, high)
    while f"{low:.{decimals}f}" == f"{high:.{decimals}f}":
        if decimals == MAX_DECIMALS:
            return _within(decimals)
        decimals += 1
    ends = (
        f"{low:.{decimals}f}" if low >= LOWEST else f"<{LOWEST}",
        f"{high:.{decimals}f}" if not low <= HIGHEST < high else f">{HIGHEST}",
    )
    return ("–" if low >= LOWEST and not low <= HIGHEST < high else " to ").join(ends)


def factor(value: float, low: float, high: float) -> str:
    """A ratio with its interval in a sentence: `1.31 (1.27–1.35)`, without one where it is not known."""
    ends = "" if math.isnan(low) else f" ({interval(low, high)})"
    return ratio(value, low, high) + ends


def change(value: float, low: float, high: float) -> tuple[str, str]:
    """A ratio and its interval as people say them: `25 % less` and `17 to 33 % less`.

    From twice as much on they are factors, `2.10 times the` and `1.90 to 2.40 times`; a noun follows the first. So they
    are where an end of the interval is far away. A share that rounds to nothing is `as much`. The second is empty where
    there is no interval.
    """
    known = not math.isnan(low)
    if value >= TWICE or (known and (high > FAR or low < LOWEST)):
        ends = f"{interval(low, high).replace('–', ' to ')} times" if known else ""
        return f"{ratio(value, low, high)} times the", ends
    decimals = int(100 * ((high - low) if known else abs(value - 1)) < NARROW)
    return _more_or_less(value, decimals), _percent_ends(low, high, decimals) if known else ""


def _percent_ends(low: float, high: float, decimals: int) -> str:
    """The ends of a ratio's interval in percent, with decimals until they differ, two at most."""
    ends = sorted((low, high), key=lambda end: abs(end - 1)) if (low < 1) is (high < 1) else [low, high]
    sizes = [f"{100 * abs(end - 1):.{decimals}f}" for end in ends]
    words = ["less" if end < 1 else "more" for end in ends]
    is_zero = [not float(size) for size in sizes]
    if all(is_zero) or (sizes[0] == sizes[1] and words[0] == words[1]):
        return _percent_ends(low, high, decimals + 1) if decimals < _PERCENT_DECIMALS else f"{_within(decimals)} %"
    # On which side of 0 an end is tells more than its digits.
    sizes = [_visible(end, decimals) for end in ends]
    is_zero = [not float(size) for size in sizes]
    if words[0] == words[1] or is_zero[0]:
        return f"{'0' if is_zero[0] else sizes[0]} to {sizes[1]} % {words[1]}"
    if is_zero[1]:
        return f"0 to {sizes[0]} % {words[0]}"
    return f"{sizes[0]} % {words[0]} to {sizes[1]} % {words[1]}"


def _visible(end: float, decimals: int) -> str:
    """An end in percent, with decimals until it is not 0, two at most."""
    size = f"{100 * abs(end - 1):.{decimals}f}"
    return size if float(size) or decimals == _PERCENT_DECIMALS else _visible(end, decimals + 1)


def _within(decimals: int) -> str:
    """How narrow an interval is whose ends are the same with so many decimals."""
    return f"±<{10.0**-decimals:.{decimals}f}"


def _more_or_less(value: float, decimals: int) -> str:
    size = f"{100 * abs(value - 1):.{decimals}f}"
    return f"{size} % {'less' if value < 1 else 'more'}" if float(size) else "as much"


def percent(share: float) -> str:
    """A share with one decimal."""
    return f"{100 * share:.1f} %"


def threshold(share: float) -> str:
    """A share that was chosen, with the decimals that it was given: `2 %`, `0.5 %`."""
    return f"{100 * share:g} %"


def plural(count: int, noun: str, plural_noun: str | None = None) -> str:
    """`1 launch`, `2 launches`."""
    return f"{count} {noun if count == 1 else plural_noun or noun + 's'}"


def listing(parts: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    words: Sequence[str] = list(parts)
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def few(parts: Iterable[str], separator: str = "; ", most: int = 6) -> str:
    """The first parts of a text, and how many more there are."""
    words = list(parts)
    more = [f"and {len(words) - most} more"] if len(words) > most else []
    return separator.join([*words[:most], *more])


def _ratio_decimals(low: float | None, high: float | None) -> int:
    if low is None or high is None:
        return 2
    return 3 if high - low < 0.02 else 0 if low > HIGHEST else 2


def format_seconds(seconds: float) -> str:
    """`8.3 s` below a minute, `4:05 min` below an hour, else `1:02 h`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    unit, small, large = ("min", 1, 60) if seconds < 3599.5 else ("h", 60, 3600)
    whole = round(seconds / small) * small
    return f"{whole // large}:{whole % large // small:02d} {unit}"


def format_bytes(count: float) -> str:
    """Bytes as MiB, from 10 GiB on as GiB."""
    return f"{count / 2**30:.1f} GiB" if count >= 10 * 2**30 else f"{count / 2**20:,.0f} MiB"


def slug(text: str) -> str:
    """A placement's name as part of a file name: `split:3+1/overlap=none` → `split-3+1-overlap=none`."""
    return "".join(char if char.isalnum() or char in "+=._@" else "-" for char in text)
