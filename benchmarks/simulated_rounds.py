"""What simulations of statistics have in common: steps that depend on each other, and runs under `--rounds auto`."""

import math
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from scipy.signal import lfilter

from placebench.compare.statistics.estimates import Difference, Floats, paired_difference
from placebench.compare.statistics.verdicts import MIN_EFFECT
from placebench.spec.auto_rounds import AutoRounds

Flags: TypeAlias = NDArray[np.bool_]


class Ended(NamedTuple):
    """How runs ended, an item a run."""

    covered: Floats
    """1 where the interval has the truth, else 0."""
    wrong: Floats
    """1 where there is a verdict without an effect, else 0."""
    rounds: Floats
    """How many rounds it took."""


def autocorrelated(lag1: float, shape: tuple[int, ...], random: np.random.Generator) -> Floats:
    """AR(1) noise along the last axis, stationary, with standard deviation 1."""
    noise = random.normal(0, 1, shape) * math.sqrt(1 - lag1**2)
    noise[..., 0] /= math.sqrt(1 - lag1**2)
    return np.asarray(lfilter([1.0], [1.0, -lag1], noise, axis=-1))


def covers(found: Difference) -> Flags:
    """Whether the interval has the truth, which is no effect: adding one moves interval and truth alike."""
    return np.asarray(np.abs(found.center) <= found.half_width)


def errs(found: Difference) -> Flags:
    """Whether runs without an effect get the verdict faster or slower."""
    return np.asarray(np.abs(found.center) - found.half_width > math.log1p(MIN_EFFECT))


def until_precise(logs: Floats, auto: AutoRounds) -> Ended:
    """Runs that go on as `--rounds auto` does.

    Args:
        logs: log ratios of pairs of launches without an effect, shape (runs, most rounds).
        auto: what ends them.
    """
    covered, wrong, rounds = (np.zeros(len(logs)) for _ in range(3))
    going = np.ones(len(logs), bool)
    for count in range(2, auto.max_rounds + 1):
        before, found = paired_difference(logs[:, : count - 1]), paired_difference(logs[:, :count])
        narrow = np.expm1(2 * before.half_width) <= auto.precision
        ends = going & ((narrow & (count >= auto.rounds_to_be_precise)) | (count == auto.max_rounds))
        covered[ends], wrong[ends], rounds[ends] = covers(found)[ends], errs(found)[ends], count
        going &= ~ends
    return Ended(covered, wrong, rounds)


def table_of(title: str, first: str) -> Table:
    """A table of the terminal, with the heading of its first column."""
    table = Table(title=title, title_justify="left", box=None)
    table.add_column(first, no_wrap=True)
    return table
