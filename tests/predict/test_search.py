"""The fastest placements: found without looking at all, and checked against a search that does."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from placebench.predict.layouts import OVERLAPS, SearchSpace, layouts, more_nodes, placed
from placebench.predict.search import Candidate, search
from placebench.predict.walk import step_times, walked_graph
from placebench.spec.phases import HAND_OVER, PHASES, Phase
from placebench.spec.placement import Overlap, Placement, Pool, Role
from placebench.spec.placement_checks import contradictions

NAMES = tuple(phase.name for phase in PHASES if phase.name not in HAND_OVER)
ROLES = (Role.ACTOR, Role.ROLLOUT, Role.REF, Role.CRITIC)
# The reward is where the critic is.
TOGETHER = ((Role.ACTOR,), (Role.ROLLOUT,), (Role.REF,), (Role.CRITIC, Role.REWARD))


class Step(NamedTuple):
    seconds: float


@dataclass(frozen=True)
class MadeUpSteps:
    """Steps of phases whose times depend on devices in any way; a pool has a size that all its roles may have."""

    times: Mapping[tuple[str, int, int], float]
    possible: Mapping[Role, Sequence[int]]
    gap: float = 0.01
    """Of a step, for each pool."""

    def sizes(self, roles: tuple[Role, ...], *, tensor_parallel: int = 1) -> tuple[int, ...]:
        common = set.intersection(*(set(self.possible[role]) for role in roles if role in self.possible))
        step = tensor_parallel if Role.ROLLOUT in roles else 1
        return tuple(size for size in sorted(common) if size % step == 0)

    def graph(self, placement: Placement) -> tuple[Phase, ...]:
        return walked_graph(NAMES, staleness=placement.staleness, has_engines=placement.has_engines)

    def phase_seconds(self, phase: str, devices: int, tensor_parallel: int, most_nodes: int = 1) -> float:
        return self.times[phase, devices, tensor_parallel if phase == "gen" else 1]

    def gap_seconds(self, placement: Placement) -> float:
        return self.gap * len(placement.pools)

    def step(self, placement: Placement) -> Step:
        pools = {one.name: placement.pool_of(one.role) if one.role else None for one in self.graph(placement)}
        seconds = {
            name: self.phase_seconds(name, pool.size if pool else 0, placement.tensor_parallel or 1)
            for name, pool in pools.items()
        }
        where = {name: pool.name if pool else "" for name, pool in pools.items()}
        staleness, has_engines = placement.staleness, placement.has_engines
        _, whole = step_times(NAMES, seconds, where, placement.overlap, staleness=staleness, has_engines=has_engines)
        return Step(whole + self.gap_seconds(placement))


def every_placement(steps: MadeUpSteps, space: SearchSpace) -> Iterator[Placement]:
    """All placements on one node, by trying every pool number for every role."""
    seen = set()
    parts = space.together
    for numbers in itertools.product(range(len(parts)), repeat=len(parts)):
        groups = [
            [role for at, roles in zip(numbers, parts, strict=True) if at == one for role in roles] for one in range(4)
        ]
        pools = tuple(tuple(group) for group in groups if group)
        if frozenset(pools) in seen:
            continue
        seen.add(frozenset(pools))
        pool_of = {role: str(number) for number, pool in enumerate(pools) for role in pool}
        for shared_by, staleness, overlap in itertools.product(space.engine_sizes, space.stalenesses, Overlap):
            options = [steps.sizes(pool, tensor_parallel=shared_by) for pool in pools]
            for sizes in itertools.product(*options):
                counts = tuple(Pool(str(number), (size,)) for number, size in enumerate(sizes))
                one = Placement("", counts, pool_of, overlap, staleness, tensor_parallel=shared_by)
                if sum(sizes) <= space.devices and not any(contradictions(one)):
                    yield one


def key(placement: Placement) -> tuple[object, ...]:
    """What makes a placement of a node, whatever its pools are called; overlap aside."""
    pools = frozenset((frozenset(placement.roles_in(pool.name)), pool.size) for pool in placement.pools)
    return pools, placement.staleness, placement.tensor_parallel or 1


seconds = st.integers(1, 40).map(lambda tenths: tenths / 10)


@st.composite
def cases(draw: st.DrawFn) -> tuple[MadeUpSteps, SearchSpace]:
    devices = draw(st.integers(1, 6))
    options = st.sets(st.integers(1, devices), min_size=1).map(sorted)
    engines = draw(st.sampled_from([(1,), (1, 2), (2,)]))
    times = {
        (name, count, shared_by): draw(seconds)
        for name in NAMES
        for count in range(devices + 1)
        for shared_by in (engines if name == "gen" else (1,))
    }
    gap = draw(st.sampled_from([0.01, 1.0, 5.0]))
    steps = MadeUpSteps(times, {role: draw(options) for role in ROLES}, gap)
    stalenesses = draw(st.sampled_from([(0,), (1,), (1, 2, 4), (0, 1, 2)]))
    return steps, SearchSpace((devices,), TOGETHER, engines, stalenesses)


@settings(max_examples=30)
@given(cases(), st.sampled_from([0.0, 0.05, 0.3, 1.0]))
def test_nothing_is_faster_and_every_tie_is_found(case: tuple[MadeUpSteps, SearchSpace], tie: float) -> None:
    steps, space = case
    everything = [(steps.step(one).seconds, one) for one in every_placement(steps, space)]
    found = search(steps, space, tie=tie)
    if not everything:
        assert found.best is None
        assert found.ties == ()
        return
    assert found.best
    fastest = min(whole for whole, _ in everything)
    assert found.best.seconds == pytest.approx(fastest)
    assert {key(one.placement) for one in found.ties} == {
        key(one) for whole, one in everything if whole <= fastest * (1 + tie) * (1 + 1e-9)
    }
    assert len({key(one.placement) for one in found.ties}) == len(found.ties)


@settings(max_examples=30)
@given(cases(), st.sampled_from([0.05, 0.5]), st.data())
def test_of_each_layout_the_first_of_all_ties_is_found(
    case: tuple[MadeUpSteps, SearchSpace], tie: float, data: st.DataObject
) -> None:
    steps, space = case
    now = data.draw(st.none() | now_in(space))
    places: dict[object, list[tuple[float, ...]]] = {}
    everything = [Candidate(one, steps.step(one).seconds, 0) for one in every_placement(steps, space)]
    limit = min((one.seconds for one in everything), default=0.0) * (1 + tie) * (1 + 1e-9)
    for one in everything:
        if one.seconds <= limit:
            places.setdefault(layout(one), []).append(place(one, now))
    found = search(steps, space, tie=lambda _: tie, now=now, per_layout=1).ties
    assert {layout(one): place(one, now) for one in found} == {
        kind: pytest.approx(min(ties)) for kind, ties in places.items()
    }
    assert [place(one, now)[:4] for one in found] == sorted(place(one, now)[:4] for one in found)


def place(one: Candidate, now: Placement | None) -> tuple[float, ...]:
    """Where a placement stands in the list of ties."""
    then = one.placement
    moved, pools = fewest_moved(now, then) if now else 0, len(then.pools)
    return moved, pools, then.size, OVERLAPS.index(then.overlap), one.seconds


def test_a_pool_lies_on_no_more_nodes_than_it_is_bounded_with() -> None:
    rng = np.random.default_rng(0)
    for nodes, engines in itertools.product([(8,) * 6, (4,) * 5, (6,) * 4, (8, 4, 8)], [(1,), (2,), (4,)]):
        for one in layouts(SearchSpace(nodes, TOGETHER, engines)):
            for _ in range(5):
                cuts = np.sort(rng.choice(np.arange(1, sum(nodes)), len(one.pools), replace=False))
                sizes = np.diff([0, *cuts]).tolist()
                found = placed(one, sizes, Overlap.ALL, nodes)
                for pool in found.pools if found else ():
                    assert len(pool.nodes) <= -(-pool.size // nodes[0]) + more_nodes(one, nodes)


def test_what_a_step_takes_beside_its_phases_leaves_out_what_cannot_be_fast() -> None:
    times = {(name, count, 1): 1 / max(1, count) for name in NAMES for count in range(9)}
    steps = MadeUpSteps(times, dict.fromkeys(ROLES, range(1, 9)), gap=9.0)
    found = search(steps, SearchSpace((8,), TOGETHER), tie=0.05)
    assert found.best
    assert len(found.best.placement.pools) == 1
    assert found.walked < 10


def test_weights_that_are_sent_behind_the_update_leave_out_what_cannot_be_fast() -> None:
    took = {"gen": 1.0, "update_weights": 4.0}
    times = {(name, count, 1): took.get(name, 4 / max(1, count)) for name in NAMES for count in range(33)}
    steps = MadeUpSteps(times, dict.fromkeys(ROLES, range(1, 33)))
    found = search(steps, SearchSpace((32,), TOGETHER, stalenesses=(1,)), tie=0.05, per_layout=1)
    assert found.best
    assert found.best.placement.has_engines
    assert found.walked < 20


@st.composite
def now_in(draw: st.DrawFn, space: SearchSpace) -> Placement:
    """Any placement of roles on some of the devices."""
    pool_of = {role: pool for roles in space.together for pool in [draw(st.sampled_from("abcd"))] for role in roles}
    sizes = {pool: draw(st.integers(1, 3)) for pool in sorted(set(pool_of.values()))}
    return Placement("", tuple(Pool(pool, (size,)) for pool, size in sizes.items()), pool_of)


def fewest_moved(now: Placement, then: Placement) -> int:
    """Devices that get new roles, by the best of all ways to match the devices that there are with those wanted."""
    have = [set(now.roles_in(pool.name)) for pool in now.pools for _ in range(pool.size)]
    want = [set(then.roles_in(pool.name)) for pool in then.pools for _ in range(pool.size)]
    # One of those wanted may also lie on a device that has no role now.
    gains = np.array([[not roles <= old for old in [*have, *[set[Role]()] * len(want)]] for roles in want])
    return int(gains[linear_sum_assignment(gains)].sum())


def test_a_device_is_moved_when_it_gets_a_role_and_not_when_it_loses_one() -> None:
    def roles(**pools: str) -> dict[Role, str]:
        return {role: next(name for name, text in pools.items() if role.value in text) for role in Role}

    times = dict.fromkeys(((name, count, 1) for name in NAMES for count in range(5)), 1.0)
    steps = MadeUpSteps(times, dict.fromkeys(ROLES, (2, 4)))
    together, apart = "actor rollout ref", "critic reward"
    everywhere = Placement("", (Pool("a", (4,)),), roles(a=together + apart))
    divided = Placement("", (Pool("a", (2,)), Pool("b", (2,))), roles(a=together, b=apart))
    for now, moved in ((everywhere, (0, 0)), (divided, (4, 0))):
        found = search(steps, SearchSpace((4,), TOGETHER), tie=9.0, now=now).ties
        split = next(one for one in found if layout(one) == layout(Candidate(divided, 0.0, 0)))
        whole = next(one for one in found if len(one.placement.pools) == 1 and one.placement.size == 4)
        assert (whole.moved, split.moved) == moved


@settings(max_examples=15)
@given(cases(), st.data())
def test_of_each_layout_the_tie_that_moves_fewest_devices_comes_first(
    case: tuple[MadeUpSteps, SearchSpace], data: st.DataObject
) -> None:
    steps, space = case
    now = data.draw(now_in(space))
    every = search(steps, space, tie=0.2, now=now).ties
    first = search(steps, space, tie=0.2, now=now, per_layout=1).ties
    moved = [one.moved for one in every]
    assert moved == sorted(moved) == [fewest_moved(now, one.placement) for one in every]
    kinds = [layout(one) for one in first]
    assert len(set(kinds)) == len(kinds)
    assert set(kinds) == {layout(one) for one in every}
    assert [one.moved for one in first] == [min(one.moved for one in every if layout(one) == kind) for kind in kinds]


def layout(one: Candidate) -> frozenset[frozenset[Role]]:
    placement = one.placement
    return frozenset(frozenset(placement.roles_in(pool.name)) for pool in placement.pools)


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [((4, 8), ((4, 0), (0, 8))), ((6, 4), ((6, 0), (0, 4))), ((4, 4), ((4, 0), (4, 0))), ((10, 6), ((8, 2), (0, 6)))],
)
def test_a_pool_lies_on_as_few_nodes_as_are_free(sizes: tuple[int, int], counts: tuple[tuple[int, int], ...]) -> None:
    space = SearchSpace((8, 8), ((Role.ACTOR, Role.ROLLOUT), (Role.CRITIC,)))
    (apart,) = (one for one in layouts(space) if len(one.pools) == 2)
    found = placed(apart, sizes, Overlap.ALL, (8, 8))
    assert found is not None
    assert [sorted(pool.counts) for pool in found.pools] == [sorted(one) for one in counts]
    assert all(sum(pool.counts[node] for pool in found.pools) <= 8 for node in range(2))
