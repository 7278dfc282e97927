#!/usr/bin/env python3
"""How wide intervals are per minute, by rounds and by steps a launch: by simulation.

A launch takes seconds for its start, warm-up and end, and more for each measured step. The log ratio of a step of a
pair of launches is normal: a part of the pair, a part of the step, autocorrelated. `show_fixed` compares fixed
numbers of rounds and steps; `show_choice` the steps of a launch that `--rounds auto` chooses after its first rounds
with a fixed number of them. The estimates and the choice are placebench's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from simulated_rounds import autocorrelated, table_of, until_precise

from placebench.compare.statistics.allocation import best_steps, spread_of
from placebench.compare.statistics.estimates import Floats, paired_difference
from placebench.spec.auto_rounds import PILOT_ROUNDS, REAL_MODEL_ROUNDS, AutoRounds
from placebench.spec.workload import Workload

# Rounds and measured steps of the default before costs decided.
BEFORE = (3, 8)
MOST_SIMULATED = 120


@dataclass(frozen=True)
class Cost:
    """What a launch costs, in seconds.

    Attributes:
        name: for the table.
        start: of its start, warm-up and end.
        step: of a measured step.
    """

    name: str
    start: float
    step: float

    def __str__(self) -> str:
        return f"{self.name}, {self.start:g} s + {self.step:g} s a step"

    def of(self, steps: int | NDArray[np.int64]) -> Floats:
        """Minutes of a pair of launches with so many measured steps."""
        return np.asarray(2 * (self.start + steps * self.step) / 60)


@dataclass(frozen=True)
class Noise:
    """How log ratios vary: standard deviations, and the lag-1 autocorrelation of steps."""

    between: float
    within: float
    autocorrelation: float = 0.0

    def __str__(self) -> str:
        lag = f" (AR {self.autocorrelation:g})" if self.autocorrelation else ""
        return f"{self.between:.1%}, steps by {self.within:.1%}{lag}"


COSTS = (
    Cost("two cores", 8.7, 0.5),
    Cost("GPU, slow start", 55.0, 7.0),
    Cost("GPU", 30.0, 7.0),
    Cost("short steps", 120.0, 2.0),
)
NOISES = (
    Noise(0.003, 0.04),
    Noise(0.014, 0.042),
    Noise(0.014, 0.042, 0.6),
    Noise(0.03, 0.03),
    Noise(0.07, 0.042),
)


def simulate(noise: Noise, runs: int, rounds: int, steps: int, random: np.random.Generator) -> Floats:
    """Log ratios of steps, shape (runs, rounds, steps), of two placements that are equal."""
    of_steps = autocorrelated(noise.autocorrelation, (runs, rounds, steps), random)
    return np.asarray(noise.between * random.normal(0, 1, (runs, rounds, 1)) + noise.within * of_steps)


def mean_width(noise: Noise, rounds: int, steps: int, runs: int) -> float:
    """Mean width, high / low - 1, of the interval of so many rounds with so many measured steps."""
    found = paired_difference(np.median(simulate(noise, runs, rounds, steps, np.random.default_rng(rounds)), axis=-1))
    return float(np.expm1(2 * found.half_width).mean())


@dataclass(frozen=True)
class AutoResult:
    """What runs with `--rounds auto` came to, means over runs."""

    coverage: float
    false_verdicts: float
    minutes: float
    steps: float


def chosen(pilots: Floats, cost: Cost, precision: float) -> NDArray[np.int64]:
    """The measured steps that each run chooses by its first rounds, shape (runs, rounds, steps)."""
    spreads = (spread_of([list(pilot)]) for pilot in pilots)
    steps = [best_steps(spread, cost.start, cost.step, precision) if spread else pilots.shape[-1] for spread in spreads]
    return np.minimum(steps, MOST_SIMULATED)


def auto_runs(noise: Noise, cost: Cost, auto: AutoRounds, pilot: int, runs: int, *, chooses: bool) -> AutoResult:
    """Runs with `--rounds auto`: first so many measured steps a launch, later as many or as many as they choose."""
    random = np.random.default_rng(0)
    steps = simulate(noise, runs, auto.max_rounds, MOST_SIMULATED, random)
    counts = chosen(steps[:, :PILOT_ROUNDS, :pilot], cost, auto.precision) if chooses else np.full(runs, pilot)
    logs = np.median(steps[..., :pilot], axis=-1)
    for count in np.unique(counts):
        of_count = counts == count
        logs[of_count, PILOT_ROUNDS:] = np.median(steps[of_count, PILOT_ROUNDS:, :count], axis=-1)
    ended = until_precise(logs, auto)
    minutes = PILOT_ROUNDS * cost.of(pilot) + (ended.rounds - PILOT_ROUNDS) * cost.of(counts)
    coverage, wrong = float(ended.covered.mean()), float(ended.wrong.mean())
    return AutoResult(coverage, wrong, float(minutes.mean()), float(np.mean(counts)))


def show_fixed(console: Console, designs: Sequence[tuple[int, int]], runs: int) -> None:
    """Minutes and mean width of fixed numbers of rounds and measured steps."""
    table = table_of("Fixed rounds x measured steps of two placements", "minutes, and mean width of the 95 % interval")
    for rounds, steps in designs:
        table.add_column(f"{rounds} x {steps}", justify="right")
    for cost in COSTS:
        table.add_row(f"minutes: {cost}", *(f"{rounds * cost.of(steps):.1f}" for rounds, steps in designs))
    for noise in NOISES:
        widths = (mean_width(noise, rounds, steps, runs) for rounds, steps in designs)
        table.add_row(f"width: {noise}", *(f"{width:.1%}" for width in widths))
    console.print(table)


def show_choice(console: Console, auto: AutoRounds, pilot: int, runs: int) -> None:
    """`--rounds auto` with fixed steps and with chosen ones."""
    title = f"--rounds auto --precision {auto.precision:.0%}: minutes / coverage / false verdicts"
    table = table_of(title, "launches of a pair differ by")
    for heading in (f"always {BEFORE[1]} steps", f"{pilot}, then chosen", "chosen"):
        table.add_column(heading, justify="right")
    for cost in COSTS:
        table.add_row(f"{cost}:")
        for noise in NOISES:
            before = auto_runs(noise, cost, auto, BEFORE[1], runs, chooses=False)
            now = auto_runs(noise, cost, auto, pilot, runs, chooses=True)
            cells = (f"{one.minutes:.1f}/{one.coverage:.1%}/{one.false_verdicts:.2%}" for one in (before, now))
            table.add_row(str(noise), *cells, f"{now.steps:.0f}")
    console.print(table)


@click.command()
@click.option("--runs", type=click.IntRange(min=100), default=4_000, show_default=True, help="Runs a scenario.")
@click.option("--precision", type=click.FloatRange(0.001, 0.5), default=AutoRounds.precision, show_default=True)
def main(runs: int, precision: float) -> None:
    """Print minutes, widths and coverage by rounds and steps."""
    console = Console(width=160)
    workload = Workload()
    pilot = workload.steps - workload.warmup_steps
    show_fixed(console, (BEFORE, (3, pilot), (REAL_MODEL_ROUNDS, pilot), (5, 3), (6, 2)), runs)
    show_choice(console, replace(AutoRounds(), precision=precision), pilot, runs)


if __name__ == "__main__":
    main()
