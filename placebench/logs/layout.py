"""The rows of step lines that have the same metrics, and whether they are those of one run."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

# One run's steps fall back now and then, where two writers share a file or its parts were joined in another order.
FALLS_IN_TURN = 3
# Before every step line: undone.
_LEFT_OUT = -1


@dataclass
class LineLayout:
    """The rows of all step lines that have the same metrics in the same order."""

    kept: tuple[int, ...]
    """Which of the line's metrics are stored, by position."""
    metrics: npt.NDArray[np.int32]
    """Number of each stored metric in the table."""
    steps: array[int] = field(default_factory=lambda: array("q"))
    """Step of each row."""
    order: array[int] = field(default_factory=lambda: array("q"))
    """When each row was read last, counted in step lines."""
    lines: array[int] = field(default_factory=lambda: array("q"))
    """Line of each row in the file, 0 where the format has no lines."""
    values: array[float] = field(default_factory=lambda: array("d"))
    """The stored values, row after row."""
    _rows: dict[int, int] | None = None
    """Row of each step; None as long as the steps rise, and so can be searched."""

    def row_of(self, step: int) -> int | None:
        """The row of a step; None where it has none, or one that was left out."""
        if self._rows is None:
            place = bisect_left(self.steps, step)
            is_there = place < len(self.steps) and self.steps[place] == step
        else:
            place = self._rows.get(step, -1)
            is_there = place >= 0
        return place if is_there and self.order[place] != _LEFT_OUT else None

    def append(self, step: int, order: int, line: int, values: list[float]) -> None:
        """Add the row of a step that has none that stands."""
        if self._rows is not None or (self.steps and step <= self.steps[-1]):
            self._note_rows([step])
        self.steps.append(step)
        self.order.append(order)
        self.lines.append(line)
        self.values.fromlist(values)

    def extend(self, steps: Sequence[int], first: int, lines: Sequence[int], values: npt.NDArray[np.float64]) -> None:
        """Add the rows of steps that rise and have none that stands; the order of theirs is `first` and following."""
        if self._rows is not None or (self.steps and steps[0] <= self.steps[-1]):
            self._note_rows(steps)
        self.steps.extend(steps)
        self.order.extend(range(first, first + len(steps)))
        self.lines.extend(lines)
        self.values.frombytes(values.tobytes())

    def _note_rows(self, more: Sequence[int]) -> None:
        """Keep the row of each step, which cannot be searched any more, and of those that are about to be added."""
        if self._rows is None:
            self._rows = {step: row for row, step in enumerate(self.steps)}
        self._rows.update(zip(more, range(len(self.steps), len(self.steps) + len(more)), strict=True))

    def replace(self, row: int, order: int, line: int, values: list[float]) -> None:
        """Put what a later line says of a step in place of a row."""
        width = len(self.kept)
        self.order[row] = order
        self.lines[row] = line
        self.values[row * width : (row + 1) * width] = array("d", values)

    def row_values(self, row: int) -> array[float]:
        """The stored values of a row."""
        width = len(self.kept)
        return self.values[row * width : (row + 1) * width]

    def differs(self, row: int, line: LineLayout, values: list[float]) -> bool:
        """Whether a row gives any metric of a line another value; `values` are those of the line's layout."""
        own = self.row_values(row)
        if line is self:
            return own.tobytes() != array("d", values).tobytes()
        _, here, there = np.intersect1d(self.metrics, line.metrics, assume_unique=True, return_indices=True)
        return not np.array_equal(np.array(own)[here], np.array(values)[there], equal_nan=True)

    def table(self) -> npt.NDArray[np.float64]:
        """The stored values, a row a step line."""
        return np.frombuffer(self.values, np.float64).reshape(len(self.steps), len(self.kept))

    def leave_out(self, step: int) -> None:
        """Take the row of a step back."""
        if (row := self.row_of(step)) is not None:
            self.order[row] = _LEFT_OUT


def fall_in_turn(steps: npt.NDArray[np.int64]) -> int | None:
    """Where lines of two runs begin to come in turn; None where they do not.

    Two runs write into one file: again and again a step of the one that is ahead is followed by one of the other,
    whose steps rise. Lines of one run that come late, in whatever order, fall over each place in the steps but a few
    times, and of those in no order at all (a table from a database) the lower part does not rise.

    Args:
        steps: the steps of lines that have the same metrics, each step once, in the order of the lines.

    Returns:
        The place of the first line that falls back over where both runs part.
    """
    falls = np.flatnonzero(steps[1:] < steps[:-1]) + 1
    if len(falls) < FALLS_IN_TURN:
        return None
    distinct = np.sort(steps)
    lower, upper = (np.searchsorted(distinct, steps[places]) for places in (falls, falls - 1))
    count = len(steps) + 1
    times = np.cumsum(np.bincount(lower + 1, minlength=count) - np.bincount(upper + 1, minlength=count))
    parting = int(times.argmax())
    below = steps[steps < distinct[parting]]
    if times[parting] < FALLS_IN_TURN or (np.diff(below) < 0).any():
        return None
    return int(falls[(lower < parting) & (parting <= upper)][0])
