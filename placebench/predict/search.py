"""The fastest placements of a job on given devices: every one that there is, looked at as far as it needs.

A layout says which roles share a pool, how many devices share an engine and by how much weights may be older; the
allocations of a layout give each pool as many devices as its roles can be on, and may leave devices over. Nothing is
taken for granted of how times change with devices: more may be slower, and so fewer may be best.

All allocations of a layout are bounded at once: a step takes no less than its phases one after the other along what
waits for what, whether for an input or for its pool, and without overlap no less than all phases together; to these
comes what every step takes beside its phases. While pools get their devices one by one, those to come count with the
shortest times they could have, so that what cannot be among the fastest any more is left out early. The rest is walked,
lowest bound first, until no bound is below the fastest walk. So what is found is the fastest of all by the model, not a
good one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, combinations
from math import inf
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from placebench.predict.layouts import OVERLAPS, PoolLayout, SearchSpace, layouts, placed
from placebench.spec.phases import GEN, UPDATE_WEIGHTS, Phase
from placebench.spec.placement import Overlap, Placement, Role

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_ROUNDING = 1e-9


class Seconds(Protocol):
    """What a phase or a step takes."""

    @property
    def seconds(self) -> float:
        """Of its whole."""


class StepTimes(Protocol):
    """What a search asks; `step.StepModel` answers it."""

    def sizes(self, roles: tuple[Role, ...], *, tensor_parallel: int = 1) -> Sequence[int]:
        """The numbers of devices that a pool with these roles can have."""

    def graph(self, placement: Placement) -> Sequence[Phase]:
        """The phases of its step with what they wait for."""

    def phase_seconds(self, phase: str, devices: int, tensor_parallel: int) -> float:
        """What a phase takes on a pool of so many devices."""

    def gap_seconds(self, placement: Placement) -> float:
        """What a step takes beside its phases, by how many pools there are, whatever their devices."""

    def step(self, placement: Placement) -> Seconds:
        """What a step takes: the phases walked, and what it takes beside them."""


@dataclass(frozen=True)
class Candidate:
    """A placement with what its step takes."""

    placement: Placement
    seconds: float
    moved: int
    """Devices that get roles which they do not have in the placement that there is now."""


@dataclass(frozen=True)
class SearchResult:
    """The fastest placements."""

    best: Candidate | None
    """The fastest; None where no placement can be."""
    ties: tuple[Candidate, ...]
    """All that are within the tie of the best, itself among them, or of these the first of each layout: fewest devices
    moved first, then fewest pools, then fewest devices."""
    bounded: int
    """Allocations of which at least a part was bounded."""
    walked: int
    """Placements whose step was walked."""


def search(
    steps: StepTimes,
    space: SearchSpace,
    *,
    tie: float = 0.0,
    now: Placement | None = None,
    per_layout: int | None = None,
) -> SearchResult:
    """Find the fastest placements.

    Args:
        steps: what phases and steps take.
        space: which placements there are.
        tie: by how much a step may be longer than the fastest and still count as a tie, a fraction of it.
        now: the placement that there is now; None counts none of its devices as moved.
        per_layout: the most ties of each layout that are listed; None for all.
    """
    state = _Search(steps, space, tie)
    founds = [_bounded(state, layout) for layout in sorted(layouts(space), key=lambda one: len(one.pools))]
    rows = _rows(founds, now)
    best: Candidate | None = None
    for number in np.argsort(rows.bounds, kind="stable"):
        if best and rows.bounds[number] >= best.seconds * (1 - _ROUNDING):
            break
        one = _candidate(state, founds, rows, number)
        if one and (best is None or one.seconds < best.seconds):
            best = one
    near = np.flatnonzero(rows.bounds <= state.limit)
    order = near[np.lexsort([key[near] for key in (rows.bounds, rows.overlaps, rows.used, rows.pools, rows.moved)])]
    ties = tuple(_ties(state, founds, rows, order, per_layout)) if best else ()
    return SearchResult(best, ties, state.bounded, len(state.walked))


@dataclass
class _Search:
    """What is known while a search goes on."""

    steps: StepTimes
    space: SearchSpace
    tie: float
    best: float = inf
    bounded: int = 0
    walked: dict[tuple[PoolLayout, tuple[int, ...], Overlap], tuple[Placement, float] | None] = field(
        default_factory=dict
    )
    _sizes: dict[tuple[tuple[Role, ...], int], Counts] = field(default_factory=dict)
    _graphs: dict[tuple[int, bool], tuple[Phase, ...]] = field(default_factory=dict)

    def graph(self, placement: Placement) -> tuple[Phase, ...]:
        """The phases of a placement's step."""
        key = placement.staleness, placement.has_engines
        if key not in self._graphs:
            self._graphs[key] = tuple(self.steps.graph(placement))
        return self._graphs[key]

    def sizes(self, roles: tuple[Role, ...], shared_by: int) -> Counts:
        """The numbers of devices that a pool can have, no more than there are."""
        key = (roles, shared_by if Role.ROLLOUT in roles else 1)
        if key not in self._sizes:
            found = self.steps.sizes(roles, tensor_parallel=key[1])
            self._sizes[key] = np.array([size for size in found if size <= self.space.devices], dtype=np.int64)
        return self._sizes[key]

    def walk(self, layout: PoolLayout, counts: Counts, overlap: Overlap) -> tuple[Placement, float] | None:
        """A placement and its step, walked; None where its pools cannot lie on the nodes."""
        sizes = tuple(map(int, counts))
        key = (layout, sizes, overlap)
        if key not in self.walked:
            placement = placed(layout, sizes, overlap, self.space.nodes)
            found = (placement, self.steps.step(placement).seconds) if placement else None
            self.walked[key] = found
            self.best = min(self.best, found[1] if found else inf)
        return self.walked[key]

    @property
    def limit(self) -> float:
        """What is above cannot be among the fastest."""
        return self.best * (1 + self.tie) * (1 + _ROUNDING)


