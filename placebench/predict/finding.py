"""What a search finds, as predictions: the placements that cannot be told from the fastest, by their words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from placebench.predict.interval import ratio_interval
from placebench.predict.layouts import SearchSpace, space_of
from placebench.predict.prediction import Predictions, predict
from placebench.predict.search import Candidate, SearchResult, search
from placebench.predict.step import StepModel
from placebench.spec.placement import Placement, Scaling
from placebench.spec.placement_files import placement_text
from placebench.spec.words import word_of

# Where too few held-out cases say how far predictions err, steps up to this much longer than the fastest are shown.
_SHOWN_WITHOUT_CASES = 0.25


@dataclass(frozen=True)
class FoundGroup:
    """Placements on weights that are at most so old."""

    staleness: int
    result: SearchResult
    predictions: Predictions
    """Of the placement that there is, the fastest and those that tie with it, as far as they are shown, in the order of
    `result.ties`."""
    moved: tuple[int, ...]
    """Devices that get roles which they do not have now, of each of these."""
    more: int
    """Layouts that tie as well and are not shown."""


@dataclass(frozen=True)
class FoundPlacements:
    """What a search found."""

    now: Placement | None
    """The placement that there is."""
    groups: tuple[FoundGroup, ...]
    """First those whose training is strictly synchronous, then those that generate ahead; none where none can be."""
    files: Mapping[str, str]
    """Placements that no word says: the name of each, and the text of a file that says it."""


def find_placements(
    model: StepModel,
    *,
    now: Placement | None,
    most: int,
    most_staleness: int,
    elsewhere: bool,
    price: float | None,
) -> FoundPlacements:
    """Search, and predict what is found.

    Args:
        model: of the steps of placebench's own job.
        now: the placement that there is, by the name that it is to have; it is shown wherever it ranks.
        most: layouts that are shown of each group.
        most_staleness: by how many updates weights may lag behind.
        elsewhere: as of `prediction.predict`.
        price: likewise.

    Raises:
        LookupError: a phase was never measured, and the peak of the devices is not known.
    """
    groups, files = [], dict[str, str]()
    if now:
        now = _as_searched(now, space_of(model, (0,)))
    for ages in stalenesses(most_staleness):
        space = space_of(model, ages)
        tie = partial(_tie, model, elsewhere=elsewhere)
        result = search(model, space, tie=tie, now=now, per_layout=1)
        if result.best is None:
            continue
        listed = _listed(result, result.best, most)
        more = max(0, len(result.ties) - len(listed))
        rows = [(one.placement, one.moved) for one in listed]
        # Replicas whose batch grows with them train something else.
        if now and now.staleness in ages and now.scaling is not Scaling.WEAK:
            rows = _with_now(rows, now, space)
        named = [one if one is now else _named(one, model, files) for one, _ in rows]
        predictions = predict(model, named, elsewhere=elsewhere, price=price)
        groups.append(FoundGroup(max(ages), result, predictions, tuple(moved for _, moved in rows), more))
    return FoundPlacements(now, tuple(groups), files)


def stalenesses(most: int) -> tuple[tuple[int, ...], ...]:
    """Those that are searched together: none at all, and where weights may be older all up to the most."""
    return ((0,), tuple(range(1, most + 1))) if most else ((0,),)


def _as_searched(placement: Placement, space: SearchSpace) -> Placement:
    """A placement with the roles that need no device where the search has them."""
    roles = {role: placement.roles[group[0]] for group in space.together for role in group}
    return replace(placement, roles=roles)


def _tie(model: StepModel, fastest: Placement, *, elsewhere: bool) -> float:
    """How much longer than the fastest a step may be without being told from it."""
    (one,) = predict(model, [fastest], elsewhere=elsewhere).placements
    interval = ratio_interval(1.0, one.error, one.noise, one.noise)
    return interval.high - 1 if interval else _SHOWN_WITHOUT_CASES


def _listed(result: SearchResult, fastest: Candidate, most: int) -> list[Candidate]:
    """The first of the ties, so many at most, the fastest in any case among them."""
    listed = list(result.ties[:most])
    if fastest.placement not in [one.placement for one in listed]:
        listed[-1:] = [fastest]
        listed.sort(key=lambda one: one.moved)
    return listed


def _with_now(rows: Sequence[tuple[Placement, int]], now: Placement, space: SearchSpace) -> list[tuple[Placement, int]]:
    """Placements and the devices that each moves, with the one that there is for its like, else before all others."""
    found = [(now if _alike(one, now, space) else one, moved) for one, moved in rows]
    return found if now in [one for one, _ in found] else [(now, 0), *found]


def _alike(first: Placement, other: Placement, space: SearchSpace) -> bool:
    """Whether two placements run the same, whatever they and their pools are called."""
    keys = [
        (
            {(one.roles_in(pool.name), pool.counts) for pool in one.pools},
            one.overlap if len(one.pools) > 1 else None,
            one.staleness,
            one.inflight_updates,
            one.tensor_parallel or space.usual_engine,
            one.scaling,
        )
        for one in (first, other)
    ]
    return keys[0] == keys[1]


def _named(placement: Placement, model: StepModel, files: dict[str, str]) -> Placement:
    """The placement by its word, else by the name of a file that says it, which is added to `files`."""
    workload = model.phases.workload
    assert workload is not None
    has_critic, usual = workload.algorithm.has_critic, workload.rollout.tensor_parallel_size
    word = word_of(placement, model.nodes, has_critic=has_critic, usual_engine=usual)
    if word is None:
        word = f"{placement.name}.yaml"
        files[word] = placement_text(placement, has_critic=has_critic)
    return replace(placement, name=word)
