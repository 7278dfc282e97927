"""What the split gains and what the overlap gains, told apart: placements that differ in nothing but the overlap.

With p the placement, p0 the same with less overlap and s the first one, the step times divide as p/s = p0/s · p/p0. The
first factor is the split's doing where nothing overlaps in p0 and s, the second is the overlap's. Each is a ratio of
paired launches of its own (`pairing`), so the two factors may give a little more or less than the ratio of p to s.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from placebench.compare.comparison import Comparison
from placebench.compare.measure.placements import RunSide
from placebench.compare.metrics import STEP_TIME
from placebench.compare.pairing import pair
from placebench.compare.statistics.estimates import Ratio
from placebench.compare.statistics.work import UnequalWork
from placebench.spec.bound import RunPlacement
from placebench.spec.placement import Overlap
from placebench.spec.text import change, plural


@dataclass(frozen=True)
class OverlapGain:
    """A placement against one that differs from it in less overlap alone."""

    side: RunSide
    """The placement."""
    base: RunSide
    """The placement that differs from it in less overlap alone."""
    split: Ratio | None
    """Step time of the base over that of the first placement; None where it is not the split's doing alone."""
    overlap: Ratio
    """Step time of the placement over that of the base."""
    together: Ratio | None
    """Step time of the placement over that of the first; None where `split` is."""
    work: UnequalWork | None
    """How its work differs from the base's; None where it does not."""
    rounds: int | None
    """Over how many rounds they are where not all have the same, 0 where launches are not paired; else None."""


def overlap_gains(comparison: Comparison) -> tuple[OverlapGain, ...]:
    """What the overlap gains by itself, of every placement of several pools that is there with less overlap, too.

    Against each of these, the one with the least overlap first. What is compared with the first side is not said twice:
    no pair has the first in it. Pairs are of one run: launches of different runs were not interleaved, and more than
    the overlap may differ between them.
    """
    return tuple(
        gain
        for sides in comparison.placements_by_run
        for gain in _gains_of_run(sides, sides[0] if sides[0] is comparison.first else None, comparison.min_effect)
    )


def _gains_of_run(sides: Sequence[RunSide], first: RunSide | None, min_effect: float) -> Iterator[OverlapGain]:
    """The gains within one run; `first` is its side that others are compared with, None where that is of another."""
    # The phases of one pool never overlap, whatever may.
    several = [side for side in sides if len(side.placement.pools) > 1]
    for side in several:
        for base in _bases(side, several):
            if first is not base and first is not side and (gain := _gain(first, base, side, min_effect)):
                yield gain


def format_gain(gain: OverlapGain, first: str) -> str:
    """The factors in one sentence; no verdict, see docs/statistics.md.

    Args:
        gain: the factors.
        first: name of the first placement.
    """
    name, base = gain.side.name, gain.base.name
    overlap = _more(gain.overlap, f"{name} against {base}")
    rounds = "" if gain.rounds is None else f", over the {plural(gain.rounds, 'round')} with"
    if gain.split is None or gain.together is None:
        lost = ", launches not paired" if gain.rounds == 0 else rounds and f"{rounds} both"
        less = Overlap(gain.base.placement.overlap)
        which = "by itself" if less is Overlap.NONE else f"beyond {less}"
        return f"The overlap {which}{lost}: with it a step takes {overlap}."
    return (
        f"Split and overlap told apart{rounds and f'{rounds} all three'}: with the split alone a step takes"
        f" {_more(gain.split, f'{base} against {first}')}, with the overlap {overlap}, with both"
        f" {_more(gain.together, f'{name} against {first}')}."
    )


def gain_sentences(gains: Sequence[OverlapGain], first: str) -> dict[str, tuple[str, ...]]:
    """The sentences of each placement, by its name; `first` is the name of the first one."""
    return {
        name: tuple(format_gain(gain, first) for gain in gains if gain.side.name == name)
        for name in dict.fromkeys(gain.side.name for gain in gains)
    }


def _gain(first: RunSide | None, base: RunSide, side: RunSide, min_effect: float) -> OverlapGain | None:
    """The factors over the rounds that all their placements have, as others would not be those of one product."""
    split = together = None
    is_whole = base.measured_rounds == side.measured_rounds
    if first and _is_split_alone(first.placement, base.placement):
        common = set(first.measured_rounds).intersection(base.measured_rounds, side.measured_rounds)
        if common:
            is_whole = is_whole and first.measured_rounds == base.measured_rounds
            first, base, side = (one.of_rounds(common) for one in (first, base, side))
            split, together = (pair(first, one, min_effect).ratio(STEP_TIME) for one in (base, side))
    pairing = pair(base, side, min_effect)
    overlap = pairing.ratio(STEP_TIME)
    if overlap is None:
        return None
    return OverlapGain(side, base, split, overlap, together, pairing.work, rounds=None if is_whole else overlap.pairs)


def _more(found: Ratio, between: str) -> str:
    text, ends = change(found.value, found.low, found.high)
    return f"{text} time ({f'{ends}; ' * bool(ends)}{between})"


def _bases(side: RunSide, sides: Sequence[RunSide]) -> list[RunSide]:
    """The measured placements that differ from one in less overlap alone, the one with the least first."""
    order = list(Overlap)
    less = [
        other
        for other in sides
        if other.launches
        and order.index(Overlap(other.placement.overlap)) < order.index(Overlap(side.placement.overlap))
        and _but_for_overlap(other.placement) == _but_for_overlap(side.placement)
    ]
    return sorted(less, key=lambda other: order.index(Overlap(other.placement.overlap)))


def _but_for_overlap(placement: RunPlacement) -> RunPlacement:
    return replace(placement, placement=replace(placement.placement, name="", overlap=Overlap.NONE))


def _is_split_alone(first: RunPlacement, base: RunPlacement) -> bool:
    """Whether two placements differ in how pools share as many devices alone, and nothing can overlap in either."""
    if first.pools == base.pools or len(first.devices) != len(base.devices):
        return False
    serial = all(placement.overlap == Overlap.NONE or len(placement.pools) == 1 for placement in (first, base))
    place = first.placement
    moved = replace(
        base, placement=replace(base.placement, pools=place.pools, roles=place.roles), members=first.members
    )
    return serial and _but_for_overlap(moved) == _but_for_overlap(first)
