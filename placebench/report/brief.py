"""The report on one screen of a terminal: verdict, reason, the few numbers that matter, and what to mind.

Verdicts and their table stand whole. Of the rest, warnings come first, then advice, then reasons: what has no room is
cut at the end of a clause or counted, and `--verbose` has it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from placebench.compare.metrics import ENERGY, IDLE, LOAD, LOG_CLOCK, MEMORY, STEP_TIME, TOKENS, TOKENS_PER_DEVICE
from placebench.record.folder import Status
from placebench.report.comparison_table import rows_of, text_of
from placebench.report.placement_schema import PlacementSummary, QuantitySummary
from placebench.report.schema import Summary
from placebench.report.tables import (
    Grid,
    calibration_grid,
    observed_grid,
    overview_grid,
    scaling_grid,
)
from placebench.report.terminal import against_table, grid_table, shows_places
from placebench.report.time_tables import single_path_grid
from placebench.spec.legible import legible
from placebench.spec.text import AGAINST, UNCERTAIN, few, plural

# A terminal has 24; the last has the prompt.
LINES = 23
# The numbers of the table, the first of them always.
KEYS = (STEP_TIME, LOG_CLOCK, TOKENS_PER_DEVICE, TOKENS, IDLE, MEMORY, LOAD, ENERGY)
MOST_ROWS, FEW_ROWS = 6, 4
# More verdicts than this are a column of the table alone.
MOST_VERDICTS = 2
LEAST_WARNINGS, LEAST_REASONS, MOST_ADVICE = 4, 2, 3
INDENT = 2
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_LAUNCH = re.compile(r"round \d+ .*: ")
_CLAUSE = re.compile(r"(?<=[.;]) (?=\S)|(?<=,) (?=but |and in return )")
_FIGURE = re.compile(r"\d (?:ms|s|min|h|%)(?!\w)")
_PHRASE = re.compile(r"(?<=[,:]) | (?=and |\()")


def print_brief(summary: Summary, console: Console, more: str, files: Sequence[str] = ()) -> None:
    """Print a summary on one screen of 24 lines, as long as it has no more than three placements.

    Args:
        summary: of a run or a comparison.
        console: where to; the screen is as wide.
        more: the line that says how much was measured, and where everything else is.
        files: paths of the report's files that are worth a line, which stand below it.
    """
    last = Text(more, "dim")
    screen = _Screen(console)
    screen.leave([last, *map(Text, files)])
    for part in [*screen.parts(legible(summary)), last]:
        console.print(part)
    for path in files:
        console.print(path, style="cyan", markup=False, highlight=False, soft_wrap=True)


class _Screen:
    """One screen of a console, and how many of its lines are left."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._left = LINES

    def leave(self, parts: Iterable[RenderableType]) -> None:
        """Leave room for what is printed outside of `parts`."""
        self._left -= self._height(parts)

    def parts(self, summary: Summary) -> Iterator[RenderableType]:
        """What is printed, in its order; what must be there takes its room before what may be."""
        verdicts = _verdicts(summary)
        warnings = [Text.assemble(("warning: ", "yellow"), text) for text in together(_to_mind(summary))]
        is_crowded = self._height(warnings) > LEAST_WARNINGS
        table, *more = _tables(summary, self._console.width, FEW_ROWS if is_crowded else MOST_ROWS)
        advice = [self._shortened(summary.suggestion.text, MOST_ADVICE)] if summary.suggestion else []

        gaps = [Text()] * (2 if warnings or advice else 1)
        self.leave([*(text for text, _ in verdicts), table, *gaps, *advice])
        reasons = LEAST_REASONS * sum(bool(found) for _, found in verdicts)
        warnings = self._take(warnings, max(self._left - reasons, LEAST_WARNINGS))
        self.leave(warnings)

        for number, (text, found) in enumerate(verdicts):
            yield text
            yield from self._reasons(found, self._left // (len(verdicts) - number))
        yield from (Text(), table)
        for one in more:
            if (height := self._height([Text(), one])) <= self._left:
                self._left -= height
                yield from (Text(), one)
        if warnings or advice:
            yield Text()
        yield from (*warnings, *advice)

    def _height(self, parts: Iterable[RenderableType]) -> int:
        return sum(len(self._console.render_lines(part, pad=False)) for part in parts)

    def _take(self, warnings: Sequence[Text], most: int) -> list[Text]:
        """The first warnings that have room in so many lines; one line counts the others."""
        kept = list(warnings)
        while kept and self._height(kept) + (len(kept) < len(warnings)) > most:
            kept.pop()
        if more := len(warnings) - len(kept):
            kept.append(Text(f"{plural(more, 'more warning')}: see --verbose", "yellow"))
        return kept

    def _reasons(self, reasons: Iterable[str], most: int) -> Iterator[RenderableType]:
        """Reasons in at most so many lines."""
        for number, reason in enumerate(reasons):
            part = self._shortened(self._decisive(reason, most), most, INDENT, _FIGURE)
            if most < (LEAST_REASONS if number else 1) or self._height([part]) > most:
                return
            most -= self._height([part])
            self._left -= self._height([part])
            yield part

    def _decisive(self, reason: str, most: int) -> str:
        """A reason, or where that has no room in so many lines what led to the verdict against all else."""
        _, but, decisive = reason.partition(AGAINST)
        is_whole = not but or reason.startswith(UNCERTAIN) or self._height([_indented(reason, INDENT)]) <= most
        return reason if is_whole else f"… {but.removeprefix(', ')}{decisive}"

    def _shortened(self, text: str, most: int, indent: int = 0, keeps: re.Pattern[str] | None = None) -> RenderableType:
        """A text that takes no more than so many lines, cut at the end of a clause, or else of a phrase.

        The whole text where no cut is as short, or as long as to keep what makes it worth reading.
        """
        found = keeps.search(text) if keeps else None
        least_end = found.end() if found else 0
        if self._height([whole := _indented(text, indent)]) <= most:
            return whole
        for ends, least in ((_CLAUSE, most - 1), (_PHRASE, 0)):
            for end in reversed([found.start() for found in ends.finditer(text, least_end)]):
                kept = text[:end].rstrip(".;:,")
                part = _indented(f"{kept} …{')' * (kept.count('(') - kept.count(')'))}", indent)
                if least <= self._height([part]) <= most:
                    return part
        return whole


def _indented(text: str, indent: int) -> RenderableType:
    return Padding(Text(text), (0, 0, 0, indent))


def _verdicts(summary: Summary) -> list[tuple[Text, tuple[str, ...]]]:
    """Sentences with their reasons: of each placement, or of the fastest of many."""
    if summary.calibration:
        return [(Text(summary.calibration.headline, "bold"), ())]
    told = summary.verdicts
    if len(told) > MOST_VERDICTS:
        told = tuple(sorted(told, key=_ratio)[:1])
    found = [(Text(one.headline or "", "bold"), one.reasons) for one in told]
    if not found:
        return [(Text(f"{summary.name}: {summary.status}", "bold"), ())]
    # Of the first of several there are reasons without a verdict: that its devices wait.
    return found


def _ratio(placement: PlacementSummary) -> float:
    ratio = next((one.ratio for one in placement.quantities if one.key == STEP_TIME.key), None)
    return ratio.value if ratio else float("inf")


def _nothing(summary: Summary) -> str:
    """That there are no numbers, or none yet; what became of the launches stands among the warnings."""
    is_to_come = summary.status in (Status.PLANNED, Status.RUNNING)
    return f"Nothing has been measured {'yet' if is_to_come else 'to its end'}."


def _tables(summary: Summary, width: int, rows: int) -> list[RenderableType]:
    """The table of the few numbers, and others that stand below it where there is room."""
    first, *others = summary.placements
    scaling = _grids([(scaling_grid(summary), 3)], width)
    if summary.calibration:
        return _grids([(calibration_grid(_of_longest(summary, first, rows)), 1)], width) or [_numbers(summary)]
    if not others:
        seen = [(observed_grid(summary), 4)] if shows_places(summary) else []
        return [_numbers(summary), *_grids([*seen, (_longest(single_path_grid(first)), 1)], width)]
    if len(others) > 1:
        return [_overview(summary, width), *scaling]
    (other,) = others
    pairs = _few_pairs(first, other, rows)
    if not pairs:
        return [Text(_nothing(summary))]
    return [against_table("", first, other, rows_of(*zip(*pairs, strict=True)), width), *scaling]


def _of_longest(summary: Summary, placement: PlacementSummary, most: int) -> Summary:
    """The same with the noise of the step and of its longest phases alone."""
    calibration = summary.calibration
    assert calibration
    seconds = {one.key: one.value or 0.0 for one in placement.quantities if one.key.startswith("phase/")}
    longest = sorted(seconds, key=lambda key: -seconds[key])[: most - 1]
    noise = tuple(one for one in calibration.noise if one.key in (STEP_TIME.key, *longest))
    return summary.model_copy(update={"calibration": calibration.model_copy(update={"noise": noise})})


def _grids(grids: Iterable[tuple[Grid, int]], width: int) -> list[RenderableType]:
    return [grid_table(grid, texts, width) for grid, texts in grids if grid.rows]


def _few_pairs(
    first: PlacementSummary, other: PlacementSummary, most: int
) -> list[tuple[QuantitySummary, QuantitySummary]]:
    """The same numbers of both: those of the step, then the phases that differ most where no reason names them."""
    pairs = [
        pair
        for pair in zip(first.quantities, other.quantities, strict=True)
        if any(found.value is not None for found in pair)
    ]
    keys = [metric.key for metric in KEYS]
    chosen = sorted((pair for pair in pairs if pair[0].key in keys), key=lambda pair: keys.index(pair[0].key))
    if TOKENS_PER_DEVICE.key in (pair[0].key for pair in chosen):
        chosen = [pair for pair in chosen if pair[0].key != TOKENS.key]
    if not other.reasons:
        phases = [pair for pair in pairs if pair[0].key.startswith("phase/")]
        chosen += sorted(phases, key=_apart, reverse=True)
    return chosen[:most] or pairs[:most]


def _apart(pair: tuple[QuantitySummary, QuantitySummary]) -> float:
    before, now = (found.value or 0.0 for found in pair)
    return abs(now - before)


def _overview(summary: Summary, width: int) -> RenderableType:
    """A row for each placement, with fewer columns where names or headings would be broken."""
    grid = overview_grid(summary)
    spared = [name for name in ("tokens/s/device", "devices") if name in grid.header]
    if "devices" in spared and len({row[grid.header.index("devices")] for row in grid.rows}) == 1:
        grid, spared = _without(grid, "devices"), [name for name in spared if name != "devices"]
    for name in (*spared, None):
        table = grid_table(_without(grid, None), 1, width)
        if name is None or not any("\n" in str(text) for one in table.columns for text in (one.header, *one.cells)):
            break
        grid = _without(grid, name)
    return table


def _without(grid: Grid, heading: str | None) -> Grid:
    """A table without a column and without its title, with its notes."""
    kept = [index for index, name in enumerate(grid.header) if name != heading]
    return Grid(
        "",
        tuple(grid.header[index] for index in kept),
        tuple(tuple(row[index] for index in kept) for row in grid.rows),
        grid.notes,
    )


def _numbers(summary: Summary) -> Text:
    """The numbers of the first placement, which is compared with nothing, in a line or two."""
    found = {one.key: one for one in summary.placements[0].quantities if one.value is not None}
    if TOKENS_PER_DEVICE.key in found:
        found.pop(TOKENS.key, None)
    shown = [found[metric.key] for metric in KEYS if metric.key in found and metric is not STEP_TIME]
    if not shown:
        phases = [one for one in found.values() if one.key.startswith("phase/")]
        shown = sorted(phases, key=lambda one: -(one.value or 0.0))[:FEW_ROWS]
    none = "Nothing else was measured." if STEP_TIME.key in found else _nothing(summary)
    return Text(", ".join(f"{one.label} {text_of(one)}" for one in shown) or none)


def _longest(grid: Grid) -> Grid:
    """The longest parts of a path and its sum: the second column is a time, the rows but the last are parts."""
    *rows, total = grid.rows or ((),)
    if not rows:
        return grid
    shares = {row: float(row[2].removesuffix(" %")) for row in rows}
    longest = sorted(rows, key=lambda row: -shares[row])[: MOST_ROWS - 1]
    return Grid(grid.title, grid.header, (*(row for row in rows if row in longest), total))


def _to_mind(summary: Summary) -> Iterator[str]:
    """Warnings, and what else differs between compared runs."""
    yield from summary.warnings
    if differing := [fact.name for fact in summary.facts if fact.differs]:
        yield f"the runs differ in {few(differing, ', ', 4)}"


def together(warnings: Iterable[str]) -> list[str]:
    """Warnings that say the same of several launches or placements as one: `standard: …` and `split: …`.

    They are the same but for their numbers, of which the smallest and the largest are told.
    """
    alike: dict[tuple[bool, str], list[tuple[str, str]]] = {}
    for text in warnings:
        who, colon, what = text.partition(": ")
        if _LAUNCH.match(what):  # of one of several runs
            launch, colon, what = what.partition(": ")
            who = f"{who}: {launch}"
        if not colon or who.endswith("."):
            who, what = "", text
        alike.setdefault((bool(who), _NUMBER.sub("#", what) if who else text), []).append((who, what))
    return [_as_one(found) for found in alike.values()]


def _as_one(found: Sequence[tuple[str, str]]) -> str:
    (who, what), *others = found
    if not who:
        return what
    if not others:
        return f"{who}: {what}"
    columns = zip(*(_NUMBER.findall(text) for _, text in found), strict=True)
    ranges = iter([_range(column) for column in columns])
    return f"{few((name for name, _ in found), ', ', 3)}: {_NUMBER.sub(lambda _: next(ranges), what)}"


def _range(numbers: Sequence[str]) -> str:
    ordered = sorted(set(numbers), key=lambda number: float(number.replace(",", "")))
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"
