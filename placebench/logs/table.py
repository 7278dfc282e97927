"""The compact store that readers fill: steps and their metrics, the last value of each."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from placebench.logs.columns import joined, last_of_each, text_column
from placebench.logs.layout import FALLS_IN_TURN, LineLayout, fall_in_turn

# Restarts that follow each other this closely, each at a later step, are no restarts: the lines of two logs stand in
# turn in one file. Nor do steps come out of order behind a restart. A run that crashes again and again goes on from
# the same step until it has a later checkpoint.
SHORT_SEGMENT_LINES = 3
SHORT_SEGMENTS = 3
MIXED_STEPS = 3
DAMAGED_KEPT = 5
ODD_KEPT = 3
# Steps are stored as signed 64-bit integers; one from here on is no step.
STEP_LIMIT = 2**63
# A table of more cells, at eight bytes each, is of metrics whose names change from step to step.
CELL_LIMIT = 1 << 29
METRIC_LIMIT = 10_000
# Of all metrics, kept or not, and of the sets of them that lines have; reading ends there.
NAME_LIMIT = 100_000
_SEVERAL_RUNS = "the file holds the steps of several runs in turn; give each run its own file"


class DamagedLogError(Exception):
    """A log breaks its format's rules, or contradicts itself, where that cannot be passed over."""


@dataclass(frozen=True)
class Restart:
    """A step that was done again with other values: the run went on from a checkpoint, or from the start."""

    step: int
    """The first step that was done again."""
    line: int
    """Line number of that step in the file, 0 where the format has no lines."""
    order: int
    """Step lines read before the restart."""


@dataclass(frozen=True)
class OddValue:
    """A value of a metric that cannot be."""

    line: int
    """Its line in the file, 0 where the format has no lines."""
    step: int
    """Its step."""
    metric: str
    """Name of the metric."""
    value: float
    """The value."""


