#!/usr/bin/env python3
"""What the intervals cover and how often the verdicts are wrong: by simulation.

A simulated run has rounds of two launches. The log of a step's time is a sum: the work of the step (both arms alike),
the state of the machine in the round, the effect of the launch, autocorrelated noise of the steps, and, by scenario,
drift and outliers. The truth is known, so coverage, false verdicts and power can be counted. The estimates are those of
`placebench.compare.statistics.estimates`, called on arrays with one element a simulated run. `false_verdicts.py`
counts on real logs and launches.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import click
import numpy as np
from rich.console import Console
from simulated_rounds import Flags, autocorrelated, covers, errs, table_of, until_precise

from placebench.compare.statistics.estimates import (
    CONFIDENCE,
    Difference,
    Floats,
    paired_difference,
    unpaired_difference,
)
from placebench.compare.statistics.verdicts import MIN_EFFECT
from placebench.spec.auto_rounds import AutoRounds

STEPS = 10
LAUNCHES = (3, 5, 8)
EFFECTS = (0.01, 0.02, 0.03, 0.05, 0.10)
CHUNK = 2000


@dataclass(frozen=True)
class Scenario:
    """How simulated step times vary; standard deviations of logs.

    Attributes:
        name: for the table.
        launch: sd of the launch effect.
        tails: its distribution: normal, t3 (heavy tails) or skewed (exponential).
        step: sd of a step's noise.
        autocorrelation: lag-1, of that noise.
        drift: slowdown from one launch to the next one started, and over the steps of a launch as much again.
        outliers: share of steps that take half as long again.
        bad_launches: share of launches that are 10 % slower as a whole.
        lost: share of launches that fail.
        extra: launches that the second arm has more; the arms are then not paired.
        unpaired: the arms were not interleaved.
    """

    name: str
    launch: float = 0.01
    tails: str = "normal"
    step: float = 0.03
    autocorrelation: float = 0.0
    drift: float = 0.0
    outliers: float = 0.0
    bad_launches: float = 0.0
    lost: float = 0.0
    extra: int = 0
    unpaired: bool = False


SCENARIOS = (
    Scenario("independent steps"),
    Scenario("no launch effect", launch=0.0),
    Scenario("launch effect 5 %", launch=0.05),
    Scenario("AR(1) 0.6", autocorrelation=0.6),
    Scenario("AR(1) 0.95, no launch effect", launch=0.0, autocorrelation=0.95),
    Scenario("drift 0.5 % a launch", drift=0.005, autocorrelation=0.6),
    Scenario("5 % of steps + 50 %", outliers=0.05, autocorrelation=0.6),
    Scenario("5 % of launches + 10 %", bad_launches=0.05, autocorrelation=0.6),
    Scenario("heavy-tailed launches (t3)", tails="t3"),
    Scenario("skewed launches", tails="skewed"),
    Scenario("15 % of launches lost", lost=0.15, autocorrelation=0.6),
    Scenario("not interleaved", unpaired=True, autocorrelation=0.6),
    Scenario("not interleaved, 2 launches more", unpaired=True, extra=2, autocorrelation=0.6),
)
TYPICAL = Scenario("typical", launch=0.01, step=0.03, autocorrelation=0.6, outliers=0.02)


def simulate(scenario: Scenario, launches: int, runs: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Logs of step times of two arms without an effect, shapes (runs, launches, steps); NaN where a launch is lost."""
    count = launches + scenario.extra
    shape = (runs, count, 2, STEPS)
    logs = np.broadcast_to(random.normal(0, 0.05, (runs, 1, 1, STEPS)), shape).copy()
    if not scenario.unpaired:
        logs += random.normal(0, 0.03, (runs, count, 1, 1))
    logs += scenario.launch * _effects(scenario.tails, (runs, count, 2, 1), random)
    logs += scenario.step * autocorrelated(scenario.autocorrelation, shape, random)
    started = 2 * np.arange(count)[:, None] + np.where(np.arange(count) % 2, [[1], [0]], [[0], [1]]).T
    logs += scenario.drift * (started[:, :, None] + np.arange(STEPS) / STEPS)
    logs += math.log(1.5) * (random.random(shape) < scenario.outliers)
    logs += math.log(1.1) * (random.random((runs, count, 2, 1)) < scenario.bad_launches)
    logs[random.random((runs, count, 2)) < scenario.lost] = np.nan
    return logs[:, :launches, 0], logs[:, :, 1]


