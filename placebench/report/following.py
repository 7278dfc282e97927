"""Showing logs that still grow: the tables redrawn on a terminal, a line where there is news elsewhere."""

import io
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console
from rich.live import Live
from rich.text import Text

from placebench.compare.comparison import Comparison, compare_sides
from placebench.compare.measure.following import follow_sides
from placebench.compare.metrics import STEP_TIME, TOKENS_PER_DEVICE
from placebench.compare.read.sources import ReadingOptions, Source
from placebench.compare.side import Side
from placebench.errors import UsageError
from placebench.host.signals import StopSignals
from placebench.host.terminal import new_console
from placebench.report.brief import print_brief
from placebench.report.summary import summarize
from placebench.report.terminal import print_summary
from placebench.spec.text import plural, quantity, ratio

LOOK_S = 0.2
# The tables of long logs take a while: no more than this share of the time goes into them.
DRAWING_SHARE = 0.2


def follow_until_stopped(
    sources: Sequence[Source],
    options: ReadingOptions,
    console: Console,
    min_effect: float,
    *,
    force: bool = False,
    verbose: bool = False,
) -> list[Side]:
    """Show what the logs have measured so far until the user says stop (Ctrl-C).

    Args:
        sources: the logs.
        options: how they are read.
        console: where to show it.
        min_effect: smallest effect of interest, as a fraction.
        force: compare even what cannot mean anything.
        verbose: all tables, and not one screen of them.

    Returns:
        The sides as they were at the end; only those that have measured steps.

    Raises:
        UsageError: a log cannot be read on, the comparison cannot mean anything, or nothing was measured.
    """
    live: AbstractContextManager[Live | None] = nullcontext()
    if console.is_terminal:
        live = Live(console=console, auto_refresh=False, transient=True)
    with StopSignals() as signals, follow_sides(sources, options) as followed, live as view:
        seen, last = -1, ""
        while signals.received is None:
            time.sleep(LOOK_S)
            if signals.asks_to_pause:
                _pause(signals, view)
            if followed.steps == seen:
                continue
            begun = time.monotonic()
            seen = followed.steps
            sides, waiting = followed.read()
            comparison = compare_sides(sides, min_effect, force=force) if sides else None
            if view is not None:
                page = _page(comparison, waiting, options.warmup_steps, console.width, verbose=verbose)
                view.update(Text.from_ansi(page), refresh=True)
            elif (line := _line(comparison, waiting)) != last:
                console.print(Text(line), soft_wrap=True)
                last = line
            time.sleep((time.monotonic() - begun) * (1 / DRAWING_SHARE - 1))
        sides, waiting = followed.read()
    if not sides:
        raise UsageError(f"nothing was measured: {'; '.join(waiting)}")
    for text in waiting:
        console.print(Text(f"left out: {text}"), soft_wrap=True)
    return sides


def _pause(signals: StopSignals, view: Live | None) -> None:
    """Leave the terminal to others until the user lets this process go on."""
    if view is not None:
        view.stop()
    signals.pause()
    if view is not None:
        view.start(refresh=True)


def _page(
    comparison: Comparison | None, waiting: Sequence[str], warmup_steps: int, width: int, *, verbose: bool
) -> str:
    """The tables, to be redrawn in place on a terminal."""
    page = new_console(io.StringIO(), width=width, force_terminal=True)
    with page.capture() as captured:
        if comparison:
            summary = summarize(comparison, warmup_steps)
            if verbose:
                print_summary(summary, page)
            else:
                print_brief(summary, page, f"{summary.coverage}.")
        for text in waiting:
            page.print(f"waiting: {text}", style="yellow")
        page.print("Ctrl-C ends it.", style="dim")
    return captured.get()


def _line(comparison: Comparison | None, waiting: Sequence[str]) -> str:
    """What there is, in one line."""
    parts = [_side(side) for side in comparison.sides] if comparison else []
    return "; ".join([*parts, *(f"waiting: {text}" for text in waiting)])


def _side(side: Side) -> str:
    """What a side has measured so far, in a phrase."""
    numbers = [
        f"{metric.label} {quantity(side.value(metric.key), metric.unit)}"
        for metric in (STEP_TIME, TOKENS_PER_DEVICE)
        if side.estimate(metric.key).n
    ]
    found = side.ratios.get(STEP_TIME.key)
    if found:
        numbers.append(f"ratio {ratio(found.value, found.low, found.high)} {found.verdict}")
    steps = sum(launch.measured for launch in side.background.sources)
    return f"{side.name}: {plural(steps, 'step')} measured, {', '.join(numbers)}"
