"""Comparing arms of different runs: ratios to the first arm, what else differs, and whether it can mean anything."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from placebench.compare.arms import Arm
from placebench.compare.breakdown import StepChange, step_change
from placebench.compare.comparison import PlacementResult, against, launches_compared
from placebench.compare.explain.caveats import gain_caveats, pairing_caveats, work_figures
from placebench.compare.explain.comparability import (
    Fact,
    doubts_of,
    fact_text,
    has_other_lengths,
    has_other_work,
    has_unknown_work,
    known_facts,
)
from placebench.compare.explain.gains import OverlapGain, gains_within
from placebench.compare.explain.reasons import basis, verdict_words, why
from placebench.compare.measure.metrics import (
    LOG_CLOCK,
    STEP_TIME,
    TOKENS_PER_DEVICE,
    UNATTRIBUTED,
    Metric,
    controller_metric,
    part_metric,
    phase_metric,
    placement_metrics,
)
from placebench.compare.read.run import Run
from placebench.compare.statistics.estimates import MIN_EFFECT
from placebench.compare.statistics.measured import Measured
from placebench.compare.statistics.pairing import hold_details, hold_headlines, pair
from placebench.errors import UsageError
from placebench.logs.timing import phase_order
from placebench.spec.text import listing, number, plural, quantity, ratio, seconds_interval


@dataclass(frozen=True)
class ArmComparison:
    """Arms, each against the first.

    Attributes:
        arms: the arms; all but the first have ratios.
        facts: what is known of their runs, those that differ first.
        doubts: why the comparison would have been refused without `--force`; empty for a sound one.
        min_effect: smallest effect of interest, as a fraction.
    """

    arms: tuple[Arm, ...]
    facts: tuple[Fact, ...]
    doubts: tuple[str, ...]
    min_effect: float

    @property
    def results(self) -> tuple[Arm, ...]:
        """The arms, for figures."""
        return self.arms

    @cached_property
    def phases(self) -> tuple[str, ...]:
        """Every phase of any arm."""
        return tuple(dict.fromkeys(phase for arm in self.arms for phase in arm.keys("phase/")))

    @cached_property
    def metrics(self) -> tuple[Metric, ...]:
        """The numbers that stand side by side and that any arm has."""
        metrics = _all_metrics(self.phases)
        return tuple(metric for metric in metrics if any(arm.estimate(metric.key).n for arm in self.arms))

    @cached_property
    def parts(self) -> tuple[Metric, ...]:
        """What is part of a phase or lies outside the step, and is never added to anything."""
        names = phase_order(name for arm in self.arms for name in arm.keys("part/"))
        return tuple(map(part_metric, names))


def compare_arms(arms: Sequence[Arm], min_effect: float = MIN_EFFECT, *, force: bool = False) -> ArmComparison:
    """Compare each arm with the first.

    Args:
        arms: at least one.
        min_effect: smallest effect of interest, as a fraction.
        force: compare even what cannot mean anything, and say so.

    Raises:
        UsageError: the comparison cannot mean anything, or the arms have no number in common.
    """
    named = _with_one_view(_with_names(arms))
    facts = known_facts(named)
    doubts = doubts_of(named, facts)
    if doubts and not force:
        raise UsageError(f"{'; '.join(doubts)}: no verdict on such a difference means anything (--force compares)")
    compared = [named[0]]
    for arm in named[1:]:
        found = _against(named[0], arm, min_effect)
        if not any(found.ratios.values()):
            raise UsageError(
                f"{arm.name} and {named[0].name} have no number in common: {_numbers(arm)} against {_numbers(named[0])}"
            )
        compared.append(found)
    held = hold_headlines([arm.ratios for arm in compared])
    compared = [replace(arm, ratios=ratios) for arm, ratios in zip(compared, held, strict=True)]
    return ArmComparison(tuple(compared), facts, doubts, min_effect)


def are_pairs(arms: Sequence[Arm]) -> bool:
    """Whether all arms are of one run, so that its rounds are pairs."""
    return arms[0].run is not None and len({arm.run for arm in arms}) == 1


def _with_names(arms: Sequence[Arm]) -> list[Arm]:
    """Arms under names that tell them apart: with their run's name, then with a number."""
    labels = [arm.label for arm in arms]
    if len(set(labels)) < len(labels):
        labels = [f"{arm.run.name}/{arm.label}" if arm.run else arm.label for arm in arms]
    seen: dict[str, int] = {}
    named = []
    for arm, label in zip(arms, labels, strict=True):
        seen[label] = seen.get(label, 0) + 1
        named.append(replace(arm, label=label if seen[label] == 1 else f"{label} ({seen[label]})"))
    return named


