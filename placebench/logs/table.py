"""The compact store that readers fill: steps and their metrics, the last value of each."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa


@dataclass
class Layout:
    """The rows of all step lines that have the same metrics in the same order.

    Attributes:
        kept: which of the line's metrics are stored, by position.
        metrics: number of each stored metric in the table.
        steps: step of each row.
        order: when each row was read last, counted in step lines.
        values: the stored values, row after row.
    """

    kept: tuple[int, ...]
    metrics: npt.NDArray[np.int32]
    steps: array[int] = field(default_factory=lambda: array("q"))
    order: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    rows: dict[int, int] = field(default_factory=dict)


class StepTable:
    """Steps and metrics of one log, in the memory of what is kept: eight bytes a value.

    A step that is printed again replaces what it replaces and leaves the rest: per step and metric the last
    value wins. So a step line that two streams both caught counts once, a validation line of its own adds to its
    step, and after a restart from a checkpoint the steps that were done again are those of the restart.

    Attributes:
        lines: step lines read.
        replaced: step lines that replaced an earlier one with the same metrics.
        names: every metric seen, kept or not.
    """

    def __init__(self, keep: Callable[[str], bool] | None = None) -> None:
        self.lines = 0
        self.replaced = 0
        self.names: dict[str, int] = {}
        self._keep = keep
        self._layouts: dict[tuple[str, ...], Layout] = {}

    def layout(self, names: Sequence[str]) -> Layout:
        """The layout of a line with these metrics; a name that stands twice is stored from its last place."""
        key = tuple(names)
        known = self._layouts.get(key)
        if known is not None:
            return known
        for name in key:
            self.names.setdefault(name, len(self.names))
        last = {name: place for place, name in enumerate(key)}
        kept = tuple(sorted(place for name, place in last.items() if self._keep is None or self._keep(name)))
        new = Layout(kept, np.array([self.names[key[place]] for place in kept], np.int32))
        self._layouts[key] = new
        return new

    def add_row(self, layout: Layout, step: int, values: list[float]) -> None:
        """Store the kept values of one step line."""
        row = layout.rows.get(step)
        if row is None:
            layout.rows[step] = len(layout.steps)
            layout.steps.append(step)
            layout.order.append(self.lines)
            layout.values.fromlist(values)
        else:
            width = len(layout.kept)
            self.replaced += 1
            layout.order[row] = self.lines
            layout.values[row * width : (row + 1) * width] = array("d", values)
        self.lines += 1

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Store one step's metrics."""
        layout = self.layout(tuple(metrics))
        values = list(metrics.values())
        self.add_row(layout, step, [values[place] for place in layout.kept])

    def frame(self, launch: str) -> pd.DataFrame:
        """What is kept as a tidy frame, by step and in the order of printing.

        Returns:
            Columns launch (str), step (int64), metric (str) and value (float64).
        """
        layouts = [layout for layout in self._layouts.values() if layout.kept]
        steps = _joined([np.frombuffer(layout.steps, np.int64) for layout in layouts])
        order = _joined([np.frombuffer(layout.order, np.int64) for layout in layouts])
        widths = _joined([np.full(len(layout.steps), len(layout.kept)) for layout in layouts])
        ranked = np.lexsort((order, steps))
        ends = np.cumsum(widths[ranked])
        starts = np.empty_like(ends)
        starts[ranked] = ends - widths[ranked]
        total = int(ends[-1]) if len(ends) else 0
        metric, value = np.empty(total, np.int32), np.empty(total, np.float64)
        first = 0
        for layout in layouts:
            rows, width = len(layout.steps), len(layout.kept)
            places = starts[first : first + rows, None] + np.arange(width)
            metric[places] = layout.metrics
            value[places] = np.frombuffer(layout.values, np.float64).reshape(rows, width)
            first += rows
        step = np.repeat(steps[ranked], widths[ranked])
        last = _last_of_each(step, metric, steps)
        if last is not None:
            step, metric, value = step[last], metric[last], value[last]
        return pd.DataFrame(
            {
                "launch": _text(np.zeros(len(step), np.int8), [launch]),
                "step": step,
                "metric": _text(metric, list(self.names)),
                "value": value,
            }
        )


def _joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _last_of_each(
    step: npt.NDArray[np.int64], metric: npt.NDArray[np.int32], steps: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_] | None:
    """Mask of the last value of each step and metric; None where no step comes from two rows."""
    distinct, counts = np.unique(steps, return_counts=True)
    if not (counts > 1).any():
        return None
    keep = np.ones(len(step), np.bool_)
    shared = np.flatnonzero(np.isin(step, distinct[counts > 1]))
    cells = pd.DataFrame({"step": step[shared], "metric": metric[shared]})
    keep[shared[cells.duplicated(keep="last").to_numpy()]] = False
    return keep


def _text(codes: npt.NDArray[Any], names: Sequence[str]) -> pd.Series[str]:
    """The names that codes stand for, in the string type of the pandas at hand, without a Python object a row."""
    # Lone surrogates, from a JSON escape or a file name that is no UTF-8, are no text.
    names = [name.encode("utf-8", "replace").decode() for name in names]
    dtype = pd.Series(["a"]).dtype
    if isinstance(dtype, pd.StringDtype):
        text = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names, pa.large_string()))
        return pd.Series(pd.array(text.cast(pa.large_string()), dtype=dtype))
    return pd.Series(np.array([*names, ""], dtype=object)[codes], dtype=object)
