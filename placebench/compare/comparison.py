"""Sides compared with the first of them: the placements of one run, or chosen placements of any runs and logs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from placebench.compare.comparability import Fact, doubts_of, known_facts
from placebench.compare.measure.placements import RunSide, measure_run
from placebench.compare.metrics import (
    LOG_CLOCK,
    STEP_TIME,
    TOKENS_PER_DEVICE,
    Metric,
    controller_metric,
    device_metrics,
    part_metric,
    phase_metric,
    placement_metrics,
)
from placebench.compare.pairing import hold_details, hold_headlines, pair
from placebench.compare.read.run import Run
from placebench.compare.read.run_reading import load_run
from placebench.compare.side import Side
from placebench.compare.statistics.estimates import Ratio
from placebench.compare.statistics.verdicts import MIN_EFFECT
from placebench.errors import UsageError
from placebench.spec.phases import phase_order
from placebench.spec.text import listing


@dataclass(frozen=True)
class Comparison:
    """Sides, each against the first."""

    sides: tuple[Side, ...]
    """The sides; all but the first have ratios."""
    min_effect: float
    """Smallest effect of interest, as a fraction."""
    run: Run | None = None
    """The run whose placements they are, all of them in its order; None where they were chosen from runs and logs."""
    facts: tuple[Fact, ...] = ()
    """What is known of the runs of chosen sides, what differs first."""
    doubts: tuple[str, ...] = ()
    """Why the comparison would have been refused without `--force`; empty for a sound one."""

    @property
    def first(self) -> Side:
        """The side that the others are compared with."""
        return self.sides[0]

    @property
    def others(self) -> tuple[Side, ...]:
        """All sides but the first."""
        return self.sides[1:]

    @property
    def placements(self) -> tuple[RunSide, ...]:
        """The sides whose spans and samples are known: in the comparison of a run all of them."""
        return tuple(side for side in self.sides if isinstance(side, RunSide))

    @property
    def placements_by_run(self) -> Iterator[tuple[RunSide, ...]]:
        """The sides whose spans and samples are known, those of each run together."""
        for home in dict.fromkeys(side.home for side in self.placements):
            yield tuple(side for side in self.placements if side.home == home)

    @cached_property
    def phases(self) -> tuple[str, ...]:
        """Every phase of any side."""
        return tuple(dict.fromkeys(phase for side in self.sides for phase in side.keys("phase/")))

    @cached_property
    def metrics(self) -> tuple[Metric, ...]:
        """The numbers that stand side by side and that any side has."""
        return tuple(
            metric for metric in _metrics(self.phases) if any(side.estimate(metric.key).n for side in self.sides)
        )

    @cached_property
    def parts(self) -> tuple[Metric, ...]:
        """What is part of a phase or lies outside the step, and is never added to anything."""
        return tuple(map(part_metric, phase_order(name for side in self.sides for name in side.keys("part/"))))


def compare_run(path: Path, min_effect: float | None = None) -> Comparison:
    """Read a run folder, finished or not, and compare its placements.

    Args:
        path: the run's folder.
        min_effect: smallest effect of interest, as a fraction; None for what the run was started with, or 2 %.

    Raises:
        UsageError: the folder is not a run's, or a file in it is damaged.
    """
    run = load_run(path)
    sides = measure_run(run)
    if min_effect is None:
        min_effect = run.record.min_effect or MIN_EFFECT
    return Comparison(_with_ratios(sides, min_effect), min_effect, run)


def compare_sides(sides: Sequence[Side], min_effect: float = MIN_EFFECT, *, force: bool = False) -> Comparison:
    """Compare placements of any runs and logs.

    Args:
        sides: at least one, with their backgrounds.
        min_effect: smallest effect of interest, as a fraction.
        force: compare even what cannot mean anything, and say so.

    Raises:
        UsageError: the comparison cannot mean anything, or sides have no number in common.
    """
    named = _with_one_view(_with_names(sides))
    facts = known_facts(named)
    doubts = doubts_of(named, facts)
    if doubts and not force:
        raise UsageError(
            f"{'; '.join(doubts)}: no verdict on such a difference means anything (--force compares anyway)"
        )
    first, *others = compared = _with_ratios(named, min_effect)
    for other in others:
        if not any(other.ratios.values()):
            raise UsageError(
                f"{other.name} and {first.name} have no number in common: {_numbers(other)} against {_numbers(first)}"
            )
    return Comparison(tuple(compared), min_effect, None, facts, doubts)


def _with_names(sides: Sequence[Side]) -> list[Side]:
    """Sides under names that tell them apart: with their run's name, then with a number."""
    names = [side.name for side in sides]
    if len(set(names)) < len(names):
        names = [f"{side.home.name}/{side.name}" if side.home else side.name for side in sides]
    seen: dict[str, int] = {}
    named = []
    for side, name in zip(sides, names, strict=True):
        seen[name] = seen.get(name, 0) + 1
        named.append(replace(side, name=name if seen[name] == 1 else f"{name} ({seen[name]})"))
    return named