def _with_one_view(arms: list[Arm]) -> list[Arm]:
    """Beside logs, which tell when a phase began and ended for the controller, a run's phases are its controller's."""
    if all(arm.run for arm in arms):
        return arms
    viewed = []
    for arm in arms:
        if arm.origin:
            result = _as_its_controller_saw(arm.origin.first)
            origin = replace(arm.origin, results=(result,))
            viewed.append(replace(arm, launch_values=result.launch_values, origin=origin))
        else:
            viewed.append(arm)
    return viewed


def _as_its_controller_saw(result: PlacementResult) -> PlacementResult:
    phases = [phase_metric(phase).key for phase in result.keys("phase/")]
    names = {controller_metric(phase).key: phase_metric(phase).key for phase in result.keys("controller/")}
    values, steps = (
        frame.drop(columns=phases, errors="ignore").rename(columns=names)
        for frame in (result.launch_values, result.steps)
    )
    return replace(result, launch_values=values, steps=steps)


def _against(first: Arm, other: Arm, min_effect: float) -> Arm:
    """An arm with its ratios to the first: of one run as the run's own report has them, else with nothing paired."""
    if first.origin and other.origin and are_pairs([first, other]):
        within = first.origin
        result = against(within.first, other.origin.first, within.run, min_effect, within.calibration)
        return replace(other, ratios=result.ratios, work=result.work)
    phases = dict.fromkeys([*first.keys("phase/"), *other.keys("phase/")])
    pairing = pair(first, other, min_effect, interleaved=False)
    metrics = (*_all_metrics(phases), *map(part_metric, first.keys("part/")))
    ratios = hold_details({metric.key: pairing.ratio(metric) for metric in metrics})
    return replace(other, ratios=ratios, work=pairing.work)


def _all_metrics(phases: Iterable[str]) -> tuple[Metric, ...]:
    """The numbers of runs and of logs, in the order of the tables."""
    step, *others = placement_metrics(phases)
    return (step, LOG_CLOCK, *others)


def _numbers(arm: Arm) -> str:
    phases = phase_order(arm.keys("phase/"))
    names = [metric.label for metric in (STEP_TIME, TOKENS_PER_DEVICE) if arm.estimate(metric.key).n]
    return listing([*names, *phases]) or "nothing"


def headline(comparison: ArmComparison, other: Arm) -> str:
    """The verdict in one sentence: on the step time, or on tokens/s/device where the work of a step is another."""
    first = comparison.arms[0]
    metric = LOG_CLOCK if any(arm.step_is_sum for arm in (first, other)) else STEP_TIME
    if not other.ratios.get(metric.key):
        metric = STEP_TIME
    if has_other_work(first, other) and other.ratios.get(TOKENS_PER_DEVICE.key):
        metric = TOKENS_PER_DEVICE
    found = other.ratios.get(metric.key)
    if found is None:
        silent = [arm.name for arm in (first, other) if not arm.estimate(STEP_TIME.key).n] or ["one of them"]
        return f"{other.name} against {first.name}: no verdict, as {listing(silent)} gives no step time."
    lead = verdict_words(found.verdict, other.name, first.name, comparison.min_effect)
    values = _values(first, other, metric.key)
    before, now = (quantity(value, metric.unit) for value in values)
    factor = ratio(found.value, found.low, found.high)
    what = {
        STEP_TIME: f"a step takes {factor} times as long, ",
        LOG_CLOCK: f"a step takes {factor} times as long by the logs' clock, ",
        TOKENS_PER_DEVICE: f"{factor} times the tokens/s/device, ",
    }[metric]
    forced = "Forced, and means little: " if comparison.doubts else ""
    return (
        f"{forced}{lead}: {what}{now} against {before} ({basis(found, values, interleaved=are_pairs([first, other]))})."
    )


def _values(first: Arm, other: Arm, key: str) -> tuple[float, float]:
    """A number of the first arm and of the other, over the launches on which their ratio rests."""
    sides: tuple[Measured, Measured] = (first, other)
    if first.side and other.side and are_pairs([first, other]):
        sides = launches_compared(first.side[1], other.side[1])[:2]
    return sides[0].value(key), sides[1].value(key)


def reasons(comparison: ArmComparison, other: Arm) -> tuple[str, ...]:
    """Why an arm is faster or slower than the first, where both are of runs, whose spans tell; else nothing."""
    first = comparison.arms[0]
    if first.side is None or other.side is None:
        return ()
    return why(first.side, other.side, paired=are_pairs([first, other]))


