"""One side of a comparison: what launches measured under one placement, in one log, or as a baseline keeps it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import pandas as pd

from placebench.compare.metrics import PATH_KEYS, STEP_TIME
from placebench.compare.statistics.estimates import Estimate, LaunchValue, Ratio, estimate
from placebench.compare.statistics.work import UnequalWork
from placebench.logs.timing import Timings

if TYPE_CHECKING:
    from placebench.logs.head import Facts  # a run alone, without logs, needs none of what reads them

# Seconds that are divided into parts: their parts add up only as means.
ADDITIVE = ("hidden", "idle", "overlap/", "wait/", "wait_", "not_traced/", "queues/", *PATH_KEYS)
# What flows through queues from step to step, and levels in them, which are no parts of the step: plain means.
MEANS = ("flow/",)


@dataclass(frozen=True)
class LaunchSource:
    """What one launch of a side was read from."""

    path: str
    """Its trial folder, or its files."""
    format: str
    """What was read: `run`, or the names of the logs' formats."""
    steps: int
    """Steps on record."""
    measured: int
    """Those in the numbers."""


@dataclass(frozen=True)
class Background:
    """What is known of a side besides its numbers; the placements of one run have it in common and need none."""

    sources: tuple[LaunchSource, ...] = ()
    """What each launch was read from."""
    timings: Mapping[str, Timings] = field(default_factory=dict)
    """What every step took, by launch, for the figure."""
    facts: "Facts" = field(default_factory=dict)
    """What is known of the run: text, or a number where a little more or less is no difference."""
    flags: tuple[str, ...] = ()
    """What to mind of logs, one line each."""
    overlapping: frozenset[str] = frozenset()
    """Phases that ran beside others or may have."""
    step_is_sum: bool = False
    """The step time may be a mere sum of phases, so that the log's clock is to be preferred."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of a comparison."""

    name: str
    """The name by which reports call the side."""
    launch_values: pd.DataFrame
    """One row a launch, indexed by round, or by place where there are none: the median of its steps, of `ADDITIVE`
    numbers their share of it, of `MEANS` the mean; and what a launch has one of."""
    steps: pd.DataFrame
    """One row a measured step, columns `round`, `step` and numbers, `step_time` (s) and `tokens` among them; empty
    where no steps are known."""
    home: Path | None = None
    """Folder of the run that interleaved its launches with those of its other sides; None for a log."""
    grows: bool = False
    """Whether the work of a step grows with the devices by design, as under weak scaling."""
    ratios: Mapping[str, Ratio | None] = field(default_factory=dict)
    """Each number against the first side; None where a ratio has no meaning. Empty for the first."""
    work: UnequalWork | None = None
    """How its work differs from the first side's; None where it does not, or where that is not known."""
    background: Background = field(default_factory=Background)
    """What else is known of it."""

    @property
    def launch_count(self) -> int:
        """How many launches its numbers are of."""
        return len(self.launch_values)

    def shares_rounds(self, other: "Side") -> bool:
        """Whether launches of the same round belong together: whether both are of one run, which interleaves them."""
        return self.home is not None and self.home == other.home

    def estimate(self, key: str) -> Estimate:
        """A number over the launches; n is 0 where no launch has it."""
        if key not in self._estimates:
            self._estimates[key] = self._estimate(key)
        return self._estimates[key]

    @cached_property
    def _estimates(self) -> dict[str, Estimate]:
        """Those that were asked for: tables, sentences and figures ask for the same ones."""
        return {}

    def _estimate(self, key: str) -> Estimate:
        if key not in self.launch_values:
            return estimate([])
        found = estimate(self.launch_values[key].tolist(), additive=key.startswith((*ADDITIVE, *MEANS)))
        if not key.startswith(ADDITIVE) or STEP_TIME.key not in self.launch_values:
            return found
        scale = self.scale_of_parts
        return Estimate(scale * found.value, scale * found.low, scale * found.high, found.n)

    @cached_property
    def scale_of_parts(self) -> float:
        """What brings parts to the step time that they are parts of, whose mean is another."""
        steps = self.launch_values[STEP_TIME.key].dropna()
        return estimate(steps.tolist()).value / float(steps.mean())

    def value(self, key: str) -> float:
        """The number itself; NaN where no launch has it."""
        return self.estimate(key).value

    def keys(self, prefix: str) -> list[str]:
        """What follows `prefix` in the names of numbers, for instance the phases of `phase/`."""
        return [key.removeprefix(prefix) for key in self._keys if key.startswith(prefix)]

    @cached_property
    def _keys(self) -> list[str]:
        return [str(key) for key in self.launch_values.columns]

    def by_round(self, key: str) -> dict[int, float]:
        """A number of each launch by its round; empty where no launch has it."""
        if key not in self.launch_values:
            return {}
        return {int(str(round_)): float(value) for round_, value in self.launch_values[key].items()}

    def by_step(self, key: str) -> Mapping[int, LaunchValue]:
        """A number of each launch by its round: a value a step where every step has one above 0, else one value."""
        if key not in self.steps or key.startswith((*ADDITIVE, *MEANS)) or not (self.steps[key] > 0).all():
            return self.by_round(key)
        return {number: steps[key] for number, steps in self.steps_by_round.items()}

    @cached_property
    def steps_by_round(self) -> dict[int, pd.DataFrame]:
        """The measured steps of each launch, indexed by step."""
        if self.steps.empty:
            return {}
        return {int(str(number)): group.set_index("step") for number, group in self.steps.groupby("round")}

    @property
    def work_steps(self) -> Mapping[int, pd.DataFrame]:
        """The measured steps of each launch by which work is compared; none where it differs by design."""
        return {} if self.grows else self.steps_by_round

    @property
    def tokens(self) -> float:
        """Tokens of a step, mean of all measured ones; NaN where they are not known."""
        return float(self.steps["tokens"].mean()) if len(self.steps) else float("nan")

    @property
    def measured_rounds(self) -> tuple[int, ...]:
        """The rounds whose launches have a step time."""
        return tuple(number for number, seconds in self.by_round(STEP_TIME.key).items() if not np.isnan(seconds))

    def of_rounds(self, rounds: Collection[int]) -> Self:
        """What the launches of some of its rounds measured; the ratios stay those of all."""
        if set(self.launch_values.index) <= set(rounds):
            return self
        return replace(
            self,
            launch_values=self.launch_values[self.launch_values.index.isin(rounds)],
            steps=self.steps[self.steps["round"].isin(rounds)] if len(self.steps) else self.steps,
        )
