"""Numbers over time in bounded memory: when there are too many, neighbors become their mean."""

import itertools
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Seen = tuple[int, int, int]
"""What a reader has of a series: which one it is, how often it had been thinned, and how many points it had."""
_NUMBERS = itertools.count()


class Series:
    """Columns of numbers over an axis that rises.

    Args:
        names: of the columns.
        most: points that are kept; where there would be more, each two become one.
    """

    def __init__(self, names: Sequence[str], most: int) -> None:
        self.names, self._most = tuple(names), max(2, most - most % 2)
        self._columns = [array("d") for _ in range(len(self.names) + 1)]
        self._number, self._stride, self._thinned = next(_NUMBERS), 1, 0
        self._waiting: list[tuple[float, ...]] = []

    def __len__(self) -> int:
        return len(self._columns[0])

    def append(self, at: float, values: Mapping[str, float | None]) -> None:
        """Add a point; what is missing of it is NaN."""
        found = (values.get(name) for name in self.names)
        self._waiting.append((at, *(math.nan if value is None else value for value in found)))
        if len(self._waiting) == self._stride:
            for column, several in zip(self._columns, zip(*self._waiting, strict=True), strict=True):
                column.append(several[0] if self._stride == 1 else _mean(several))
            self._waiting = []
            if len(self) >= self._most:
                self._thin()

    def since(self, seen: Seen | None) -> tuple[dict[str, Any] | None, Seen]:
        """What a reader lacks, as JSON, from which point on, and what it has then; None where it has everything."""
        now = (self._number, self._thinned, len(self))
        if seen == now:
            return None, now
        start = seen[2] if seen is not None and seen[:2] == now[:2] else 0
        at, *columns = (_rounded(column[start:]) for column in self._columns)
        return {"from": start, "at": at, **dict(zip(self.names, columns, strict=True))}, now

    def _thin(self) -> None:
        self._stride *= 2
        self._thinned += 1
        self._columns = [
            array("d", map(_mean, zip(column[::2], column[1::2], strict=True))) for column in self._columns
        ]


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if value == value]  # all but NaN
    return sum(known) / len(known) if known else math.nan


def _rounded(values: Iterable[float]) -> list[float | None]:
    """Numbers as JSON has them: with seven digits, null for what is none."""
    return [float(f"{value:.7g}") if math.isfinite(value) else None for value in values]