def _with_one_view(sides: list[Side]) -> list[Side]:
    """Beside logs, which tell when a phase began and ended for the controller, a run's phases are its controller's."""
    if all(isinstance(side, RunSide) for side in sides):
        return sides
    return [_as_its_controller_saw(side) if isinstance(side, RunSide) else side for side in sides]


def _as_its_controller_saw(side: RunSide) -> RunSide:
    phases = [phase_metric(phase).key for phase in side.keys("phase/")]
    names = {controller_metric(phase).key: phase_metric(phase).key for phase in side.keys("controller/")}
    values, steps = (
        frame.drop(columns=phases, errors="ignore").rename(columns=names) for frame in (side.launch_values, side.steps)
    )
    return replace(side, launch_values=values, steps=steps)


def _with_ratios(sides: Sequence[Side], min_effect: float) -> tuple[Side, ...]:
    """Sides with their ratios to the first, corrected for how many are looked at together."""
    compared = [sides[0], *(_against(sides[0], other, min_effect) for other in sides[1:])]
    held = hold_headlines([side.ratios for side in compared])
    return tuple(replace(side, ratios=ratios) for side, ratios in zip(compared, held, strict=True))


def _against(first: Side, other: Side, min_effect: float) -> Side:
    """A side with its ratios to another one.

    Every ratio but the headlines is corrected for the family that it belongs to; these are corrected for how many
    sides are compared, by `hold_headlines`.
    """
    pairing = pair(first, other, min_effect)
    noise = first.noise if isinstance(first, RunSide) and first.shares_rounds(other) else None
    ratios: dict[str, Ratio | None] = {}
    for family in _families(first, other):
        found = {metric.key: pairing.ratio(metric, noise.of(metric.key) if noise else None) for metric in family}
        ratios |= hold_details(found)
    return replace(other, ratios=ratios, work=pairing.work)


def _families(first: Side, other: Side) -> Iterator[Iterable[Metric]]:
    """The numbers whose ratios are looked at together."""
    phases = dict.fromkeys([*first.keys("phase/"), *other.keys("phase/")])
    yield (*_metrics(phases), *map(part_metric, first.keys("part/")))
    if isinstance(first, RunSide) and first.shares_rounds(other):
        yield tuple(controller_metric(phase) for phase in phases)
        yield tuple(metric for device in first.run.devices for metric in device_metrics(device))


def _metrics(phases: Iterable[str]) -> tuple[Metric, ...]:
    """The numbers of runs and of logs, in the order of the tables."""
    step, *others = placement_metrics(phases)
    return (step, LOG_CLOCK, *others)


def _numbers(side: Side) -> str:
    names = [metric.label for metric in (STEP_TIME, TOKENS_PER_DEVICE) if side.estimate(metric.key).n]
    return listing([*names, *phase_order(side.keys("phase/"))]) or "nothing"
