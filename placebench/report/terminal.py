"""The report on the terminal: verdict, reason, tables. Readable in 80 columns and without colours."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from placebench.compare.comparison import compare_run
from placebench.compare.statistics.estimates import Verdict
from placebench.record.folder import RunFolder
from placebench.report.columns import Holds, add_columns, broken
from placebench.report.notes import efficiency_formula
from placebench.report.paths import HTML, MARKDOWN, TRACE
from placebench.report.schema import PlacementSummary, Summary
from placebench.report.shared import SHARED, read_summary
from placebench.report.summary import summarize
from placebench.report.tables import (
    Grid,
    Row,
    calibration_grid,
    comparison_rows,
    device_grid,
    difference_grid,
    overview_grid,
    scaling_grid,
    single_grid,
)
from placebench.report.time_tables import path_grid, short_path_grid, single_path_grid
from placebench.spec.legible import legible
from placebench.spec.text import plural

PHASE_INDENT = 2
STYLES = {Verdict.FASTER: "bold green", Verdict.SLOWER: "bold red", Verdict.UNDECIDED: "yellow"}


def show(run_dir: Path, console: Console, min_effect: float | None = None) -> None:
    """Print a run's tables, the reason and the paths of the report's files that are there.

    Args:
        run_dir: the run's folder.
        console: where to.
        min_effect: smallest effect of interest, as a fraction; None for the run's own.

    Raises:
        UsageError: the folder is missing, is not a run, has a newer schema, or one of its files is damaged.
    """
    if RunFolder(run_dir).lacks_raw_files:
        print_summary(read_summary(run_dir, min_effect), console)
        console.print(SHARED, style="yellow", highlight=False)
    else:
        print_summary(summarize(compare_run(run_dir, min_effect)), console)
    for path in (run_dir / name for name in (HTML, MARKDOWN, TRACE)):
        if path.is_file():
            console.print(str(path), style="cyan", highlight=False, soft_wrap=True)


def print_summary(summary: Summary, console: Console) -> None:
    """Print what the report says; nothing is coloured where the console has no colours."""
    summary = legible(summary)
    _print_numbers(summary, console)
    _print_words(summary, console)
    differing = difference_grid(summary)
    if differing.rows:
        console.print()
        console.print(grid_table(differing, texts=len(differing.header), width=console.width))
    console.print(f"{summary.coverage}.", highlight=False)


def _print_numbers(summary: Summary, console: Console) -> None:
    """The tables, those that have rows."""
    first, *others = summary.placements
    for other in others:
        if rows := comparison_rows(first, other):
            console.print(_against(f"{other.name} against {first.name}", first, other, rows, console.width))
            console.print()
        _print_grid(short_path_grid(path_grid(first, other)), 1, console)
    if not others:
        _print_grid(single_grid(first), 1, console)
        _print_grid(single_path_grid(first), 1, console)
    _print_grid(calibration_grid(summary), 1, console)
    _print_grid(overview_grid(summary), 1, console)
    _print_grid(scaling_grid(summary), 3, console)
    devices = device_grid(summary)
    if devices.rows:
        console.print(grid_table(devices, texts=3, width=console.width))


def _print_grid(grid: Grid, texts: int, console: Console) -> None:
    """A table and a blank line behind it; nothing where it has no rows."""
    if grid.rows:
        console.print(grid_table(grid, texts, console.width))
        console.print()


def _print_words(summary: Summary, console: Console) -> None:
    """How the numbers came about, what to mind, and what follows from them."""
    console.print(_how(summary), style="dim", markup=False, highlight=False)
    if formula := efficiency_formula(summary):
        console.print(formula, style="dim", markup=False, highlight=False)
    for warning in summary.warnings:
        console.print(Text.assemble(("warning: ", "yellow"), warning))
    if summary.method.noise:
        console.print(summary.method.noise, style="dim", markup=False, highlight=False)
    if summary.calibration:
        console.print()
        console.print(Text(summary.calibration.headline, "bold"))
    for placement in summary.verdicts:
        console.print()
        console.print(Text(placement.headline or "", "bold"))
        for reason in placement.reasons:
            console.print(Padding(Text(reason), (0, 0, 0, 2)))
    for placement in summary.placements:
        if not placement.headline:
            for reason in placement.reasons:
                console.print()
                console.print(Text(reason))
    if summary.suggestion:
        console.print()
        console.print(Text(summary.suggestion.text))


def _how(summary: Summary) -> str:
    """How the numbers of the tables came about."""
    if summary.kind == "comparison":
        return f"Steps: {summary.method.steps}. Phases that overlap are never added up."
    return f"Steps: {summary.method.steps}; {_warmup(summary)} left out. Device load: {summary.method.load}."


def _warmup(summary: Summary) -> str:
    """The warm-up steps of the launches, as one number or a range."""
    found = {launch.warmup_steps for launch in summary.launches if launch.warmup_steps is not None}
    counts = sorted(found or {summary.method.warmup_steps})
    most = plural(counts[-1], "warm-up step")
    return most if len(counts) == 1 else f"{counts[0]} to {most}"


def _against(title: str, first: PlacementSummary, other: PlacementSummary, rows: Sequence[Row], width: int) -> Table:
    """The table of one placement against the first."""
    table = _table(title)
    headings = ("", first.name, other.name, "ratio", "95 % interval", "verdict")
    holds = (Holds.LABELS, *[Holds.NUMBERS] * 4, Holds.LABELS)
    indents = [PHASE_INDENT * row.is_phase for row in rows]
    cells = [
        (" " * indent + row.label, row.first, row.other, row.ratio, row.interval, row.verdict)
        for row, indent in zip(rows, indents, strict=True)
    ]
    add_columns(table, headings, holds, cells, width)
    for row, indent in zip(rows, indents, strict=True):
        verdict = Text(row.verdict, STYLES.get(Verdict(row.verdict), "") if row.verdict else "")
        label = Padding(Text(row.label), (0, 0, 0, indent))
        table.add_row(label, row.first, row.other, row.ratio, row.interval, verdict)
    return table


def grid_table(grid: Grid, texts: int, width: int) -> Table:
    """A table whose first `texts` columns are text, names where they have a heading, the others numbers."""
    table = _table(grid.title)
    holds = [
        Holds.NUMBERS if index >= texts else Holds.NAMES if heading else Holds.LABELS
        for index, heading in enumerate(grid.header)
    ]
    widths = add_columns(table, grid.header, holds, grid.rows, width)
    for row in grid.rows:
        table.add_row(*(Text(broken(cell, columns)) for cell, columns in zip(row, widths, strict=True)))
    return table


def _table(title: str) -> Table:
    return Table(title=Text(title), title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 1))