@dataclass
class _Found:
    """The allocations of a layout that may be among the fastest."""

    layout: PoolLayout
    counts: Counts
    """Devices of each pool, shape (allocations, pools)."""
    bounds: tuple[Array, ...]
    """By overlap of the layout: the least seconds that a step may take, shape (allocations,)."""


def _bounded(state: _Search, layout: PoolLayout) -> _Found:
    """The allocations of a layout whose bound leaves them among the fastest; the fastest by it is walked at once."""
    graph = state.graph(layout.placement)
    columns = [_column(state, layout, graph, pool) for pool in layout.pools]
    least_left = sum(int(column.sizes.min()) for column in columns if len(column.sizes))
    if least_left > state.space.devices or not all(len(column.sizes) for column in columns):
        return _Found(layout, np.zeros((0, len(columns)), dtype=np.int64), (np.zeros(0),) * len(layout.overlaps))
    bound = partial(_bound, layout, _waiting(graph, layout), state.steps.gap_seconds(layout.placement))
    # Pools whose work needs most devices first: they leave least of what could be. The controller needs none.
    order = sorted(range(len(columns)), key=lambda pool: -int(columns[pool].sizes.min()))
    columns.append(_column(state, layout, graph, ()))
    chosen: dict[int, Counts] = {len(order): np.zeros(1, dtype=np.int64)}
    used = np.zeros(1, dtype=np.int64)
    for pool in order:
        column = columns[pool]
        least_left -= int(column.sizes.min())
        rows, sizes = np.divmod(np.arange(len(used) * len(column.sizes)), len(column.sizes))
        kept = used[rows] + column.sizes[sizes] + least_left <= state.space.devices
        rows, sizes = rows[kept], sizes[kept]
        state.bounded += len(rows)
        chosen = {one: index[rows] for one, index in chosen.items()} | {pool: sizes}
        used = used[rows] + column.sizes[sizes]
        kept = bound(_times(columns, chosen), Overlap.ALL) <= state.limit
        chosen, used = {one: index[kept] for one, index in chosen.items()}, used[kept]
    times = _times(columns, chosen)
    counts = [column.sizes[chosen[pool]] for pool, column in enumerate(columns[:-1])]
    found = _Found(layout, np.stack(counts, axis=1), tuple(bound(times, overlap) for overlap in layout.overlaps))
    if len(found.counts) and found.bounds[0].min() < state.best * (1 - _ROUNDING):
        state.walk(layout, found.counts[found.bounds[0].argmin()], layout.overlaps[0])
    return found


@dataclass(frozen=True)
class _Column:
    """A pool at each number of devices that it may have."""

    sizes: Counts
    times: Mapping[str, Array]
    """By phase that runs there, in seconds, like `sizes`."""


def _column(state: _Search, layout: PoolLayout, graph: Sequence[Phase], roles: tuple[Role, ...]) -> _Column:
    """A pool at all numbers of devices at which its own work may be among the fastest; without roles the controller."""
    shared_by = layout.tensor_parallel
    sizes = state.sizes(roles, shared_by) if roles else np.zeros(1, dtype=np.int64)
    times = {
        phase.name: np.array([state.steps.phase_seconds(phase.name, int(size), shared_by) for size in sizes])
        for phase in graph
        if (phase.role in roles if phase.role else not roles)
    }
    work = sum(seconds for name, seconds in times.items() if not (layout.runs_ahead and name == UPDATE_WEIGHTS))
    kept = work + state.steps.gap_seconds(layout.placement) <= np.full(len(sizes), state.limit)
    return _Column(sizes[kept], {name: seconds[kept] for name, seconds in times.items()})


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


