"""Sets of time as arrays of intervals, shape (n, 2): start and end in seconds.

A *disjoint* array is sorted, its intervals neither touch nor overlap, and none is empty.
"""

import numpy as np
from numpy.typing import NDArray

Intervals = NDArray[np.float64]


def union(intervals: Intervals) -> Intervals:
    """All time that is in any of the intervals, disjoint."""
    kept = intervals[intervals[:, 1] > intervals[:, 0]]
    if not len(kept):
        return kept
    kept = kept[np.argsort(kept[:, 0], kind="stable")]
    latest = np.maximum.accumulate(kept[:, 1])
    opens = np.append(True, kept[1:, 0] > latest[:-1])
    closes = np.append(opens[1:], True)
    return np.column_stack([kept[opens, 0], latest[closes]])


def subtract(disjoint: Intervals, other: Intervals) -> Intervals:
    """The time of a disjoint array that is in no interval of another disjoint array."""
    if not len(disjoint) or not len(other):
        return disjoint
    edges = np.unique(np.concatenate([disjoint.ravel(), other.ravel()]))
    pieces = np.column_stack([edges[:-1], edges[1:]])
    middle = pieces.mean(axis=1)
    return union(pieces[contains(disjoint, middle) & ~contains(other, middle)])


def contains(disjoint: Intervals, times: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether each time lies in a disjoint array: start included, end not."""
    return np.asarray(np.searchsorted(disjoint.ravel(), times, side="right") % 2 == 1)


def covered(queries: Intervals, by: Intervals) -> NDArray[np.float64]:
    """Seconds of each query interval, shape (n,), that lie in a disjoint array; queries may overlap."""
    if not len(by):
        return np.zeros(len(queries))
    edges = by.ravel()
    inside = np.diff(edges) * (np.arange(len(edges) - 1) % 2 == 0)
    spent = np.concatenate([[0.0], np.cumsum(inside)])
    return np.asarray(np.interp(queries[:, 1], edges, spent) - np.interp(queries[:, 0], edges, spent))


def length(disjoint: Intervals) -> float:
    """Seconds in a disjoint array."""
    return float((disjoint[:, 1] - disjoint[:, 0]).sum())
