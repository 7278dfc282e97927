"""The fastest placements of a job on given devices: every one that there is, looked at as far as it needs.

A layout says which roles share a pool, how many devices share an engine and by how much weights may be older; the
allocations of a layout give each pool as many devices as its roles can be on, and may leave devices over. Nothing is
taken for granted of how times change with devices: more may be slower, and so fewer may be best.

All allocations of a layout are bounded at once (`bounding`). What may be faster than the fastest walk is walked, lowest
bound first, until no bound is below it. Then, with a limit that is known, all that may be within the tie is bounded and
walked in the order in which ties are listed, of each layout until so many are found as are asked for. So what is found
is the fastest of all by the model, not a good one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, merge
from itertools import chain, combinations, groupby, islice
from math import ceil, inf
from typing import NamedTuple, Protocol

import numpy as np

from placebench.predict.bounding import Allocations, Array, Bounding, Column, Counts
from placebench.predict.layouts import OVERLAPS, PoolLayout, SearchSpace, layouts, more_nodes, placed
from placebench.spec.phases import Phase
from placebench.spec.placement import Overlap, Placement, Role

_ROUNDING = 1e-9
# Candidates that are sorted at first, and eight times as many each time that these were not enough.
_SORTED_AT_ONCE = 64
# The parts of the devices that ties may move at first, and that they may move more each time that there were too few.
_FIRST_PART, _NEXT_PART = 1 / 4, 1 / 8


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

    def phase_seconds(self, phase: str, devices: int, tensor_parallel: int, most_nodes: int) -> float:
        """The least that a phase takes on a pool of so many devices, which lie on so many nodes at most."""

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
    moved first, then fewest pools, then fewest devices, then most overlap, then fewest seconds."""
    bounded: int
    """Allocations of which at least a part was bounded."""
    walked: int
    """Placements whose step was walked."""


def search(
    steps: StepTimes,
    space: SearchSpace,
    *,
    tie: float | Callable[[Placement], float] = 0.0,
    now: Placement | None = None,
    per_layout: int | None = None,
) -> SearchResult:
    """Find the fastest placements.

    Args:
        steps: what phases and steps take.
        space: which placements there are.
        tie: by how much a step may be longer than the fastest and still count as a tie, a fraction of it; or what tells
            that of the fastest.
        now: the placement that there is now; None counts none of its devices as moved.
        per_layout: the most ties of each layout that are listed; None for all.
    """
    state = _Search(steps, space)
    families = _families(state)
    best = _fastest(state, families, now)
    if best is None:
        return SearchResult(None, (), _bounded_so_far(families), len(state.walked))
    state.tie = tie(best.placement) if callable(tie) else tie
    kinds: dict[object, list[_Family]] = {}
    for family in families:
        kinds.setdefault(family.layouts[0].kind, []).append(family)
    ties = [
        list(islice(_ties(state, kind, now, all_of_them=per_layout is None), per_layout)) for kind in kinds.values()
    ]
    ordered = tuple(one for _, one in sorted(chain.from_iterable(ties), key=lambda found: found[0]))
    return SearchResult(best, ordered, _bounded_so_far(families), len(state.walked))


def _bounded_so_far(families: Sequence["_Family"]) -> int:
    return sum(family.bounding.bounded for family in families)


@dataclass(frozen=True)
class _Family:
    """Layouts that differ in staleness alone, be it above 0 or 0: what is among the fastest is found of all at once."""

    layouts: tuple[PoolLayout, ...]
    """In the order of their staleness."""
    numbers: tuple[int, ...]
    """Which ones they are of all layouts."""
    bounding: Bounding
    """Bounds their allocations."""

    @property
    def fastest(self) -> PoolLayout:
        """The one whose steps are the shortest: the older weights may be, the less generation has to wait."""
        return self.layouts[-1]


