"""Comparing a run with a baseline: is any number worse by more than is allowed, and by more than noise explains?"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from placebench.compare.explain.work_figures import work_figures
from placebench.compare.metrics import ENERGY, IDLE, MEMORY, STEP_TIME, Metric, placement_metrics
from placebench.compare.side import Side
from placebench.compare.statistics.estimates import Estimate, Ratio, compare, estimate
from placebench.compare.statistics.verdicts import Better, Verdict
from placebench.errors import BaselineError, LaunchError, PlacebenchError, RegressionError, UsageError
from placebench.gate.baseline import Baseline, MeasuredPlacement
from placebench.gate.turns import turns_missed
from placebench.gate.work import OtherWork, other_work
from placebench.spec.legible import shown
from placebench.spec.nested import flatten
from placebench.spec.text import interval, listing, number, plural, ratio, scale_of

# More of these is worse, though a comparison of placements calls neither side better.
WORSE_WHEN_HIGHER = (MEMORY.key, ENERGY.key, IDLE.key)
# What makes two hosts one; what else is recorded of a host changes without changing it.
HOST_KEYS = ("hostname", "kernel", "cpu_model", "cpu_count", "usable_cores", "driver", "gpus")
# The version under test may be placebench's own.
FREE_VERSIONS = ("placebench",)
PHASE = "phase/"
MAX_VALUE_CHARS = 60


class Mismatch(StrEnum):
    """What may differ between a run and a baseline so that no comparison holds."""

    HOST = "host"
    DEVICES = "devices"
    VERSIONS = "versions"
    WORKLOAD = "workload"


class Outcome(StrEnum):
    """One word on a number of the run."""

    PASSED = "passed"
    IMPROVED = "improved"
    """Better by more than the threshold, interval and all: time for a new baseline."""
    REGRESSION = "regression"
    UNDECIDED = "undecided"
    """Worse as measured or at equal tokens, but not both: neither a regression nor a pass."""
    NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class MetricCheck:
    """One number of one placement."""

    placement: str
    """The placement's name."""
    metric: Metric
    """Which number."""
    before: Estimate
    """The baseline's, over its launches."""
    now: Estimate
    """The run's, over its launches."""
    ratio: Ratio | None
    """Now / before; None where a side lacks it."""
    outcome: Outcome
    """What is said of it."""
    visible: float
    """The smallest measured change for the worse, as a fraction, that would have been a regression; NaN without
    interval."""
    worst: float
    """The change at the interval's worse end, as a fraction, above 0 for worse; NaN without interval."""
    work: OtherWork | None = None
    """How the run's work differs from the baseline's; None where it does not, or is not known."""


@dataclass(frozen=True)
class BaselineCheck:
    """A run against a baseline."""

    run: str
    """Name of the run."""
    baseline: str
    """Name of what it is compared with."""
    max_regression: float
    """What is allowed, as a fraction."""
    cases: tuple[MetricCheck, ...] = ()
    """One a placement and number; empty where no comparison holds."""
    incomparable: tuple[str, ...] = ()
    """Why no comparison holds, one line each."""
    failures: tuple[str, ...] = ()
    """Launches that are not done, or too few, or numbers that were not measured."""
    allowed: tuple[str, ...] = ()
    """Differences that the user has allowed."""
    set_aside: tuple[str, ...] = ()
    """Damaged launches that are in none of the numbers."""
    turns: tuple[str, ...] = ()
    """What speaks against comparing pair by pair, where that is asked for."""
    measured: str | None = None
    """When the baseline was measured; None where there is none."""
    missing: str | None = None
    """Why there is nothing to compare; None where there is."""

    def of(self, outcome: Outcome) -> list[MetricCheck]:
        """The numbers with an outcome."""
        return [case for case in self.cases if case.outcome is outcome]

    @property
    def error(self) -> PlacebenchError | None:
        """What the check ends with; None when all is well."""
        if self.missing:
            return BaselineError(self.missing)
        if self.incomparable:
            return BaselineError(f"not comparable with the baseline: {'; '.join(self.incomparable)}")
        if self.failures:
            return LaunchError(f"nothing to judge by: {'; '.join(self.failures)}")
        if regressions := self.of(Outcome.REGRESSION):
            return RegressionError("; ".join(map(describe, regressions)))
        return None


