"""What the timing metrics of a log mean: phases, their parts, and the time that no phase explains.

`timing_s/*` is not a list of numbers to add up. Some entries are parts of another one, some run beside
others, some lie outside the step or inside it depending on the version, and some are not seconds at all.
Every total and every share of the project is built on the kinds given here.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from placebench.logs.columns import text_column
from placebench.spec.phases import STEP, UNATTRIBUTED, phase_order

# Three decimals are printed by old versions; timers start and stop a little apart.
ROUNDING_S = 0.0005
TIMER_SLACK = 0.01
# Some months: what is longer is no time of a step.
MOST_SECONDS = 1e7


class Kind(StrEnum):
    """What a timing is to its step."""

    STEP = "step"
    """The whole step."""
    PHASE = "phase"
    """One of the phases that run one after the other and fill the step together with `unattributed`."""
    OVERLAP = "overlap"
    """A phase that runs beside others: its seconds must not be added to theirs."""
    DETAIL = "detail"
    """A part of a phase, a statistic over samples or a profiler's switch: never added to anything."""
    OUTSIDE = "outside"
    """Outside the step's own time."""
    UNATTRIBUTED = "unattributed"
    """The step's time that no phase explains; not known of steps without phases."""


@dataclass(frozen=True)
class Derived:
    """A phase that the log does not time itself, computed from those that it does."""

    phase: str
    """Name of the phase; replaces a phase of that name."""
    base: str
    """The phase that it is computed from; without it there is none."""
    minus: tuple[str, ...] = ()
    """Phases taken off the base, those that are there."""
    minus_inside: tuple[str, ...] = ()
    """Phases taken off too in a launch where the base and they exceed the step together, and so overlap."""


