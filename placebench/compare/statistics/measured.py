"""What launches of one side of a comparison measured, as tables and figures need it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Protocol

import pandas as pd

from placebench.compare.measure.critical_path import PATH_KEYS
from placebench.compare.measure.metrics import STEP_TIME, Metric
from placebench.compare.statistics.estimates import Estimate, LaunchValue, Ratio, estimate

# Seconds that are divided into parts: their parts add up only as means.
ADDITIVE = ("hidden", "idle", "overlap/", "wait/", "wait_", "not_traced/", "queues/", *PATH_KEYS)
# What flows through queues from step to step, and levels in them, which are no parts of the step: plain means.
MEANS = ("flow/",)


class Measured(ABC):
    """One side of a comparison.

    Attributes:
        launch_values: one row a launch, one column a number.
        ratios: each number against the first side; None where a ratio has no meaning. Empty for the first.
    """

    launch_values: pd.DataFrame
    ratios: Mapping[str, Ratio | None]

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is called."""

    def estimate(self, key: str) -> Estimate:
        """A number over the launches; n is 0 where no launch has it."""
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

    def by_round(self, key: str) -> dict[int, float]:
        """A number of each launch by its round, or by its place where there are none; empty where no launch has it."""
        if key not in self.launch_values:
            return {}
        return {int(str(round_)): float(value) for round_, value in self.launch_values[key].items()}

    def by_step(self, key: str) -> Mapping[int, LaunchValue]:
        """The same, a value a step where there is one."""
        return self.by_round(key)

    def keys(self, prefix: str) -> list[str]:
        """What follows `prefix` in the names of numbers, for instance the phases of `phase/`."""
        return [str(key).removeprefix(prefix) for key in self.launch_values.columns if str(key).startswith(prefix)]


class Sides(Protocol):
    """A comparison of several sides, each with the first."""

    @property
    def results(self) -> Sequence[Measured]:
        """The sides."""

    @property
    def metrics(self) -> Sequence[Metric]:
        """The numbers that stand side by side."""

    @property
    def phases(self) -> Sequence[str]:
        """Every phase of any side."""

    @property
    def min_effect(self) -> float:
        """Smallest effect of interest, as a fraction."""