def _times(columns: Sequence[_Column], chosen: Mapping[int, Counts]) -> dict[str, Array]:
    """Seconds of every phase of allocations: where a pool has no devices yet, the least that it could take."""
    return {
        name: seconds[chosen[pool]] if pool in chosen else seconds.min(keepdims=True)
        for pool, column in enumerate(columns)
        for name, seconds in column.times.items()
    }


def _bound(
    layout: PoolLayout, graph: Sequence[Phase], gap: float, times: Mapping[str, Array], overlap: Overlap
) -> Array:
    """Seconds below which no step of a layout can be.

    Args:
        layout: of the step.
        graph: its phases with what they wait for in any case.
        gap: seconds of the step beside its phases.
        times: of each phase.
        overlap: of the layout's, that the step is to have.
    """
    ends: dict[str, Array] = {}
    training: dict[str, Array] = {}
    alone = np.zeros(1)
    for phase in graph:
        seconds = times[phase.name]
        starts = [ends[name] for name in phase.after]
        ends[phase.name] = seconds + np.maximum.reduce(np.broadcast_arrays(*starts)) if starts else seconds
        if overlap is Overlap.UPDATES and phase.trains and phase.role:
            pool = layout.placement.roles[phase.role]
            training[pool] = training.get(pool, 0.0) + seconds
        elif overlap is not Overlap.ALL:
            alone = alone + seconds
    bounds = [*ends.values(), *(alone + one for one in training.values()), alone]
    if layout.runs_ahead:
        bounds.append(times[GEN])
    least: Array = np.maximum.reduce(np.broadcast_arrays(*bounds)) + gap
    return least


@dataclass(frozen=True)
class _Rows:
    """All candidates, in columns."""

    layouts: Counts
    """Index of the layout."""
    allocations: Counts
    """Index of the allocation in it."""
    overlaps: Counts
    """Index in `OVERLAPS`."""
    bounds: Array
    moved: Counts
    pools: Counts
    used: Counts


def _rows(founds: Sequence[_Found], now: Placement | None) -> _Rows:
    columns: list[list[NDArray[np.generic]]] = [[] for _ in range(7)]
    for index, found in enumerate(founds):
        count = len(found.counts)
        moved, used = _moved(found, now), found.counts.sum(axis=1)
        for overlap, bounds in zip(found.layout.overlaps, found.bounds, strict=True):
            values = (
                np.full(count, index),
                np.arange(count),
                np.full(count, OVERLAPS.index(overlap)),
                bounds,
                moved,
                np.full(count, len(found.layout.pools)),
                used,
            )
            for column, value in zip(columns, values, strict=True):
                column.append(value)
    empty = [np.zeros(0, dtype=np.int64)]
    return _Rows(*(np.concatenate(column or empty) for column in columns))


def _moved(found: _Found, now: Placement | None) -> Counts:
    """Devices that get a role which they do not have now, where pools lie so that these are fewest.

    A device can stay as it is in a pool whose roles it all has now. By Hall's theorem, in the form with a deficiency
    (Ore 1955), as many cannot as any pools together have more devices than there are now that could stay in them.
    """
    moved: Counts = np.zeros(len(found.counts), dtype=np.int64)
    if now is None:
        return moved
    there = [(set(now.roles_in(pool.name)), pool.size) for pool in now.pools]
    numbers = range(len(found.layout.pools))
    for chosen in chain.from_iterable(combinations(numbers, count) for count in range(1, len(numbers) + 1)):
        wanted = [set(found.layout.pools[number]) for number in chosen]
        staying = sum(size for roles, size in there if any(one <= roles for one in wanted))
        moved = np.maximum(moved, found.counts[:, chosen].sum(axis=1) - staying)
    return moved


def _candidate(state: _Search, founds: Sequence[_Found], rows: _Rows, number: int) -> Candidate | None:
    """A row's placement with its step; None where its pools cannot lie on the nodes."""
    found = founds[rows.layouts[number]]
    walked = state.walk(found.layout, found.counts[rows.allocations[number]], OVERLAPS[rows.overlaps[number]])
    return Candidate(*walked, int(rows.moved[number])) if walked else None


def _ties(
    state: _Search, founds: Sequence[_Found], rows: _Rows, order: Iterable[int], per_layout: int | None
) -> Iterator[Candidate]:
    """Those within the tie in this order, each allocation of a layout with one overlap."""
    listed: dict[tuple[object, ...], int] = {}
    seen: set[tuple[int, int]] = set()
    for number in order:
        kind = founds[rows.layouts[number]].layout.kind
        allocation = (int(rows.layouts[number]), int(rows.allocations[number]))
        if allocation in seen or (per_layout is not None and listed.get(kind, 0) >= per_layout):
            continue
        one = _candidate(state, founds, rows, number)
        if one and one.seconds <= state.limit:
            seen.add(allocation)
            listed[kind] = listed.get(kind, 0) + 1
            yield one
