"""What a search for placements found, as users see it: on the terminal, and as a file under a versioned schema."""

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Literal

from pydantic import Field
from rich.console import Console
from rich.text import Text

from placebench.predict.finding import FoundGroup, FoundPlacements
from placebench.report.deciding import DecidingRun
from placebench.report.predicted import (
    PredictionFile,
    PredictionModel,
    Question,
    about_choice,
    about_trust,
    prediction_file,
    print_deciding,
    print_job,
    step_grid,
)
from placebench.report.terminal import grid_table
from placebench.spec.text import few, plural


class FoundFile(PredictionModel):
    """A placement that was found."""

    placement: str = Field(description="the word, or the name of a file that says it")
    moved_devices: Annotated[int, Field(ge=0)] = Field(description="how many get roles that they do not have now")
    text: str | None = Field(description="of the file; null for a word")


class SearchGroup(PredictionModel):
    """The fastest placements on weights that are at most so old."""

    staleness: int
    placements: tuple[FoundFile, ...]
    more_layouts: int = Field(description="how many tie with the fastest and are not among the placements")
    walked: int = Field(description="placements whose step was walked")
    predictions: PredictionFile


class SearchFile(PredictionModel):
    """The content of what `placebench search --json` writes."""

    schema_version: Literal[1] = 1
    now: str | None = Field(description="the placement from which devices move; null where there is none")
    groups: tuple[SearchGroup, ...] = Field(description="first without staleness, then with it")


def search_file(found: FoundPlacements, asked: Question) -> SearchFile:
    """Put what was found into the form of the file."""
    return SearchFile(
        now=found.now.name if found.now else None,
        groups=tuple(
            SearchGroup(
                staleness=group.staleness,
                placements=tuple(
                    FoundFile(placement=name, moved_devices=moved, text=found.files.get(name))
                    for name, moved in zip(_names(group), group.moved, strict=True)
                ),
                more_layouts=group.more,
                walked=group.result.walked,
                predictions=prediction_file(group.predictions, asked),
            )
            for group in found.groups
        ),
    )


def print_found(found: FoundPlacements, asked: Question, console: Console) -> None:
    """Print the table of each group, and how far it is to be trusted.

    Args:
        found: what was found.
        asked: what it answers; its run has the files of placements that no word says.
        console: takes the text.
    """
    print_job(asked, console)
    for group in found.groups:
        if group.staleness:
            console.print()
        console.print(Text(_heading(found, group)))
        console.print()
        console.print(grid_table(step_grid(group.predictions, {"moves": _moves(found, group)}), 1, console.width))
        console.print()
        about = (_about_unused(group, len(asked.devices)), _about_ties(group))
        for line in (*chain(*about), *about_trust(group.predictions), *about_choice(group.predictions)):
            console.print(Text(line))
        print_deciding(group.predictions, asked.deciding, console)
    notes = (f"Note: {note}." for note in asked.notes)
    for line in (*_about_moves(found), *_about_files(found, asked.deciding), *notes):
        console.print(Text(line), style="dim")


def _names(group: FoundGroup) -> list[str]:
    return [one.placement.name for one in group.predictions.placements]


def _heading(found: FoundPlacements, group: FoundGroup) -> str:
    order = "those that move fewest devices" if found.now else "those of fewest pools"
    best = f"the fastest is {group.predictions.fastest.placement.name}; {order} come first:"
    if group.staleness:
        return (
            f"With generation ahead of training, on weights up to {plural(group.staleness, 'update')} old, which"
            f" changes what is trained: {best}"
        )
    return f"Of placements that do not change what is trained, {best}"


def _moves(found: FoundPlacements, group: FoundGroup) -> list[str]:
    if found.now is None:
        return ["" for _ in group.moved]
    return [
        "now" if name == found.now.name else f"{moved:,}"
        for name, moved in zip(_names(group), group.moved, strict=True)
    ]


def _about_unused(group: FoundGroup, devices: int) -> Iterator[str]:
    found = group.predictions.placements
    fewer = [f"{one.placement.name} {one.placement.size:,}" for one in found if one.placement.size < devices]
    if fewer:
        of_used = "tokens/s/device counts"
        if any(one.cost is not None for one in found):
            of_used = "tokens/s/device and cost/M count"
        yield f"Fewer than the {devices:,} devices are used by {', '.join(fewer)}; {of_used} only those used."


def _about_ties(group: FoundGroup) -> Iterator[str]:
    if group.more:
        yield f"{plural(group.more, 'more layout')} cannot be told from the fastest either; --most shows them."


def _about_moves(found: FoundPlacements) -> Iterator[str]:
    if found.now and all(found.now.name not in _names(group) for group in found.groups):
        yield f"Moves are counted from {found.now.name}, which is not among these; --now names another."


def _about_files(found: FoundPlacements, deciding: DecidingRun) -> Iterator[str]:
    if not found.files:
        if not deciding.is_unwritten:
            yield "Note: each of these placements has a word, so --write has written no file."
        return
    if deciding.is_unwritten:
        have = "has" if len(found.files) == 1 else "have"
        yield f"Note: {few(found.files, ', ')} {have} no word; --write DIR writes the files for --placements."
    else:
        yield f"Note: written for --placements: {few((deciding.spelled[name] for name in found.files), ', ')}."
