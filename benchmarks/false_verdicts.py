#!/usr/bin/env python3
"""How often verdicts on one and the same thing are wrong: logs of real runs, and launches of one placement.

A log is cut into windows of consecutive steps that are dealt to two arms as if they were launches. Both arms are one
run, so every `faster` or `slower` is false. So it is with the launches of a run that has one placement, such as
`placebench calibrate` leaves.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import click
import pandas as pd
from rich.console import Console
from rich.table import Table

from placebench.compare.read.run_reading import load_run
from placebench.compare.statistics.estimates import LaunchValue, compare, control_false_discoveries
from placebench.compare.statistics.verdicts import Better, Verdict
from placebench.logs.run import read_run
from placebench.logs.timing import Kind

DEALT = (2, 3, 5)
WINDOWS = (10, 20)


def read_steps(path: Path) -> pd.DataFrame:
    """Seconds of the step and of its phases, a column each, without validation and checkpoints, in order of steps."""
    timings = read_run([path]).timings
    if timings is None:
        raise click.ClickException(f"{path}: the log has no timings")
    wide = timings.seconds[[phase for phase, kind in timings.kinds.items() if kind in (Kind.PHASE, Kind.STEP)]]
    apart = wide.columns.intersection(["testing", "save_checkpoint"])
    phases = wide.drop(columns=[*apart, "step"], errors="ignore")
    step = wide["step"] - wide[apart].fillna(0).sum(axis=1) if "step" in wide else phases.sum(axis=1)
    return phases.dropna(axis=1).assign(step=step)


def deal(log: pd.DataFrame, window: int, launches: int, *, swap: bool) -> Iterator[dict[str, Verdict]]:
    """Verdicts on a log dealt to two arms, by column, for every place where the dealing can begin.

    Args:
        log: from `read_steps`.
        window: steps that make a launch.
        launches: of an arm.
        swap: whether the arms take the first turn in turns, as placebench's rounds do.
    """
    for begin in range(len(log) - 2 * launches * window + 1):
        ratios = {}
        for name, column in log.items():
            values = column.to_numpy()[begin : begin + 2 * launches * window].reshape(launches, 2, window)
            first: dict[int, LaunchValue] = {}
            other: dict[int, LaunchValue] = {}
            for number, pair in enumerate(values):
                first[number], other[number] = (
                    pd.Series(steps) for steps in (pair[::-1] if swap and number % 2 else pair)
                )
            ratios[str(name)] = compare(first, other, Better.LESS)
        family = control_false_discoveries({name: ratio for name, ratio in ratios.items() if name != "step"})
        decided = {**family, "step": ratios["step"]}
        yield {name: ratio.verdict for name, ratio in decided.items() if ratio is not None}


def show_logs(console: Console, paths: Sequence[Path], windows: Sequence[int]) -> None:
    """False verdicts on real logs."""
    table = _table("One log dealt to two arms: false verdicts on the step / on any phase", "log, window, order")
    for path in paths:
        steps = read_steps(path)
        for window in windows:
            for swap in (True, False):
                cells = []
                for launches in DEALT:
                    verdicts = pd.DataFrame(deal(steps, window, launches, swap=swap))
                    if verdicts.empty:
                        cells.append(f"{2 * launches * window} steps needed, {len(steps)} there")
                        continue
                    false = verdicts.isin([Verdict.FASTER, Verdict.SLOWER])
                    phases = false.drop(columns="step").any(axis=1)
                    cells.append(f"{false['step'].mean():.1%} /{phases.mean():.1%} of {len(false)}")
                table.add_row(f"{path.name}, {window}, {'ABBA' if swap else 'ABAB'}", *cells)
    console.print(table)


def deal_launches(path: Path, launches: int) -> Iterator[tuple[bool, Verdict]]:
    """Verdicts on the launches of a run with one placement, dealt in pairs to two arms, from every launch on.

    Nothing tells the launches of a pair apart but who came first, so every order within pairs is a comparison of its
    own: windows of a few launches overlap, and few of them say little. With each verdict comes whether its order is the
    one of placebench's rounds.
    """
    run = load_run(path)
    measured = [
        launch.step_seconds[launch.step_seconds.index > launch.last_warmup_step]
        for launch in run.done(run.placements[0].name)
    ]
    as_rounds = tuple(number % 2 for number in range(launches))
    for begin in range(len(measured) - 2 * launches + 1):
        pairs = [measured[begin + 2 * number : begin + 2 * number + 2] for number in range(launches)]
        for order in product((0, 1), repeat=launches):
            first, other = (
                dict[int, LaunchValue](enumerate(pair[swap ^ arm] for pair, swap in zip(pairs, order, strict=True)))
                for arm in (0, 1)
            )
            ratio = compare(first, other, Better.LESS)
            if ratio is not None:
                yield order == as_rounds, ratio.verdict


def show_runs(console: Console, paths: Sequence[Path]) -> None:
    """False verdicts on real launches of one placement."""
    table = _table("Launches of one placement dealt to two arms: false verdicts on the step time", "run, order")
    for path in paths:
        found = [pd.DataFrame(deal_launches(path, launches), columns=["rounds", "verdict"]) for launches in DEALT]
        for name, chosen in (("as in rounds", [one[one["rounds"]] for one in found]), ("every order", found)):
            table.add_row(
                f"{path.name}, {name}", *(_count(one, launches) for one, launches in zip(chosen, DEALT, strict=True))
            )
    console.print(table)


def _count(found: pd.DataFrame, launches: int) -> str:
    if found.empty:
        return f"{2 * launches} launches needed"
    false = found["verdict"].isin([Verdict.FASTER, Verdict.SLOWER])
    return f"{false.sum()} of {len(false)} ({false.mean():.1%})"


def _table(title: str, first: str) -> Table:
    """A table with a column for each number of launches."""
    table = Table(title=title, title_justify="left", box=None)
    table.add_column(first, no_wrap=True)
    for launches in DEALT:
        table.add_column(f"{launches} + {launches} launches", justify="right")
    return table


@click.command()
@click.argument("sources", metavar="LOG|RUN...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--window",
    "windows",
    type=click.IntRange(min=2),
    multiple=True,
    default=WINDOWS,
    show_default=True,
    help="Steps of a log that make a launch; repeatable.",
)
def main(sources: tuple[Path, ...], windows: tuple[int, ...]) -> None:
    """Count false verdicts on logs, each of one run, and on the folders of runs that have one placement."""
    console = Console(width=140)
    if logs := [path for path in sources if path.is_file()]:
        show_logs(console, logs, windows)
    if runs := [path for path in sources if path.is_dir()]:
        show_runs(console, runs)


if __name__ == "__main__":
    main()
