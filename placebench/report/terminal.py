"""All of the report on the terminal, for `--verbose`; readable in 80 columns and without colors."""

from collections.abc import Sequence
from string import ascii_uppercase

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from placebench.compare.statistics.verdicts import Verdict
from placebench.report.columns import Holds, add_columns, broken
from placebench.report.comparison_table import Row, comparison_rows, note_on
from placebench.report.placement_schema import PlacementSummary
from placebench.report.schema import Summary
from placebench.report.tables import (
    Grid,
    calibration_grid,
    device_grid,
    difference_grid,
    observed_grid,
    overview_grid,
    scaling_grid,
    single_grid,
)
from placebench.report.time_tables import path_grid, short_path_grid, single_path_grid
from placebench.spec.legible import legible
from placebench.spec.text import plural

PHASE_INDENT = 2
STYLES = {Verdict.FASTER: "bold green", Verdict.SLOWER: "bold red", Verdict.UNDECIDED: "yellow"}


def print_summary(summary: Summary, console: Console) -> None:
    """Print what the report says; nothing is colored where the console has no colors."""
    summary = legible(summary)
    shown = _with_short_names(summary, console)
    tables = _tables(shown, console.width)
    for number, table in enumerate(tables):
        if number:
            console.print()
        console.print(table)
    _print_words(summary, console)
    differing = difference_grid(shown)
    if differing.rows:
        console.print()
        console.print(grid_table(differing, texts=len(differing.header), width=console.width))
    console.print(f"{summary.coverage}.", highlight=False)
    if summary.times:
        console.print(f"{summary.times.sentence}.", highlight=False)


def _tables(summary: Summary, width: int) -> list[Table]:
    """The tables of numbers, those that have rows."""
    first, *others = summary.placements
    tables = []
    for other in others:
        if rows := comparison_rows(first, other):
            tables.append(against_table(f"{other.name} against {first.name}", first, other, rows, width))
        tables += _grid_tables([(short_path_grid(path_grid(first, other)), 1)], width)
    single = [] if others else [(single_grid(first), 1), (single_path_grid(first), 1)]
    more = [(calibration_grid(summary), 1), (overview_grid(summary), 1), (scaling_grid(summary), 3)]
    seen = [(observed_grid(summary), 4)] if shows_places(summary) else []
    return tables + _grid_tables([*single, *more, *seen, (device_grid(summary), 3)], width)


def shows_places(summary: Summary) -> bool:
    """Whether it is news where roles were seen: placebench has itself put those of its own job where they are."""
    return bool(summary.job) or any(one.differences for found in summary.placements for one in found.observed)


def _grid_tables(grids: Sequence[tuple[Grid, int]], width: int) -> list[Table]:
    """Tables of grids, each with how many of its columns are texts."""
    return [grid_table(grid, texts, width) for grid, texts in grids if grid.rows]


def _with_short_names(summary: Summary, console: Console) -> Summary:
    """The summary with letters in place of names, which are told, where a table has no room for whole names."""
    names = {placement.name for placement in summary.placements}
    differing = difference_grid(summary)
    tables = _tables(summary, console.width) + _grid_tables([(differing, len(differing.header))], console.width)
    cells = (str(cell) for table in tables for column in table.columns for cell in (column.header, *column.cells))
    if not any("\n" in cell and cell.replace("\n", "") in names for cell in cells):
        return summary
    short = {placement.name: _letters(number) for number, placement in enumerate(summary.placements)}
    for name, letters in short.items():
        console.print(Text.assemble((f"{letters}  ", "bold"), name))
    console.print()
    placements = tuple(one.model_copy(update={"name": short[one.name]}) for one in summary.placements)
    scaling = tuple(
        one.model_copy(update={"placement": short[one.placement], "base": short[one.base]}) for one in summary.scaling
    )
    return summary.model_copy(update={"placements": placements, "scaling": scaling})


def _letters(number: int) -> str:
    """A to Z, then AA, AB and so on."""
    before, letter = divmod(number, len(ascii_uppercase))
    return (_letters(before - 1) if before else "") + ascii_uppercase[letter]


def _print_words(summary: Summary, console: Console) -> None:
    """How the numbers came about, what to mind, and what follows from them."""
    console.print(_how(summary), style="dim", markup=False, highlight=False)
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
    """How the numbers of the tables came about, in three lines at most; the report has the rest."""
    if summary.kind == "comparison":
        more = "Phases that overlap are never added up."
    else:
        more = f"Device load: {summary.method.load}. The report says more."
    return f"Values: median step of a launch, {warmup_told(summary)} left out; mean of the launches. {more}"


def warmup_told(summary: Summary) -> str:
    """The warm-up steps of the launches, as one number or a range."""
    found = {launch.warmup_steps for launch in summary.launches if launch.warmup_steps is not None}
    counts = sorted(found or {summary.method.warmup_steps})
    most = plural(counts[-1], "warm-up step")
    return most if len(counts) == 1 else f"{counts[0]} to {most}"


def against_table(
    title: str, first: PlacementSummary, other: PlacementSummary, rows: Sequence[Row], width: int
) -> Table:
    """The table of one placement against the first."""
    table = _table(title)
    headings = ("", first.name, other.name, "ratio", "95 % interval", "verdict")
    holds = (Holds.LABELS, *[Holds.NUMBERS] * 4, Holds.LABELS)
    indents = [PHASE_INDENT * row.is_phase for row in rows]
    cells = [
        (" " * indent + row.label, row.first, row.other, row.ratio, row.interval, row.marked_verdict)
        for row, indent in zip(rows, indents, strict=True)
    ]
    add_columns(table, headings, holds, cells, width)
    for row, indent in zip(rows, indents, strict=True):
        verdict = Text(row.marked_verdict, STYLES.get(Verdict(row.verdict), "") if row.verdict else "")
        label = Padding(Text(row.label), (0, 0, 0, indent))
        table.add_row(label, row.first, row.other, row.ratio, row.interval, verdict)
    if note := note_on(rows):
        _say_below(table, note)
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
    if grid.notes:
        _say_below(table, "\n".join(grid.notes))
    return table


def _say_below(table: Table, note: str) -> None:
    table.caption, table.caption_justify, table.caption_style = Text(note), "left", "dim"


def _table(title: str) -> Table:
    return Table(title=Text(title), title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 1))