@dataclass(frozen=True)
class TimingRules:
    """What the timing metrics of a log format mean."""

    prefixes: tuple[str, ...]
    """What a timing metric's name begins with; where a step has a phase under two, the first counts."""
    details: frozenset[str] = frozenset()
    """Names that are part of a phase, or no phase. So is every name with a slash, which is of something inside another
    timing: `agent_loop/slowest/…`, `generation_timing/max`."""
    beside: frozenset[str] = frozenset()
    """Names that run beside the step by construction, whatever the sums say."""
    movable: tuple[str, ...] = ()
    """Names that lie inside the step in some versions and outside in others; the log shows which. A 0 of them says that
    there was none in the step."""
    overlapping: bool = False
    """Whether phases may run side by side without a sum that shows it, so step - sum(phases) means nothing."""
    not_seconds: re.Pattern[str] | None = None
    """Counts and ratios that stand under the prefix."""
    suffix: str = ""
    """What a timing metric's name ends with; it is no part of the phase's name."""
    exact: Mapping[str, str] = field(default_factory=dict)
    """Timing metrics whose names have no prefix, with their phases."""
    phases: Mapping[str, str] = field(default_factory=dict)
    """Names that placebench has for phases that mean the same under another name, by the log's name."""
    containers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Phases that other phases are parts of: where a part is there, the container is a detail."""
    derived: tuple[Derived, ...] = ()
    """Phases that are computed from others."""
    step_is_sum: bool = False
    """Whether the step's time may be the mere sum of the phases: where it is, no unattributed time is known; where it
    is not, the phases overlap."""

    def phase(self, metric: str) -> str | None:
        """The phase that a metric times: placebench's name, or the log's own where that means something else.

        None where the metric is no timing.
        """
        if metric in self.exact:
            return self.exact[metric]
        prefix = next(filter(metric.startswith, self.prefixes), None)
        is_count = self.not_seconds and self.not_seconds.search(metric)
        if prefix is None or is_count or not metric.endswith(self.suffix):
            return None
        name = metric.removeprefix(prefix).removesuffix(self.suffix)
        return self.phases.get(name, name)

    def kind(self, phase: str) -> Kind:
        """What a name alone says about a phase."""
        if phase in (STEP, UNATTRIBUTED):
            return Kind(phase)
        if phase in self.beside:
            return Kind.OVERLAP
        return Kind.DETAIL if phase in self.details or "/" in phase else Kind.PHASE


VERL_TIMING = TimingRules(
    prefixes=("timing_s/", "timing/"),
    details=frozenset({"generate_sequences", "reshard", "start_profile", "stop_profile"}),
    beside=frozenset({"generate_async"}),
    movable=("testing", "save_checkpoint"),
    not_seconds=re.compile(r"/(?:num_preempted|prompt_length|response_length|topk_ratio)(?:/|$)"),
)
PLACEBENCH_TIMING = TimingRules(prefixes=("timing_s/",), overlapping=True)


@dataclass(frozen=True)
class Timings:
    """What the steps of one launch took: a number a step and phase, which millions of steps have room for."""

    seconds: pd.DataFrame
    """Seconds, a row a step (ascending) and a column a phase, in `phase_order`; NaN where a step lacks the phase."""
    kinds: Mapping[str, Kind]
    """What each phase is to the step."""

    @property
    def steps(self) -> NDArray[np.int64]:
        """The steps that have timings."""
        return self.seconds.index.to_numpy(dtype=np.int64)

    def without_first(self, count: int) -> "Timings":
        """Without the first so many steps."""
        return self.between(count, len(self.seconds))

    def between(self, first: int, end: int) -> "Timings":
        """Some of the steps, by place."""
        return replace(self, seconds=self.seconds.iloc[first:end])

    def only(self, phases: list[str]) -> "Timings":
        """Some of the phases, and the steps that have them."""
        return replace(self, seconds=self.seconds[[name for name in self.seconds if name in phases]].dropna(how="all"))

    def averaged(self, width: int) -> "Timings":
        """The moving averages over so many steps that have a phase; none of a phase that fewer than half of them have.

        They are centered, and shorter at both ends.
        """
        known = {str(phase): self.seconds[phase].dropna() for phase in self.seconds}
        averages = {
            phase: seconds.rolling(width, center=True, min_periods=1).mean()
            for phase, seconds in known.items()
            if 2 * len(seconds) >= len(self.seconds)
        }
        return replace(self, seconds=pd.DataFrame(averages, self.seconds.index))

    def thinned(self, width: int) -> "Timings":
        """The means of so many steps at a time, under the first of them."""
        if width == 1:
            return self
        means = self.seconds.groupby(np.arange(len(self.seconds)) // width).mean()
        return replace(self, seconds=means.set_axis(self.seconds.index[::width]))

    def whole(self) -> "Timings":
        """The sums of the steps that have a time of their own, or of all where none has: one step in their place."""
        seconds = self.seconds
        if STEP in seconds and seconds[STEP].notna().any():
            seconds = seconds[seconds[STEP].notna()]
        return replace(self, seconds=seconds.sum(min_count=1).to_frame(int(seconds.index[0])).T)

    def tidy(self, launch: str) -> pd.DataFrame:
        """The timings row by row.

        Returns:
            Columns launch (str), step (int64), phase (str), seconds (float64) and kind (a `Kind` word), by step, and
            phase in `phase_order`.
        """
        values = self.seconds.to_numpy()
        step, phase = np.nonzero(~np.isnan(values))
        phases = [str(name) for name in self.seconds.columns]
        return pd.DataFrame(
            {
                "launch": text_column(np.zeros(len(step), np.int8), [launch]),
                "step": self.steps[step],
                "phase": text_column(phase, phases),
                "seconds": values[step, phase],
                "kind": text_column(phase, [self.kinds[name].value for name in phases]),
            }
        )


def timings_of(metrics: pd.DataFrame, rules: TimingRules = VERL_TIMING) -> Timings | None:
    """The timings among the metrics of a launch, under phase names, each with what it is to the step.

    `timing/x` (verl before 0.2) and `timing_s/x` both become phase `x`. `unattributed` is the log's own
    `timing_s/unattributed` if it has one, else step - sum of the serial phases; it is left out where phases
    overlap, and where the log has no step time or no phases.

    Args:
        metrics: a row a step and a column a metric, as `StepTable.wide` gives them.
        rules: what the names mean in the log's format.

    Returns:
        None where there are no timings: seconds that a step can take, and no 0 of what need not be in a step.
    """
    # The first prefix comes last and so is the one that is kept.
    names = sorted(metrics.columns, key=lambda name: [name.startswith(prefix) for prefix in rules.prefixes])
    seconds: dict[str, pd.Series[float]] = {}
    for name in names:
        phase = rules.phase(name)
        if phase is None:
            continue
        timed = seconds_of(metrics[name])
        if phase in rules.movable:
            timed = timed.where(timed != 0)
        if timed.notna().any():
            seconds[phase] = timed.combine_first(seconds[phase]) if phase in seconds else timed
    if not seconds:
        return None
    wide = pd.DataFrame(seconds)
    return _classify(_derive(wide[wide.notna().any(axis=1)], rules), rules)


def seconds_of(values: "pd.Series[float]") -> "pd.Series[float]":
    """A column without the values that are no time of a step: negative, infinite or beyond reason."""
    return values.where((values >= 0) & (values <= MOST_SECONDS))


def names_of_timings(rules: TimingRules) -> str:
    """The names by which timings are known, as a phrase for the error of a log without any."""
    return ", ".join([*(f"{prefix}…" for prefix in rules.prefixes), *rules.exact])


def found_instead(steps: int, metrics: Iterable[str]) -> str:
    """What a log without timings holds, as a phrase for its error."""
    names = sorted(metrics)
    if not names:
        return "found no metrics"
    others = f"{len(names)} other metric{'s' * (len(names) != 1)}"
    return f"found {steps:,} step{'s' * (steps != 1)} with {others}, such as {names[0]}"


def _derive(seconds: pd.DataFrame, rules: TimingRules) -> pd.DataFrame:
    """Add the phases that the rules compute from others."""
    for derived in rules.derived:
        if derived.base in seconds:
            taken = _sum_of(derived.minus, seconds)
            if _exceed_step((derived.base, *derived.minus_inside), seconds):
                taken += _sum_of(derived.minus_inside, seconds)
            seconds = seconds.assign(**{derived.phase: (seconds[derived.base] - taken).clip(lower=0)})
    return seconds


def _sum_of(phases: Iterable[str], seconds: pd.DataFrame) -> "pd.Series[float]":
    """Seconds of those phases that are there, by step."""
    total: pd.Series[float] = seconds[[phase for phase in phases if phase in seconds]].sum(axis=1)
    return total


def _exceed_step(phases: Iterable[str], seconds: pd.DataFrame) -> bool:
    """Whether phases are longer together than the step, on most steps."""
    if STEP not in seconds:
        return False
    return bool((_sum_of(phases, seconds) > seconds[STEP] * (1 + TIMER_SLACK)).mean() > 0.5)


def _classify(seconds: pd.DataFrame, rules: TimingRules) -> Timings:
    """Give the phases of a launch their kinds and add `unattributed`."""
    kinds = {str(phase): rules.kind(str(phase)) for phase in sorted(seconds.columns)}
    for container, parts in rules.containers.items():
        if container in kinds and not kinds.keys().isdisjoint(parts):
            kinds[container] = Kind.DETAIL
    if STEP in kinds:
        kinds |= dict.fromkeys(_outside_step(seconds, kinds, rules), Kind.OUTSIDE)
    if _overlap(seconds, kinds, rules):
        kinds = {phase: Kind.OVERLAP if kind is Kind.PHASE else kind for phase, kind in kinds.items()}
    elif STEP in kinds and UNATTRIBUTED not in kinds and not rules.step_is_sum:
        serial = _serial(kinds)
        # Validation and checkpoints tell nothing of what else the step consisted of.
        is_told = seconds[[phase for phase in serial if phase not in rules.movable]].notna().any(axis=1)
        if is_told.any():
            kinds[UNATTRIBUTED] = Kind.UNATTRIBUTED
            rest = seconds[STEP] - seconds[serial].sum(axis=1)
            seconds = seconds.assign(**{UNATTRIBUTED: rest.clip(lower=0).where(is_told)})
    return Timings(seconds[phase_order(kinds)], kinds)


def _outside_step(seconds: pd.DataFrame, kinds: Mapping[str, Kind], rules: TimingRules) -> frozenset[str]:
    """Which movable phases lie outside the step's own time, by what the log itself shows.

    On the steps that have such a phase, the rest step - sum(other phases) grows by the phase's time where the
    step contains it, and stays as on all other steps where it does not.
    """
    movable = [phase for phase in rules.movable if phase in kinds]
    steps_with = seconds[movable].notna().any(axis=1) & seconds[STEP].notna()
    if not steps_with.any():
        return frozenset(movable)
    fixed = [phase for phase, kind in kinds.items() if kind is Kind.PHASE and phase not in movable]
    rest = seconds[STEP] - seconds[fixed].sum(axis=1)
    usual = rest[~steps_with].median()
    extra = rest[steps_with] - (0.0 if np.isnan(usual) else usual)

    def mismatch(inside: tuple[str, ...]) -> float:
        return float((extra - seconds.loc[steps_with, list(inside)].sum(axis=1)).abs().median())

    best = min((inside for size in range(len(movable) + 1) for inside in combinations(movable, size)), key=mismatch)
    return frozenset(movable).difference(best)


def _overlap(seconds: pd.DataFrame, kinds: Mapping[str, Kind], rules: TimingRules) -> bool:
    """Whether phases overlap: as the rules say, or because they do not add up to the step."""
    if rules.overlapping and UNATTRIBUTED not in kinds:
        return True
    if STEP not in kinds:
        return False
    serial = _serial(kinds)
    unexplained = seconds[STEP] - seconds[serial].sum(axis=1)
    if UNATTRIBUTED in kinds:
        unexplained -= seconds[UNATTRIBUTED]
    slack = TIMER_SLACK * seconds[STEP] + ROUNDING_S * (len(serial) + 1)
    return bool((unexplained < -slack).any()) or (rules.step_is_sum and bool((unexplained > slack).any()))


def _serial(kinds: Mapping[str, Kind]) -> list[str]:
    """The phases that are one after the other where none overlap."""
    return [phase for phase, kind in kinds.items() if kind is Kind.PHASE]