class StepTable:
    """Steps and metrics of one log, in the memory of what is kept: eight bytes a value.

    A step line that comes twice with the same values, because two streams caught it, counts once; a line with other
    metrics of a step, such as a validation's, adds to its step. A step that comes again with other values begins a
    new segment: the run was restarted, and every step from there on that was done before is undone. Steps may come
    out of order.

    Attributes:
        lines: step lines read.
        replaced: step lines that repeat an earlier one of the same segment.
        out_of_order: step lines of a new step behind a later one.
        restarts: where the run was restarted, in the order of the file.
        standing: those of them that no later one at or before their step has undone; their steps rise.
        damaged: line numbers of steps that are cut off or torn apart and were left out; the first few.
        damages: how many there were.
        open_end: whether the last line has no line end, so that its last number may be cut off.
        names: every metric seen, kept or not.
        summary: numbers about the whole run that the log ends with.
        steps_per_number: training steps between two consecutive numbers of steps, where the reader or a tracker has
            counted lines; None where that is not known.
        where: gives the line number of the step line that is being added; the reader sets it.
    """

    def __init__(self, keep: Callable[[str], bool] | None = None) -> None:
        self.lines = 0
        self.replaced = 0
        self.out_of_order = 0
        self.restarts: list[Restart] = []
        self.standing: list[Restart] = []
        self.damaged: list[int] = []
        self.damages = 0
        self.open_end = False
        self.names: dict[str, int] = {}
        self.summary: dict[str, float] = {}
        self.steps_per_number: int | None = 1
        self.where: Callable[[], int] = int
        self._keep = keep
        self._layouts: dict[tuple[str, ...], LineLayout] = {}
        self._last = -1
        self._behind = 0
        self._rises = 0
        self._anew_at = -1

    def layout(self, names: Sequence[str]) -> LineLayout:
        """The layout of a line with these metrics; a name that stands twice is stored from its last place.

        Raises:
            DamagedLogError: the log has metrics, or sets of them, without end.
        """
        key = tuple(names)
        known = self._layouts.get(key)
        if known is not None:
            return known
        self.refuse_names(max(len(key), len(self.names), len(self._layouts)))
        # Lone surrogates, from a JSON escape, are no text.
        clean = [name.encode("utf-8", "replace").decode() for name in key]
        for name in clean:
            self.names.setdefault(name, len(self.names))
        last = {name: place for place, name in enumerate(clean)}
        kept = tuple(sorted(place for name, place in last.items() if self._keep is None or self._keep(name)))
        new = LineLayout(kept, np.array([self.names[clean[place]] for place in kept], np.int32))
        self._layouts[key] = new
        return new

    def refuse_names(self, count: int) -> None:
        """See that so many metrics in a line, or in all lines so far, are not too many.

        Raises:
            DamagedLogError: they are.
        """
        if count > NAME_LIMIT:
            what = f"over {NAME_LIMIT:,} metrics, or sets of them, so far"
            raise DamagedLogError(f"{_at(self.where())}{what}: a metric needs one name in all steps")

    def add_row(self, layout: LineLayout, step: int, values: list[float]) -> None:
        """Store the kept values of one step line.

        Raises:
            DamagedLogError: the file holds the step lines of two runs in turn.
        """
        if step > self._last:
            self._last = step
        else:
            self._look_back(layout, step, values)
        row = layout.row_of(step)
        if row is None:
            layout.append(step, self.lines, self.where(), values)
        else:
            self.replaced += layout.order[row] >= self._begin(step)
            layout.replace(row, self.lines, self.where(), values)
        self.lines += 1

    def rises_to(self, step: int) -> bool:
        """Whether a step comes after all before it."""
        return step > self._last

    def add_rows(
        self, layout: LineLayout, steps: Sequence[int], lines: Sequence[int], values: npt.NDArray[np.float64]
    ) -> None:
        """Store the kept values of several step lines at once.

        Args:
            layout: layout of all of them.
            steps: step of each line; they rise, and the table `rises_to` the first.
            lines: where each stands in the file.
            values: the kept values, line after line.
        """
        layout.extend(steps, self.lines, lines, values)
        self.lines += len(steps)
        self._last = steps[-1]

    def begin_anew(self) -> None:
        """Take what comes next as another file under the same name: all that it does again is done from there on."""
        self._anew_at = self.lines

    def damage(self, line: int) -> None:
        """Note a step that is cut off or torn apart."""
        self.damages += 1
        if len(self.damaged) < DAMAGED_KEPT:
            self.damaged.append(line)

    @property
    def damaged_at(self) -> str:
        """Where the damaged steps are, as a phrase: `at line 3, 1,007`."""
        more = ", …" if self.damages > len(self.damaged) else ""
        return f"at line {', '.join(f'{line:,}' for line in self.damaged)}{more}"

    def _look_back(self, layout: LineLayout, step: int, values: list[float]) -> None:
        """Distinguish a step printed twice, one out of order and a restart."""
        if self.lines == self._anew_at:
            self._restart(step)
            return
        seen = self._rows_of(step)
        if any(other.differs(row, layout, values) for other, row in seen):
            self._restart(step)
        elif not seen and step < self._last:
            self.out_of_order += 1
            self._behind += bool(self.restarts)
            if self._behind >= MIXED_STEPS:
                self._refuse(step)

    def leave_out(self, layout: LineLayout, step: int, line: int) -> None:
        """Take back a step line that has turned out to be cut off or torn apart."""
        layout.leave_out(step)
        self.damage(line)

    def _begin(self, step: int) -> int:
        """The step line before which everything of a step is undone, counted from the first."""
        place = bisect_right(self.standing, step, key=lambda restart: restart.step)
        return self.standing[place - 1].order if place else 0

    def _rows_of(self, step: int) -> list[tuple[LineLayout, int]]:
        """The rows of a step that no restart has undone."""
        begin, rows = self._begin(step), ((layout, layout.row_of(step)) for layout in self._layouts.values())
        return [(layout, row) for layout, row in rows if row is not None and layout.order[row] >= begin]

    def _restart(self, step: int) -> None:
        before = self.restarts[-1] if self.restarts else None
        restart = Restart(step, self.where(), self.lines)
        self.restarts.append(restart)
        del self.standing[bisect_left(self.standing, step, key=lambda earlier: earlier.step) :]
        self.standing.append(restart)
        self._last = step
        if before is None or step < before.step or restart.order - before.order > SHORT_SEGMENT_LINES:
            self._rises = 0
        elif step > before.step:
            self._rises += 1
            if self._rises == SHORT_SEGMENTS:
                self._refuse(step)

    def _refuse(self, step: int) -> None:
        what = f"step {step} appears with different values again and again"
        raise DamagedLogError(f"{_at(self.where())}{what}: {_SEVERAL_RUNS}")

    @staticmethod
    def _refuse_in_turn(layout: LineLayout, order: npt.NDArray[np.int64], done: npt.NDArray[np.bool_]) -> None:
        """Refuse the lines of two runs in turn, of which the one is ahead of the other."""
        rows = np.flatnonzero(done)
        rows = rows[np.argsort(order[rows])]
        fall = fall_in_turn(np.frombuffer(layout.steps, np.int64)[rows])
        if fall is not None:
            before, behind = rows[fall - 1 : fall + 1].tolist()
            what = f"step {layout.steps[behind]} comes after step {layout.steps[before]}, and so again and again"
            raise DamagedLogError(f"{_at(layout.lines[behind])}{what}: {_SEVERAL_RUNS}")

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Store one step's metrics; see `add_row`."""
        layout = self.layout(tuple(metrics))
        values = list(metrics.values())
        self.add_row(layout, step, [values[place] for place in layout.kept])

    def count_steps(self) -> int:
        """How many steps the log has lines of, whatever was kept of them."""
        return len(self.steps())

    def steps(self, of_metric: str | None = None) -> set[int]:
        """The steps that the log has lines of, whatever was kept of them; or those that have a metric that is kept."""
        number = self.names.get(of_metric, -1) if of_metric else None
        found = (layout for layout in self._layouts.values() if number is None or number in layout.metrics)
        return set().union(*(layout.steps for layout in found))

    def metrics_of(self, step: int) -> dict[str, float]:
        """What the log has of a step, as far as it is kept: also numbers that are NaN, unlike those that it lacks."""
        names = list(self.names)
        return {
            names[metric]: value
            for layout, row in sorted(self._rows_of(step), key=lambda place: place[0].order[place[1]])
            for metric, value in zip(layout.metrics.tolist(), layout.row_values(row), strict=True)
        }

    def frame(self, launch: str) -> pd.DataFrame:
        """What is kept as a tidy frame, by step and in the order of printing.

        Returns:
            Columns launch (str), step (int64), metric (str) and value (float64).
        """
        layouts, steps, order, undone = self._rows()
        widths = joined([np.full(len(layout.steps), len(layout.kept)) for layout in layouts])
        ranked = np.lexsort((order, steps))
        ranked = ranked[~undone[ranked]]
        ends = np.cumsum(widths[ranked])
        starts = np.zeros_like(steps)
        starts[ranked] = ends - widths[ranked]
        total = int(ends[-1]) if len(ends) else 0
        metric, value = np.empty(total, np.int32), np.empty(total, np.float64)
        first = 0
        for layout in layouts:
            rows, width = len(layout.steps), len(layout.kept)
            done = ~undone[first : first + rows]
            places = starts[first : first + rows][done, None] + np.arange(width)
            metric[places] = layout.metrics
            value[places] = layout.table()[done]
            first += rows
        step = np.repeat(steps[ranked], widths[ranked])
        last = last_of_each(step, metric, steps)
        if last is not None:
            step, metric, value = step[last], metric[last], value[last]
        return pd.DataFrame(
            {
                "launch": text_column(np.zeros(len(step), np.int8), [launch]),
                "step": step,
                "metric": text_column(metric, list(self.names)),
                "value": value,
            }
        )

    def wide(self) -> pd.DataFrame:
        """What is kept as a table: a row a step, ascending, and a column a metric; NaN where a step lacks it.

        Raises:
            DamagedLogError: the table would have more than `METRIC_LIMIT` columns, or more than `CELL_LIMIT` cells; or
                the file holds the step lines of two runs in turn.
        """
        layouts, steps, order, undone = self._rows()
        distinct, place = np.unique(steps[~undone], return_inverse=True)
        # Of each metric: where in the steps and when its values were read, and the values.
        found: dict[int, list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Any]]] = {}
        first = done_before = 0
        for layout in layouts:
            rows = slice(first, first + len(layout.steps))
            done = ~undone[rows]
            places = place[done_before : done_before + int(done.sum())]
            when, values = order[rows][done], layout.table()
            if self.out_of_order >= FALLS_IN_TURN:
                self._refuse_in_turn(layout, order[rows], done)
            for column, metric in enumerate(layout.metrics.tolist() if len(places) else ()):
                found.setdefault(metric, []).append((places, when, (values, done, column)))
            first, done_before = rows.stop, done_before + len(places)
        if len(found) > METRIC_LIMIT or len(distinct) * len(found) > CELL_LIMIT:
            raise DamagedLogError(
                f"{len(found):,} metrics in {len(distinct):,} steps are too many: a metric needs one name in all steps"
            )
        names = list(self.names)
        cells = np.full((len(found), len(distinct)), np.nan)
        for row, parts in zip(cells, found.values(), strict=True):
            where, when = (joined([part[at] for part in parts]) for at in (0, 1))
            numbers = np.concatenate([values[done, column] for _, _, (values, done, column) in parts])
            # The last value of a step counts.
            ranked = np.argsort(when) if len(parts) > 1 else slice(None)
            row[where[ranked]] = numbers[ranked]
        return pd.DataFrame(cells.T, distinct, [names[metric] for metric in found], copy=False)

    def values_outside(self, least: float, most: float, of_kind: Callable[[str], bool]) -> tuple[int, list[OddValue]]:
        """The values of metrics that are not between two, NaN among them.

        Args:
            least: the lowest value that counts.
            most: the highest one.
            of_kind: which metrics are looked at, by name.

        Returns:
            How many there are, and the first few of them.
        """
        layouts, steps, _, undone = self._rows()
        names = list(self.names)
        count, first = 0, 0
        odd: list[OddValue] = []
        for layout in layouts:
            values = layout.table()
            done = ~undone[first : first + len(values)]
            for column, metric in enumerate(layout.metrics.tolist()):
                if of_kind(names[metric]):
                    number = values[:, column]
                    rows = np.flatnonzero(done & ~((number >= least) & (number <= most)))
                    count += len(rows)
                    odd += [
                        OddValue(layout.lines[row], int(steps[first + row]), names[metric], float(number[row]))
                        for row in rows[:ODD_KEPT].tolist()
                    ]
            first += len(values)
        return count, sorted(odd, key=lambda value: (value.line, value.step))[:ODD_KEPT]

    def _rows(
        self,
    ) -> tuple[list[LineLayout], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """The layouts of which something is kept; of their rows, one after the other: step, order, whether undone."""
        layouts = [layout for layout in self._layouts.values() if layout.kept]
        steps = joined([np.frombuffer(layout.steps, np.int64) for layout in layouts])
        order = joined([np.frombuffer(layout.order, np.int64) for layout in layouts])
        # Before the first standing restart nothing is undone.
        begins = np.array([0, *(restart.order for restart in self.standing)])
        return layouts, steps, order, order < begins[np.searchsorted([r.step for r in self.standing], steps, "right")]


def _at(line: int) -> str:
    """A line of the file, to begin a message; nothing where the format has no lines."""
    return f"line {line:,}: " if line else ""
