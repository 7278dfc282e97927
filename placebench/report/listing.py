"""What runs there are and how they went, from `run.json` and `summary.json` alone: no launch is read."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, ValidationError
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from placebench.errors import UsageError
from placebench.record.folder import RunFolder, Status, run_folders
from placebench.record.parts import Record
from placebench.record.run_file import read_run_file
from placebench.report.columns import GAP
from placebench.spec.legible import encodable, legible
from placebench.spec.reading import exists, read_text
from placebench.spec.text import MISSING, ratio

DAMAGED = "damaged"
# The key of a step's time, and how much of an ISO 8601 time tells runs apart.
_STEP, _MINUTES = "step_time", len("2026-11-22T07:55")


class ListedRatio(Record):
    """A step against that of the first placement, as `summary.json` has it."""

    value: float
    low: float | None
    high: float | None
    verdict: str


class ListedQuantity(Record):
    """A number of a placement in `summary.json`."""

    key: str
    ratio: ListedRatio | None


class ListedPlacement(Record):
    """A placement in `summary.json`."""

    name: str
    quantities: tuple[ListedQuantity, ...]
    headline: str | None = None

    @property
    def step(self) -> ListedRatio | None:
        """Its step against that of the first placement; None where they are not compared."""
        return next((found.ratio for found in self.quantities if found.key == _STEP), None)


class ListedSummary(Record):
    """As much of `summary.json` as a list of runs shows, of this version or another."""

    name: str
    status: str
    started: str
    done: int
    planned: int
    placements: tuple[ListedPlacement, ...]


class ListedRun(Record):
    """One run of a list."""

    name: str
    """What it is called, the folder's name where it has no other."""
    folder: str
    """Its folder."""
    started: str
    """When it was started, ISO 8601; empty where its files are damaged."""
    status: str
    """How it stands; `damaged` where its files do not say."""
    done: int = 0
    """Launches that are done."""
    launches: int = 0
    """Launches that it is to have."""
    placements: tuple[str, ...] = ()
    """The names of its placements."""
    verdicts: dict[str, ListedRatio] = Field(default_factory=dict)
    """By the name of each placement that is compared with the first, how its steps compare."""
    error: str | None = None
    """What is wrong with its files; None where nothing is."""


def list_runs(above: Path) -> list[ListedRun]:
    """The runs in a folder, newest first."""
    return [listed_run(folder) for folder in run_folders(above)]


def listed_run(folder: RunFolder) -> ListedRun:
    """A run as the list has it."""
    where = {"name": encodable(folder.path.name), "folder": encodable(str(folder.path))}
    error: str | None = None
    summary: ListedSummary | None = None
    try:
        if exists(folder.summary_file):
            summary = ListedSummary.model_validate_json(read_text(folder.summary_file))
    except (UsageError, ValidationError):
        error = f"{folder.summary_file}: not as placebench writes it"
    compared = summary.placements if summary else ()
    verdicts = {one.name: one.step for one in compared if one.step}
    if summary and not folder.run_file.exists():
        names = tuple(one.name for one in summary.placements)
        return ListedRun(
            **where | {"name": summary.name or where["name"]},
            started=summary.started,
            status=summary.status,
            done=summary.done,
            launches=summary.planned,
            placements=names,
            verdicts=verdicts,
        )
    try:
        record = read_run_file(folder)
    except UsageError as wrong:
        return ListedRun(**where, started="", status=DAMAGED, error=str(wrong))
    names = tuple(one.name for one in record.placements)
    return ListedRun(
        **where | {"name": record.name or where["name"]},
        started=record.started,
        status=record.status,
        done=sum(launch.status is Status.DONE for launch in record.launches),
        launches=record.rounds * len(names),
        placements=names,
        # A run that is resumed has the summary of before.
        verdicts={} if record.status is Status.RUNNING else verdicts,
        error=error,
    )


def print_runs(runs: Sequence[ListedRun], console: Console) -> None:
    """A line a run where all fit; else two, so that no name is broken."""
    runs = legible(list(runs))
    names = [run.name for run in runs]
    # By a name that is given twice, no run is found.
    words = [Path(run.folder).name if names.count(run.name) > 1 else run.name for run in runs]
    cells = [(word, _started(run), _status(run), run) for word, run in zip(words, runs, strict=True)]
    rows = [(*row, ", ".join(run.placements) or MISSING, _verdicts(run) or MISSING) for *row, run in cells]
    headings = ("run", "started (UTC)", "status", "placements", "verdict")
    widths = [max(map(cell_len, column)) for column in zip(headings, *rows, strict=True)]
    if sum(widths) + GAP * (len(widths) - 1) <= console.width:
        table = Table(box=None, pad_edge=False, padding=(0, 1))
        for heading in headings:
            table.add_column(heading)
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)
        return
    for word, started, status, run in cells:
        console.print(Text(f"{started:{widths[1]}}  {status:{widths[2]}}  {word}"), soft_wrap=True)
        placed = [" ".join(filter(None, (name, _verdict(run, name)))) for name in run.placements]
        if placed:
            console.print(Padding(Text(", ".join(placed)), (0, 0, 0, GAP)))


def _started(run: ListedRun) -> str:
    return run.started[:_MINUTES].replace("T", " ") or MISSING


def _status(run: ListedRun) -> str:
    return run.status if run.status in (Status.DONE, DAMAGED) else f"{run.status} {run.done}/{run.launches}"


def _verdicts(run: ListedRun) -> str:
    """All verdicts; without the name where only one placement is compared."""
    if len(run.verdicts) == 1:
        return _verdict(run, *run.verdicts)
    return ", ".join(f"{name} {_verdict(run, name)}" for name in run.verdicts)


def _verdict(run: ListedRun, placement: str) -> str:
    one = run.verdicts.get(placement)
    return f"{one.verdict} {ratio(one.value, one.low, one.high)}" if one else ""