def _effects(tails: str, shape: tuple[int, ...], random: np.random.Generator) -> Floats:
    """Launch effects with standard deviation 1."""
    if tails == "t3":
        return np.asarray(random.standard_t(3, shape) / math.sqrt(3))
    if tails == "skewed":
        return np.asarray(random.exponential(1, shape))
    return np.asarray(random.normal(0, 1, shape))


def differences(scenario: Scenario, launches: int, runs: int, random: np.random.Generator) -> Iterator[Difference]:
    """What placebench makes of simulated runs; runs with fewer than two pairs are left out."""
    for begin in range(0, runs, CHUNK):
        first, other = simulate(scenario, launches, min(CHUNK, runs - begin), random)
        if scenario.unpaired:
            yield unpaired_difference(np.median(first, axis=-1), np.median(other, axis=-1))
            continue
        logs = np.median(other - first, axis=-1)
        pairs = (~np.isnan(logs)).sum(axis=-1)
        for count in range(2, launches + 1):
            chosen = logs[pairs == count]
            yield paired_difference(chosen[~np.isnan(chosen)].reshape(-1, count))


def share(found: Iterator[Difference], judge: Callable[[Difference], Flags]) -> float:
    """Share of runs of which something is true."""
    return float(np.concatenate([judge(one) for one in found]).mean())


def decides(effect: float) -> Callable[[Difference], Flags]:
    """Whether runs with that effect get the verdict slower."""
    moved, bound = math.log1p(effect), math.log1p(MIN_EFFECT)
    return lambda found: np.asarray(found.center + moved - found.half_width > bound)