def check(
    run: Baseline,
    baseline: Baseline,
    *,
    max_regression: float,
    metrics: Sequence[str] = (),
    min_launches: int = 3,
    allow: Sequence[Mismatch] = (),
    paired: bool = False,
    against: str | None = None,
) -> BaselineCheck:
    """Compare a run with a baseline.

    A number regresses when it is worse by more than `max_regression` with its whole 95 % interval: Welch's, for the
    launches of two runs are no pairs, unless they were interleaved. A time may grow by that share, a throughput may
    fall by it. Where the steps of the two had other tokens, a verdict needs the number at equal tokens to agree.

    Args:
        run: the run, as a baseline.
        baseline: what it is compared with.
        max_regression: what is allowed, as a fraction.
        metrics: labels or keys of the numbers; the step time where none are given.
        min_launches: finished launches that each placement needs on both sides.
        allow: kinds of difference that do not make the two incomparable.
        paired: whether the launches of both were interleaved, so that the first of one was started next to the first
            of the other and so on: what the machine does meanwhile then drops out.
        against: the baseline's only placement, as the baseline calls it, if the user has named it.

    Raises:
        UsageError: a metric is unknown, or has no worse side.
    """
    chosen = _metrics(metrics, (run, baseline))
    differences = list(_differences(run, baseline))
    shared = {
        name: (baseline.placements[name], now) for name, now in run.placements.items() if name in baseline.placements
    }
    incomparable = [text for kind, text in differences if kind not in allow]
    incomparable += [f"the baseline has no {name}" for name in run.placements if name not in shared]
    compared = {} if incomparable else shared
    sides = [(before.side(name), now.side(name)) for name, (before, now) in compared.items()]
    cases = [_case(metric, *pair, max_regression, paired=paired) for pair in sides for metric in chosen]
    failures = [*_lacking(run, baseline, against, min_launches)]
    failures += [_not_measured(case) for case in cases if case.outcome is Outcome.NOT_MEASURED]
    if not failures:
        failures += [line for case in cases for line in _too_few(case, min_launches)]
    return BaselineCheck(
        run=run.run,
        baseline=baseline.run,
        max_regression=max_regression,
        cases=tuple(cases),
        incomparable=tuple(incomparable),
        failures=tuple(failures),
        allowed=tuple(text for kind, text in differences if kind in allow),
        set_aside=(*run.set_aside, *baseline.set_aside),
        turns=tuple(turns_missed(compared)) if paired else (),
        measured=baseline.measured,
    )


def join(runs: Sequence[Baseline]) -> Baseline:
    """Several runs of the same as one, launch after launch.

    Raises:
        BaselineError: they are not the same; what differs is named.
    """
    first, *others = runs
    placements = dict(first.placements)
    for other in others:
        differences = [text for _, text in _differences(other, first)]
        if other.placements.keys() != placements.keys():
            differences.append(f"placements: {listing(placements)} → {listing(other.placements)}")
        if differences:
            raise BaselineError(f"{first.run} and {other.run} cannot be taken together: {'; '.join(differences)}")
        for name, more in other.placements.items():
            mine = placements[name]
            parts = ("planned", "launches", "steps", "first_steps", "failures", "set_aside")
            both = {part: getattr(mine, part) + getattr(more, part) for part in parts}
            placements[name] = mine.model_copy(update=both)
    return first.model_copy(update={"placements": placements})


def as_chosen(now: Baseline, chosen: str | None, before: Baseline, against: str | None) -> tuple[Baseline, Baseline]:
    """A run and a baseline, each as the user has chosen of them.

    Args:
        now: the run.
        chosen: its only placement, if the user has named it.
        before: the baseline.
        against: likewise the baseline's; another than the run's stands for it, and both are then named by their runs.
    """
    if chosen is None or against == chosen:
        return now, before
    if against is None:
        return now, before.only(chosen)
    return (
        now.model_copy(update={"run": f"{now.run}:{chosen}"}),
        before.model_copy(
            update={"run": f"{before.run}:{against}", "placements": {chosen: before.placements[against]}}
        ),
    )


def describe(case: MetricCheck) -> str:
    """A number beside the baseline's, in one phrase."""
    if case.ratio is None:
        return _not_measured(case)
    told = scale_of(case.metric.unit, case.before, case.now, ratio=case.ratio)
    text = (
        f"{case.placement}: {case.metric.label} is {ratio(case.ratio.value, case.ratio.low, case.ratio.high)} times the"
        f" baseline's (95 % interval {interval(case.ratio.low, case.ratio.high)},"
        f" {told.text(case.now.value)} against {told.text(case.before.value)})"
    )
    if case.work is None:
        return text
    work = case.work.found
    if work is None:
        return f"{text}, with {100 * (case.work.now / case.work.before - 1):+.1f} % tokens a step"
    equal = ratio(work.adjusted.value, work.adjusted.low, work.adjusted.high)
    return f"{text}, {equal} times with the difference in tokens ({100 * (work.tokens.value - 1):+.1f} %) taken out"


def unequal_work(case: MetricCheck) -> str | None:
    """That the run's steps had other tokens than the baseline's, and what the number is without the difference."""
    work = case.work
    if work is None or case.ratio is None:
        return None
    tokens = f"unequal work: {case.placement} had {number(work.now)} tokens a step, the baseline {number(work.before)}"
    if work.found:
        return f"{tokens} {work_figures(case.ratio, work.found, case.metric.label)}"
    return f"{tokens}; {case.metric.label} is judged as measured."


