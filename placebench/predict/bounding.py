"""The least seconds that steps of a layout may take, of all allocations of devices to its pools at once.

A step takes no less than its phases one after the other along what waits for what, whether for an input or for its
pool, and without overlap no less than all phases together; to these comes what every step takes beside its phases. With
engines that run ahead it takes no less than the slowest of the cycles of `walk`: generation and taking new weights,
training and sending them, and all of these in one more step than weights may be old. (These engines wait for new
weights: nothing that is searched lets them go on meanwhile.)

While pools get their devices one by one, those to come count with the shortest times they could have, so that what
cannot be among the fastest any more is left out early.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from placebench.predict.layouts import PoolLayout
from placebench.spec.phases import GEN, UPDATE_ACTOR, UPDATE_WEIGHTS, Phase
from placebench.spec.placement import Overlap

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

# Allocations that are bounded at once: so many that their arrays stay in the processor's cache.
_AT_ONCE = 1 << 15


@dataclass(frozen=True)
class Column:
    """A pool at each number of devices that it may have."""

    sizes: Counts
    times: Mapping[str, Array]
    """By phase that runs there, in seconds, like `sizes`."""

    def where(self, kept: NDArray[np.bool_]) -> "Column":
        """At some of the numbers."""
        return Column(self.sizes[kept], {name: seconds[kept] for name, seconds in self.times.items()})

    @property
    def work(self) -> Array:
        """Seconds of all of its phases."""
        return sum(self.times.values(), np.zeros(len(self.sizes)))


@dataclass(frozen=True)
class Allocations:
    """Allocations of layouts that differ in staleness alone, with what bounds their steps."""

    counts: Counts
    """Devices of each pool, shape (allocations, pools)."""
    least: Array
    """The least seconds of a step's phases, whatever its staleness, shape (allocations,)."""
    around: Array
    """Of engines that run ahead, the least seconds from generation to generation on weights that follow from it, else
    0; likewise."""
    alone: Mapping[Overlap, Array]
    """The least seconds of a step's phases that this overlap lets not run side by side; likewise."""
    gap: float
    """Seconds of a step beside its phases."""

    def bounds(self, layout: PoolLayout, overlap: Overlap) -> Array:
        """The least seconds of a step of one of the layouts with an overlap."""
        beside = self.around / (layout.placement.staleness + 1) if overlap is Overlap.ALL else self.alone[overlap]
        return np.maximum(self.least, beside) + self.gap

    @staticmethod
    def none_of(layout: PoolLayout) -> "Allocations":
        """None at all."""
        nothing, counts = np.zeros(0), np.zeros((0, len(layout.pools)), dtype=np.int64)
        return Allocations(counts, nothing, nothing, dict.fromkeys(layout.overlaps, nothing), 0.0)