def percentile_bootstrap(steps: Floats, draws: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Ends of the percentile interval of launches drawn again, then blocks of three of their steps."""
    drawn = _redraw(steps, draws, random).mean(axis=-1)
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return low, high


def studentised_bootstrap(steps: Floats, draws: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """The same with every draw divided by its own standard error over launches (bootstrap-t, symmetric)."""
    drawn = paired_difference(_redraw(steps, draws, random))
    found = paired_difference(np.median(steps, axis=-1))
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.abs(drawn.center - found.center) / drawn.error
    half = np.quantile(np.nan_to_num(t, nan=1e9, posinf=1e9), CONFIDENCE, axis=0) * found.error
    return found.center - half, found.center + half


def step_test(steps: Floats, draws: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Every pair of steps counted as if it were a launch of its own."""
    found = paired_difference(steps.reshape(len(steps), -1))
    return found.center - found.half_width, found.center + found.half_width


def placebench(steps: Floats, draws: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """The t interval over launches."""
    found = paired_difference(np.median(steps, axis=-1))
    return found.center - found.half_width, found.center + found.half_width


def _redraw(steps: Floats, draws: int, random: np.random.Generator) -> Floats:
    """Values of launches drawn again, shape (draws, runs, launches), from steps (runs, launches, steps)."""
    runs, launches, length = steps.shape
    block, values = 3, np.empty((draws, runs, launches))
    which = np.arange(runs)[:, None]
    for draw in range(draws):
        drawn = steps[which, random.integers(0, launches, (runs, launches))]
        begins = random.integers(0, length, (runs, launches, -(-length // block)))
        places = (begins[..., None] + np.arange(block)).reshape(runs, launches, -1)[..., :length] % length
        values[draw] = np.median(np.take_along_axis(drawn, places, axis=-1), axis=-1)
    return values


METHODS = {
    "hierarchical bootstrap, percentiles": percentile_bootstrap,
    "hierarchical bootstrap, studentised": studentised_bootstrap,
    "t-test over steps": step_test,
    "placebench, t over launches": placebench,
}


def show_coverage(console: Console, runs: int) -> None:
    """Coverage and A/A false verdicts of placebench, by scenario and launches an arm."""
    table = table_of(
        f"Coverage of the 95 % interval / false verdicts of identical arms, {runs:,} runs each", "scenario"
    )
    for count in LAUNCHES:
        table.add_column(f"{count} launches", justify="right")
    for scenario in SCENARIOS:
        cells = []
        for count in LAUNCHES:
            found = list(differences(scenario, count, runs, np.random.default_rng(count)))
            cells.append(f"{share(iter(found), covers):6.1%} /{share(iter(found), errs):6.2%}")
        table.add_row(scenario.name, *cells)
    console.print(table)


def show_power(console: Console, runs: int) -> None:
    """How often an effect of a size is found."""
    table = table_of("Share of runs with verdict `slower`, by effect", "launches, noise")
    for effect in EFFECTS:
        table.add_column(f"{effect:.0%}", justify="right")
    for scenario in (TYPICAL, replace(TYPICAL, launch=0.003, step=0.01), replace(TYPICAL, launch=0.03, step=0.05)):
        for count in LAUNCHES:
            found = list(differences(scenario, count, runs, np.random.default_rng(count)))
            cells = (f"{share(iter(found), decides(effect)):.1%}" for effect in EFFECTS)
            table.add_row(f"{count}, launches {scenario.launch:.1%}, steps {scenario.step:.0%}", *cells)
    console.print(table)


def show_methods(console: Console, runs: int, draws: int) -> None:
    """Coverage and width of other intervals on the same runs."""
    title = f"Other intervals: coverage / median width in percent of the ratio, {runs:,} runs, {draws} draws"
    table = table_of(title, "interval, scenario")
    for count in LAUNCHES:
        table.add_column(f"{count} launches", justify="right")
    for scenario in (SCENARIOS[1], SCENARIOS[3], SCENARIOS[2]):
        for name, method in METHODS.items():
            cells = []
            for count in LAUNCHES:
                random = np.random.default_rng(count)
                first, other = simulate(scenario, count, runs, random)
                low, high = method(other - first, draws, random)
                cells.append(f"{((low <= 0) & (high >= 0)).mean():.1%} /{100 * np.median(high - low):5.1f}")
            table.add_row(f"{name}, {scenario.name}", *cells)
    console.print(table)


def auto_coverage(sd: float, auto: AutoRounds, runs: int, random: np.random.Generator) -> tuple[float, float, float]:
    """Coverage, false verdicts and mean rounds of runs with `--rounds auto` whose pairs differ by `sd`."""
    ended = until_precise(random.normal(0, sd, (runs, auto.max_rounds)), auto)
    return float(ended.covered.mean()), float(ended.wrong.mean()), float(ended.rounds.mean())


def show_auto(console: Console, runs: int) -> None:
    """What `--rounds auto` does to coverage, by the precision that is asked for."""
    table = table_of("--rounds auto, up to 20: coverage / false verdicts / mean rounds", "launches of a pair differ by")
    precisions = (0.02, 0.05, 0.10)
    for precision in precisions:
        table.add_column(f"--precision {precision:.0%}", justify="right")
    for sd in (0.005, 0.01, 0.02, 0.03, 0.05):
        cells = []
        for precision in precisions:
            found = auto_coverage(sd, AutoRounds(precision), runs, np.random.default_rng(0))
            cells.append(f"{found[0]:.1%} /{found[1]:6.2%} /{found[2]:5.1f}")
        table.add_row(f"{sd:.1%}", *cells)
    console.print(table)


@click.command()
@click.option("--runs", type=click.IntRange(min=100), default=10_000, show_default=True, help="Runs a scenario.")
@click.option("--draws", type=click.IntRange(min=99), default=499, show_default=True, help="Of a bootstrap.")
def main(runs: int, draws: int) -> None:
    """Print coverage, false verdicts and power, of other methods too."""
    console = Console(width=140)
    show_coverage(console, runs)
    show_power(console, runs)
    show_methods(console, min(runs, 2000), draws)
    show_auto(console, runs)


if __name__ == "__main__":
    main()