@dataclass
class _Search:
    """What is known while a search goes on."""

    steps: StepTimes
    space: SearchSpace
    tie: float = 0.0
    best: float = inf
    walked: dict[tuple[PoolLayout, tuple[int, ...], Overlap], tuple[Placement, float] | None] = field(
        default_factory=dict
    )
    _sizes: dict[tuple[tuple[Role, ...], int], Counts] = field(default_factory=dict)
    _columns: dict[tuple[object, ...], Column] = field(default_factory=dict)
    _seconds: dict[tuple[str, int, int], dict[int, float]] = field(default_factory=dict)
    _graphs: dict[tuple[int, bool], tuple[Phase, ...]] = field(default_factory=dict)

    def graph(self, placement: Placement) -> tuple[Phase, ...]:
        """The phases of a placement's step."""
        key = placement.staleness, placement.has_engines
        if key not in self._graphs:
            self._graphs[key] = tuple(self.steps.graph(placement))
        return self._graphs[key]

    def sizes(self, roles: tuple[Role, ...], shared_by: int) -> Counts:
        """The numbers of devices that a pool can have, no more than there are; 0 without roles."""
        key = (roles, shared_by if Role.ROLLOUT in roles else 1)
        if key not in self._sizes:
            found = self.steps.sizes(roles, tensor_parallel=key[1]) if roles else (0,)
            self._sizes[key] = np.array([size for size in found if size <= self.space.devices], dtype=np.int64)
        return self._sizes[key]

    def column(self, layout: PoolLayout, roles: tuple[Role, ...]) -> Column:
        """A pool at all numbers of devices that it can have; without roles the controller."""
        shared_by = layout.tensor_parallel if Role.ROLLOUT in roles else 1
        graph, more = self.graph(layout.placement), more_nodes(layout, self.space.nodes)
        key = (roles, shared_by, more, layout.placement.staleness, layout.placement.has_engines)
        if key not in self._columns:
            sizes = self.sizes(roles, shared_by)
            names = [one.name for one in graph if (one.role in roles if one.role else not roles)]
            self._columns[key] = Column(sizes, {name: self._times(name, sizes, shared_by, more) for name in names})
        return self._columns[key]

    def _times(self, phase: str, sizes: Counts, shared_by: int, more: int) -> Array:
        """Seconds of a phase, like `sizes`: the same in all pools that it can be in, whatever else is there."""
        known, nodes = self._seconds.setdefault((phase, shared_by, more), {}), self.space.nodes
        for size in sizes.tolist():
            if size not in known:
                most = min(len(nodes), -(-size // nodes[0]) + more)
                known[size] = self.steps.phase_seconds(phase, size, shared_by, most)
        return np.array([known[size] for size in sizes.tolist()], dtype=np.float64)

    def bounding(self, layout: PoolLayout) -> Bounding:
        """What bounds the allocations of a layout and of those that are but of a lower staleness."""
        return Bounding(layout, self.graph(layout.placement), self.steps.gap_seconds(layout.placement))

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


def _families(state: _Search) -> list[_Family]:
    """All layouts, those of fewest pools first."""
    found: dict[tuple[object, ...], list[tuple[int, PoolLayout]]] = {}
    for number, one in enumerate(sorted(layouts(state.space), key=lambda one: len(one.pools))):
        key = (one.kind, one.tensor_parallel, one.overlaps, one.placement.staleness > 0)
        found.setdefault(key, []).append((number, one))
    return [
        _Family(tuple(one for _, one in family), tuple(number for number, _ in family), state.bounding(family[-1][1]))
        for family in found.values()
    ]


@dataclass(frozen=True)
class _Rows:
    """Allocations of a layout with an overlap that may be among the fastest."""

    layout: PoolLayout
    number: int
    """Which one it is of all layouts."""
    overlap: Overlap
    allocations: Allocations
    rows: Counts
    """Which of the allocations."""
    bounds: Array
    """The least seconds of a step of each of these."""


def _bounded(state: _Search, family: _Family, room: Sequence[tuple[Sequence[int], int]] = ()) -> list[_Rows]:
    """What of a family may be among the fastest by its bound; the fastest by it is walked at once.

    Args:
        state: of the search.
        family: the layouts.
        room: pools of theirs, and how many devices these have together at most.
    """
    layout = family.fastest
    columns = [state.column(layout, pool) for pool in layout.pools]
    whole = (range(len(layout.pools)), state.space.devices)
    allocations = family.bounding.within(state.limit, columns, state.column(layout, ()), (whole, *room))
    if len(allocations.counts):
        bounds = allocations.bounds(layout, layout.overlaps[0])
        if bounds.min() < state.best * (1 - _ROUNDING):
            state.walk(layout, allocations.counts[bounds.argmin()], layout.overlaps[0])
    found = []
    for number, one in zip(family.numbers, family.layouts, strict=True):
        for overlap in one.overlaps:
            bounds = allocations.bounds(one, overlap)
            near = np.flatnonzero(bounds <= state.limit)
            found.append(_Rows(one, number, overlap, allocations, near, bounds[near]))
    return found


def _fastest(state: _Search, families: Sequence[_Family], now: Placement | None) -> Candidate | None:
    """The fastest placement: walked from the lowest bound on, until none is below what was walked."""
    found = [rows for family in families for rows in _bounded(state, family)]
    found.sort(key=lambda rows: rows.number)
    starts = np.cumsum([0, *(len(rows.rows) for rows in found)])
    bounds = np.concatenate([np.zeros(0), *(rows.bounds for rows in found)])
    best: Candidate | None = None
    for place in np.argsort(bounds, kind="stable"):
        if best and bounds[place] >= best.seconds * (1 - _ROUNDING):
            break
        at = int(np.searchsorted(starts, place, side="right")) - 1
        rows, number = found[at], found[at].rows[place - starts[at]]
        counts = rows.allocations.counts[number]
        walked = state.walk(rows.layout, counts, rows.overlap)
        if walked and (best is None or walked[1] < best.seconds):
            best = Candidate(*walked, int(_moved(rows.layout, counts[:, None], now)[0]))
    return best


class _Place(NamedTuple):
    """Where a placement stands in the list of ties."""

    moved: int
    pools: int
    used: int
    overlap: int
    """Index in `OVERLAPS`."""
    seconds: float
    """Of its step: the least until it is walked."""
    layout: int
    """Which one it is of all layouts."""
    allocation: int
    """Which one it is of those of its family."""


def _ties(
    state: _Search, families: Sequence[_Family], now: Placement | None, *, all_of_them: bool
) -> Iterator[tuple[_Place, Candidate]]:
    """Placements of a layout that are within the tie, in order, each allocation with one overlap.

    Those that come first are bounded first, as the rest may not be asked for: those that move, or where nothing is
    there to be moved have, no more devices than so many, which become more each time.
    """
    pools = families[0].fastest.pools
    staying = [(range(len(pools)), 0)] if now is None else _staying(pools, now)
    devices = state.space.devices
    most = devices if all_of_them else ceil(_FIRST_PART * devices)
    done, seen = -1, set[tuple[int, int]]()
    while done < devices:
        room = [(chosen, most + there) for chosen, there in staying]
        found = [rows for family in families for rows in _bounded(state, family, room)]
        in_order = merge(*(_in_order(rows, now, done) for rows in found), key=lambda one: one[0])
        for _, alike in groupby(in_order, key=lambda one: one[0][:4]):
            walked: list[tuple[_Place, Candidate]] = []
            for place, rows in alike:
                while walked and walked[0][0].seconds <= place.seconds:
                    yield heappop(walked)
                if (place.layout, place.allocation) in seen:
                    continue
                step = state.walk(rows.layout, rows.allocations.counts[place.allocation], rows.overlap)
                if step and step[1] <= state.limit:
                    seen.add((place.layout, place.allocation))
                    heappush(walked, (place._replace(seconds=step[1]), Candidate(*step, place.moved)))
            while walked:
                yield heappop(walked)
        done, most = most, min(devices, most + ceil(_NEXT_PART * devices))


def _in_order(rows: _Rows, now: Placement | None, done: int) -> Iterator[tuple[_Place, _Rows]]:
    """The rows as they stand in the list of ties, sorted no further than they are asked for.

    Args:
        rows: of a layout.
        now: the placement that there is.
        done: those that move no more devices than so many, or without a placement have no more, are left out.
    """
    counts = rows.allocations.counts.T[:, rows.rows]
    used, moved = counts.sum(axis=0), _moved(rows.layout, counts, now)
    pools, overlap = len(rows.layout.pools), OVERLAPS.index(rows.overlap)
    first = moved * (int(used.max(initial=0)) + 1) + used
    left, count = np.flatnonzero((used if now is None else moved) > done), _SORTED_AT_ONCE
    while len(left):
        keys = first[left]
        is_next = keys <= (np.partition(keys, count)[count] if len(left) > count else keys.max())
        part = left[is_next]
        for at in part[np.lexsort((rows.bounds[part], first[part]))]:
            allocation, bound = int(rows.rows[at]), float(rows.bounds[at])
            yield _Place(int(moved[at]), pools, int(used[at]), overlap, bound, rows.number, allocation), rows
        left, count = left[~is_next], 8 * count


def _moved(layout: PoolLayout, counts: Counts, now: Placement | None) -> Counts:
    """Devices that get a role which they do not have now, where pools lie so that these are fewest.

    Args:
        layout: of the placements.
        counts: devices of each pool, shape (pools, placements).
        now: the placement that there is; None where none is to stay.
    """
    moved: Counts = np.zeros(counts.shape[1], dtype=np.int64)
    for chosen, staying in _staying(layout.pools, now) if now else ():
        moved = np.maximum(moved, sum(counts[pool] for pool in chosen) - staying)
    return moved


def _staying(pools: Sequence[tuple[Role, ...]], now: Placement) -> list[tuple[Sequence[int], int]]:
    """Of any pools together, how many devices that there are now could stay as they are in them.

    A device can stay as it is in a pool whose roles it all has now. By Hall's theorem, in the form with a deficiency
    (Ore 1955), as many cannot as any pools together have more devices than there are now that could stay in them.
    """
    there = [(set(now.roles_in(pool.name)), pool.size) for pool in now.pools]
    numbers = range(len(pools))
    found: list[tuple[Sequence[int], int]] = []
    for chosen in chain.from_iterable(combinations(numbers, count) for count in range(1, len(numbers) + 1)):
        wanted = [set(pools[number]) for number in chosen]
        found.append((chosen, sum(size for roles, size in there if any(one <= roles for one in wanted))))
    return found