class Bounding:
    """Bounds all allocations of layouts that differ in staleness alone, be it above 0 or 0.

    Args:
        layout: of them the one of the highest staleness, whose steps are the shortest.
        graph: its phases.
        gap: seconds of a step beside its phases.
    """

    def __init__(self, layout: PoolLayout, graph: Sequence[Phase], gap: float) -> None:
        self._layout, self._gap = layout, gap
        self._graph = _waiting(graph, layout)
        self.bounded = 0
        """Allocations of which at least a part was bounded."""

    def within(
        self, limit: float, columns: Sequence[Column], controller: Column, room: Sequence[tuple[Sequence[int], int]]
    ) -> Allocations:
        """All allocations whose bound is not above a limit.

        Args:
            limit: in seconds.
            columns: the layout's pools.
            controller: what runs in none of them.
            room: pools, and how many devices these have together at most.
        """
        columns = [one.where(one.work + self._gap <= limit) for one in columns]
        if not all(len(one.sizes) for one in columns):
            return Allocations.none_of(self._layout)
        fewest = [int(one.sizes.min()) for one in columns]
        # Pools whose work needs most devices first: they leave least of what could be.
        order = sorted(range(len(columns)), key=lambda pool: -fewest[pool])
        to_come = [{name: one.min(keepdims=True) for name, one in column.times.items()} for column in columns]
        chosen: dict[int, Counts] = {}
        least, around = np.zeros(1), np.zeros(1)
        for at, pool in enumerate(order):
            later, column = order[at + 1 :], columns[pool]
            fixed = {
                name: one
                for times in (controller.times, *(to_come[one] for one in later))
                for name, one in times.items()
            }
            left = np.full(len(least), np.iinfo(np.int64).max)
            for pools, most in room:
                if pool in pools:
                    others = sum(columns[one].sizes[index] for one, index in chosen.items() if one in pools)
                    left = np.minimum(left, most - sum(fewest[one] for one in later if one in pools) - others)
            going = np.flatnonzero(left >= fewest[pool])
            found = []
            for rows in np.array_split(going, -(-len(going) * len(column.sizes) // _AT_ONCE)) if len(going) else []:
                before = {
                    name: one[index[rows], None]
                    for other, index in chosen.items()
                    for name, one in columns[other].times.items()
                }
                fits = column.sizes <= left[rows, None]
                self.bounded += int(np.count_nonzero(fits))
                part = self._least({**fixed, **before, **column.times})
                fits &= self._bound(*part) <= limit
                row, size = np.nonzero(fits)
                found.append((rows[row], size, *(np.broadcast_to(one, fits.shape)[row, size] for one in part)))
            if not found:
                return Allocations.none_of(self._layout)
            row, size, least, around = (np.concatenate(one) for one in zip(*found, strict=True))
            chosen = {other: index[row] for other, index in chosen.items()} | {pool: size}
        counts = np.stack([columns[pool].sizes[chosen[pool]] for pool in range(len(columns))], axis=1)
        alone: dict[Overlap, Array] = {
            overlap: self._alone(overlap, columns, controller, chosen)
            for overlap in self._layout.overlaps
            if overlap is not Overlap.ALL
        }
        return Allocations(counts, least, around, alone, self._gap)

    def _bound(self, least: Array, around: Array) -> Array:
        beside = around / (self._layout.placement.staleness + 1)
        return (np.maximum(least, beside) if self._layout.runs_ahead else least) + self._gap

    def _least(self, times: Mapping[str, Array]) -> tuple[Array, Array]:
        """The least seconds of phases with full overlap, and those of the way around; of each as few axes as it needs.

        Args:
            times: of each phase.
        """
        ends, inputs = dict[str, Array](), set[str]()
        for phase in self._graph:
            after = [ends[name] for name in phase.after]
            inputs.update(phase.after)
            ends[phase.name] = reduce(np.maximum, after, np.zeros(1)) + times[phase.name]
        # What nothing waits for ends last.
        training = reduce(np.maximum, (end for name, end in ends.items() if name not in inputs), np.zeros(1))
        if not self._layout.runs_ahead:
            return training, np.zeros(1)
        gen, update = (times.get(name, np.zeros(1)) for name in (GEN, UPDATE_WEIGHTS))
        sends_from = ends.get(UPDATE_ACTOR, training)
        return reduce(np.maximum, (training, sends_from + update, gen + update)), gen + training + update

    def _alone(
        self, overlap: Overlap, columns: Sequence[Column], controller: Column, chosen: Mapping[int, Counts]
    ) -> Array:
        """The least seconds of phases of which none runs beside another one, or updates alone beside each other."""
        beside = {phase.name for phase in self._graph if overlap is Overlap.UPDATES and phase.trains and phase.role}
        alone = sum((one[0] for one in controller.times.values()), 0.0)
        longest: Array = np.zeros(1)
        for pool, column in enumerate(columns):
            parts = np.zeros((2, len(column.sizes)))
            for name, seconds in column.times.items():
                parts[int(name in beside)] += seconds
            alone = alone + parts[0][chosen[pool]]
            longest = np.maximum(longest, parts[1][chosen[pool]])
        return np.asarray(alone + longest)


def _waiting(graph: Sequence[Phase], layout: PoolLayout) -> tuple[Phase, ...]:
    """The phases with all that they wait for in any case: their inputs, and phases of their pool that come before.

    A pool takes the first of its phases whose inputs are there. So a phase whose inputs are there whenever another one
    of the pool begins, and which stands before it, is done by then. Only an update may begin before a phase that
    stands before it, where nothing but updates may overlap. Of engines that run ahead, generation and sending weights
    are left out, for they go on beside all else.
    """
    pool_of = layout.placement.roles
    if layout.runs_ahead:
        ahead = {GEN, UPDATE_WEIGHTS}
        graph = [
            replace(one, after=tuple(name for name in one.after if name not in ahead))
            for one in graph
            if one.name not in ahead
        ]
    inputs = {phase.name: phase.after for phase in graph}
    done: dict[str, set[str]] = {}
    found: list[Phase] = []
    for phase in graph:
        after = list(phase.after)
        done[phase.name] = set(after).union(*(done[name] for name in after))
        for before in found:
            if (
                phase.role
                and before.role
                and pool_of[before.role] == pool_of[phase.role]
                and done[phase.name].issuperset(inputs[before.name])
                and (before.trains or not phase.trains)
            ):
                after.append(before.name)
                done[phase.name] |= {before.name, *done[before.name]}
        found.append(replace(phase, after=tuple(dict.fromkeys(after))))
    return tuple(found)
