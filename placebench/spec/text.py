"""Numbers as people read them: three significant digits and a unit, the same in tables and sentences."""

import math
from collections.abc import Iterable, Sequence

MISSING = "–"
MAX_DECIMALS = 4
MILLISECOND = 1e-3
# A difference below this is one of rounding alone.
NEGLIGIBLE = 1e-9
# An end of a ratio's interval beyond these says no more than that it is far away.
LOWEST, HIGHEST = 0.01, 100
# From this on a ratio is told as a factor, below it in percent.
TWICE = 1.995  # which is shown as 2.00
# Percentage points: below this width an interval bears a decimal.
NARROW = 2


def quantity(value: float | None, unit: str) -> str:
    """A number with its unit; a missing one is a dash.

    Args:
        value: the number; None and NaN are missing.
        unit: `s`, `tokens/s`, `tokens/J`, `1` (a share, shown in percent), `B`, `B/s`, `J`, `W` or `MHz`. Rates of
            tokens stand without their unit, which is in the row's name.
    """
    if value is None or math.isnan(value):
        return MISSING
    if unit == "1":
        return f"{100 * value:.0f} %"
    if unit == "B":
        return f"{number(value / 2**30)} GiB" if value >= 1000 * 2**20 else f"{number(value / 2**20)} MiB"
    if unit == "s" and 0 < value < MILLISECOND:
        return f"{number(value / MILLISECOND, 2)} ms"
    if unit == "B/s":
        return f"{number(value / 1e9)} GB/s"
    return number(value) if unit.startswith("tokens/") else f"{number(value)} {unit}"


def in_seconds(value: float) -> str:
    """A time in a sentence: three significant digits from 1 s on, two below."""
    return f"{number(value, 3 if value >= 1 else 2)} s"


def signed(value: float, unit: str) -> str:
    """A difference with its sign, a true minus, and its unit."""
    if abs(value) < NEGLIGIBLE:
        return quantity(0.0, unit)
    return f"{'−' if value < 0 else '+'}{quantity(abs(value), unit)}"


def signed_interval(value: float, low: float | None, high: float | None) -> str:
    """The ends of a difference's interval in its unit, for instance `−0.12 to +0.04 s`; a dash where there is none.

    Args:
        value: the difference, seconds.
        low: the lower end, seconds; None and NaN are missing.
        high: the upper end, seconds.
    """
    if low is None or high is None or math.isnan(low):
        return MISSING
    largest = max(abs(low), abs(high))
    if largest < NEGLIGIBLE:
        return "0 to 0 s"
    scale, unit, digits = (MILLISECOND, "ms", 2) if (abs(value) or largest) < MILLISECOND else (1.0, "s", 3)
    decimals = min(max(digits - 1 - math.floor(math.log10(largest / scale)), 0), MAX_DECIMALS)
    ends = " to ".join(f"{end / scale:+.{decimals}f}".replace("-", "−") for end in (low, high))
    return f"{ends} {unit}"


def seconds_interval(low: float, high: float) -> str:
    """The ends of a time's interval, for instance `94.0–104 s`, with one digit more where both ends would look alike.

    Args:
        low: the lower end, seconds, above 0.
        high: the upper end, seconds.
    """
    if low < MILLISECOND <= high:
        return f"{quantity(low, 's')} to {quantity(high, 's')}"
    scale, unit, digits = (MILLISECOND, "ms", 2) if high < MILLISECOND else (1.0, "s", 3)
    ends = [number(end / scale, digits) for end in (low, high)]
    if ends[0] == ends[1]:
        ends = [number(end / scale, digits + 1) for end in (low, high)]
    return f"{'–'.join(ends)} {unit}"


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
    """The ends of a ratio's interval, for instance `1.27–1.35` or `0.50 to >100`; a dash where there is none."""
    if low is None or high is None or math.isnan(low):
        return MISSING
    decimals = _ratio_decimals(low, high)
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

    From twice as much on they are factors, `2.10 times the` and `1.90 to 2.40 times`; a noun follows the first. A share
    that rounds to nothing is `as much`. The second is empty where there is no interval.
    """
    known = not math.isnan(low)
    decimals = int(100 * ((high - low) if known else abs(value - 1)) < NARROW)
    text = f"{ratio(value, low, high)} times the" if value >= TWICE else _more_or_less(value, decimals)
    if not known:
        return text, ""
    if high >= TWICE or low < LOWEST:
        return text, f"{interval(low, high).replace('–', ' to ')} times"
    ends = sorted(((low, high)), key=lambda end: abs(end - 1)) if (low < 1) is (high < 1) else (low, high)
    sizes = [f"{100 * abs(end - 1):.{decimals}f}" for end in ends]
    words = ["less" if end < 1 else "more" for end in ends]
    if words[0] == words[1]:
        return text, f"{sizes[0]} to {sizes[1]} % {words[1]}" if sizes[0] != sizes[1] else f"{sizes[0]} % {words[0]}"
    return text, f"{sizes[0]} % {words[0]} to {sizes[1]} % {words[1]}"


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