def _metrics(words: Sequence[str], sides: Sequence[Baseline]) -> list[Metric]:
    """The numbers that words name, by label or key."""
    launches = [launch for side in sides for placement in side.placements.values() for launch in placement.launches]
    phases = [key.removeprefix(PHASE) for launch in launches for key in launch if key.startswith(PHASE)]
    metrics = placement_metrics(dict.fromkeys(phases))
    usable = [metric for metric in metrics if metric.better is not Better.NEITHER or metric.key in WORSE_WHEN_HIGHER]
    chosen = []
    for word in words or (STEP_TIME.label,):
        found = next((metric for metric in metrics if word in (metric.label, metric.key)), None)
        if found is None:
            raise UsageError(
                f"--metric {shown(word)}: no such number: use {listing(metric.label for metric in usable)}"
            )
        if found not in usable:
            raise UsageError(f"--metric {shown(word)}: neither more nor less of it is worse, so it cannot regress")
        chosen.append(found)
    return list(dict.fromkeys(chosen))


def _differences(run: Baseline, baseline: Baseline) -> Iterator[tuple[Mismatch, str]]:
    """What must be equal and is not, with both values."""
    hosts = [{key: side.host.get(key) for key in HOST_KEYS} for side in (baseline, run)]
    yield from ((Mismatch.HOST, text) for text in _unequal("host", *hosts))
    versions = [
        {name: value for name, value in side.versions.items() if name not in FREE_VERSIONS} for side in (baseline, run)
    ]
    yield from ((Mismatch.VERSIONS, text) for text in _unequal("version", *versions))
    yield from ((Mismatch.WORKLOAD, text) for text in _unequal("workload", baseline.workload, run.workload))
    launchers = ({"launcher": side.launcher} for side in (baseline, run))
    yield from ((Mismatch.WORKLOAD, text) for text in _unequal("the run's", *launchers))
    for name, placement in run.placements.items():
        before = baseline.placements.get(name)
        if before and sorted(before.devices) != sorted(placement.devices):
            texts = [f"{len(side.devices)} × {listing(dict.fromkeys(side.devices))}" for side in (before, placement)]
            yield Mismatch.DEVICES, f"devices of {name}: {texts[0]} → {texts[1]}"


def _unequal(what: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    old, new = flatten(before), flatten(now)
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            yield f"{what} {key}: {_short(old.get(key))} → {_short(new.get(key))}"


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}…"


def _case(metric: Metric, before: Side, now: Side, max_regression: float, *, paired: bool) -> MetricCheck:
    """One number of one placement against the baseline's."""
    better = Better.LESS if metric.key in WORSE_WHEN_HIGHER else metric.better
    # Of throughput a share may be lost, which is a larger one of what is left.
    effect = max_regression / (1 - max_regression) if better is Better.MORE else max_regression
    first, other = (side.by_round(metric.key) for side in (before, now))
    found = compare(first, other, better, effect, paired=paired)
    work = other_work(metric, better, before, now, effect, paired=paired)
    visible = worst = math.nan
    if found is not None:
        slack = math.log1p(effect) + math.log(found.high / found.value)
        visible = -math.expm1(-slack) if better is Better.MORE else math.expm1(slack)
        worst = 1 - found.low if better is Better.MORE else found.high - 1
    estimates = (estimate(list(first.values())), estimate(list(other.values())))
    return MetricCheck(now.name, metric, *estimates, found, _outcome(found, work), visible, worst, work)


def _outcome(found: Ratio | None, work: OtherWork | None) -> Outcome:
    if found is None or math.isnan(found.low):
        return Outcome.NOT_MEASURED
    verdicts = {found.verdict}
    if work and work.found:
        verdicts.add(work.found.adjusted.verdict)
    if Verdict.SLOWER in verdicts:
        return Outcome.REGRESSION if len(verdicts) == 1 else Outcome.UNDECIDED
    return Outcome.IMPROVED if verdicts == {Verdict.FASTER} else Outcome.PASSED


def _lacking(run: Baseline, baseline: Baseline, against: str | None, min_launches: int) -> Iterator[str]:
    """What a side lacks: placements that the baseline has, and launches of those that both have."""
    absent = (name for name in baseline.placements if name not in run.placements)
    yield from (f"the run has no {name}, which the baseline has" for name in absent)
    for name, now in run.placements.items():
        if before := baseline.placements.get(name):
            yield from _too_little(now, name, "the run", min_launches)
            yield from _too_little(before, against or name, "the baseline", min_launches)


def _too_little(placement: MeasuredPlacement, name: str, whose: str, min_launches: int) -> Iterator[str]:
    """Why launches do not suffice, where they do not."""
    if placement.failures:
        more = f" and {len(placement.failures) - 1} more" if len(placement.failures) > 1 else ""
        yield f"{whose} has launches that are not done: {placement.failures[0]}{more}"
    elif placement.finished < min_launches:
        yield f"{whose} has {plural(placement.finished, 'launch', 'launches')} of {name}, {min_launches} needed"


def _not_measured(case: MetricCheck) -> str:
    return f"{case.placement}: {case.metric.label} was not measured"


def _too_few(case: MetricCheck, min_launches: int) -> Iterator[str]:
    """That too few launches have a number, though enough are done, or too few of those that belong together."""
    assert case.ratio is not None
    few, what = min(case.ratio.launches), "launches of a side"
    if case.ratio.pairs:
        few, what = case.ratio.pairs, "pairs of launches"
    if few < min_launches:
        yield f"{case.placement}: {case.metric.label} was measured in {few} {what}, {min_launches} needed"