def step_changes(comparison: ArmComparison) -> list[tuple[str, StepChange]]:
    """The difference of each arm's step to the first's, part by part, under its name; of runs whose spans tell."""
    first, *others = comparison.arms
    if first.side is None:
        return []
    changes = [
        (other.name, step_change(first.side[1], other.side[1], paired=are_pairs([first, other])))
        for other in others
        if other.side
    ]
    return [(name, change) for name, change in changes if change]


def gains_of_runs(comparison: ArmComparison) -> tuple[OverlapGain, ...]:
    """What the overlap gains by itself, of arms of one run.

    Launches of different runs were not interleaved, and more than the overlap may differ between them: what a factor
    of theirs owes to the overlap is not known.
    """
    return tuple(gain for _, gains in _runs_with_gains(comparison) for gain in gains)


def _runs_with_gains(comparison: ArmComparison) -> Iterator[tuple[Run, tuple[OverlapGain, ...]]]:
    for path in dict.fromkeys(arm.run for arm in comparison.arms if arm.run):
        sides = [arm.side for arm in comparison.arms if arm.run == path and arm.side]
        results = [result for _, result in sides]
        first = results[0] if comparison.arms[0].run == path else None
        yield sides[0][0], gains_within(results, first, comparison.min_effect)


def alone(arm: Arm) -> str:
    """The step time of an arm that is compared with nothing, in one sentence."""
    step = arm.estimate(STEP_TIME.key)
    if not step.n:
        return f"{arm.name} gives no step time."
    basis = f"95 % interval {seconds_interval(step.low, step.high)}, " if step.n > 1 else ""
    return f"{arm.name}: a step takes {quantity(step.value, 's')} ({basis}{plural(step.n, 'launch', 'launches')})."


def warnings(comparison: ArmComparison) -> tuple[str, ...]:
    """What a reader must know before trusting the numbers, one line each."""
    first, *others = comparison.arms
    lines = [f"Compared by force: {doubt}." for doubt in comparison.doubts]
    if others and min(len(arm.launches) for arm in comparison.arms) == 1:
        lines.append("With 1 launch of an arm there is no interval and no verdict: give several logs an arm.")
    elif apart := [other.name for other in others if not are_pairs([first, other])]:
        whose = f"of {listing(apart)} were not interleaved with those of {first.name}"
        lines.append(f"The launches {whose}: a drift of the machine between them shows as a difference.")
    for other in others:
        if first.side and other.side and are_pairs([first, other]):
            lines += pairing_caveats(first.side[0], first.side[1], other.side[1])
        step = other.ratios.get(STEP_TIME.key)
        if other.work and step:
            tokens = [float(pd.concat(list(arm.work_steps.values()))["tokens"].mean()) for arm in (other, first)]
            lines.append(
                f"Unequal work: {other.name} had {number(tokens[0])} tokens a step, {first.name} {number(tokens[1])}"
                f" {work_figures(step, other.work)}"
            )
        elif has_other_work(first, other):
            texts = [fact_text(arm.facts["tokens a step"]) for arm in (other, first)]
            lines.append(
                f"Unequal work: {other.name} had {texts[0]} tokens a step, {first.name} {texts[1]}: compare tokens/s."
            )
        elif has_unknown_work(first, other):
            lines.append(_unknown_work(first, other))
        counts = [arm.facts.get("devices") for arm in (other, first)]
        if None not in counts and counts[0] != counts[1]:
            lines.append(f"{other.name} has {counts[0]} devices, {first.name} {counts[1]}: compare tokens/s/device.")
    for run, gains in _runs_with_gains(comparison):
        lines += gain_caveats(run, gains)
    lines += [line for arm in comparison.arms if arm.overlapping for line in _overlaps(arm)]
    return tuple(dict.fromkeys([*lines, *(flag for arm in comparison.arms for flag in arm.flags)]))


def _unknown_work(first: Arm, other: Arm) -> str:
    """What to mind where a side does not count the tokens of a step."""
    if has_other_lengths(first, other):
        texts = [fact_text(arm.facts["mean response length"]) for arm in (other, first)]
        return (
            f"Unequal work: responses of {other.name} have {texts[0]} tokens on average, of {first.name} {texts[1]}:"
            " step times say nothing of speed."
        )
    silent = listing(arm.name for arm in (first, other) if "tokens a step" not in arm.facts)
    return f"Whether a step is the same work for both is not known: {silent} does not count tokens."


def _overlaps(arm: Arm) -> list[str]:
    shown = [phase for phase in phase_order(arm.overlapping) if phase not in ("step", UNATTRIBUTED.key)]
    whole = arm.estimate(STEP_TIME.key)
    total = float(np.nansum([arm.value(phase_metric(phase).key) for phase in shown]))
    if whole.n and total <= whole.value:
        return []
    return [f"{arm.name}: {listing(shown)} overlap: they do not add up to the step."]
