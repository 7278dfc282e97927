"""Where the step's time goes, as tables: critical paths, waiting, overlap, and what other placements would take."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import isnan

from placebench.compare.metrics import END, NO_PHASE, NOTABLE, OWN_POOL, STEP_TIME
from placebench.record.folder import Status
from placebench.report.placement_schema import DifferenceSummary, PathPartSummary, PlacementSummary
from placebench.report.schema import Summary
from placebench.report.tables import Grid
from placebench.spec.text import MISSING, listing, percent, row, scale

# Columns that fit 80 characters.
SHORT = 5
# Share of the step from which waiting and overlap have a row of their own.
LEAST = 0.005
# Significant digits of a step whose parts stand below each other.
OF_PARTS = 4
ALL_ELSE = "all else"
CAUSES = {OWN_POOL: "slower devices of its pool (rank imbalance)", NO_PHASE: "the controller (no phase runs)"}
_WAITS = ("nothing to do", "slower ranks", "collectives", "host", "sum", "share of the step", "not traced")
_IDLE_WAITS = (
    "Of the measured steps: idle = step − the device's own phases; slower ranks = idle while another device of its pool"
    " works, except for engines in a pool of their own, which do not wait for each other; nothing to do = idle − slower"
    " ranks."
)
_TRACED_WAITS = (
    "Of the one traced step, scaled to the measured steps and summed over the device's phases: collectives ="
    " Σ w · min c; slower ranks, added to those above = Σ w · (c − min c); host = Σ w · n. In the traced phase, c is"
    " the time with collectives alone, n with nothing on the GPU, k with kernels or copies, l the whole phase. min c is"
    " that of the rank that has least, as the rank that comes last waits least (ranks: the pool's; in gen those of one"
    " engine, where several share it). w = busy / l, where busy is the device's time in the phase (of all phases"
    " together: step − idle). Where the phase was longer when it was traced, because tracing slows the host and not"
    " kernels, w = (busy − k) / (c + n), at least 0."
)
_UNKNOWN_WAITS = (
    "A dash: not known, because no kernels of the device were traced. They are traced only on GPUs, in the first round,"
    " unless trace_kernels is false. Slower ranks and the sum then leave out waiting inside its phases."
)
_UNKNOWN_WAITS_OF_JOB = (
    "A dash: not known, because kernels are not traced in a job of yours. Slower ranks and the sum leave out waiting"
    " inside its phases."
)
_NOT_TRACED = "Not traced: time of phases of which there is no trace; what the device waits for in them is not known."


def path_grid(first: PlacementSummary, other: PlacementSummary) -> Grid:
    """The difference of two step times, part by part along the critical path; no rows where one has no path.

    Gaps too short to matter are one row, so that every column on the path still adds up to its step.
    """
    title = f"Critical path: {other.name} against {first.name}"
    header = (
        "",
        first.name,
        other.name,
        "difference",
        "95 % interval",
        f"hidden in {first.name}",
        f"hidden in {other.name}",
    )
    parts = {_part_name(part): part.difference for part in other.critical_path if part.difference}
    if not parts:
        return Grid(title, header, ())
    step = sum(found.first_on_path_s for found in parts.values())
    gaps = {_part_name(part) for part in other.critical_path if part.kind == "gap"}
    short = {
        name: found
        for name, found in parts.items()
        if name in gaps and max(found.first_on_path_s, found.other_on_path_s) < NOTABLE * step
    }
    rows = [_path_row(name, [found]) for name, found in parts.items() if name not in short]
    sums = (_path_row("short gaps", list(short.values())), _path_row("step", list(parts.values())))
    return Grid(title, header, (*rows, *sums))


def single_path_grid(placement: PlacementSummary) -> Grid:
    """The path of a placement that is compared with nothing; no rows where it has none."""
    header = ("", "on the path", "share of the step", "hidden beside it", "rank imbalance")
    step = sum(part.on_path_s for part in placement.critical_path)
    long = [part for part in placement.critical_path if part.kind == "phase" or part.on_path_s >= NOTABLE * step]
    gaps = sum(part.on_path_s for part in placement.critical_path if part not in long)
    told = scale("s", [step], digits=OF_PARTS)
    rows = [
        (_part_name(part), part.on_path_s, told.text(part.off_path_s), told.text(part.imbalance_s)) for part in long
    ]
    rows += [("short gaps", gaps, MISSING, MISSING), ("step", step, MISSING, MISSING)] if rows else []
    cells = ((name, told.text(on_path), percent(on_path / step), *rest) for name, on_path, *rest in rows)
    return Grid(f"Critical path: {placement.name}", header, tuple(cells))


def short_path_grid(grid: Grid) -> Grid:
    """The table of a path for a narrow page: what lies on the path."""
    return Grid(grid.title, grid.header[:SHORT], tuple(row[:SHORT] for row in grid.rows))


def _part_name(part: PathPartSummary) -> str:
    if part.kind == "phase":
        return part.phase
    return "gap at the end" if part.phase == END else f"gap before {part.phase}"


def _path_row(name: str, parts: Sequence[DifferenceSummary]) -> tuple[str, ...]:
    """Parts added up; only a part by itself has an interval."""
    first, other, hidden_in_first, hidden_in_other = (
        sum(getattr(part, column) for part in parts)
        for column in ("first_on_path_s", "other_on_path_s", "first_off_path_s", "other_off_path_s")
    )
    low, high = (parts[0].low, parts[0].high) if len(parts) == 1 else (None, None)
    told = scale("s", (first, other, hidden_in_first, hidden_in_other, low, high))
    return (
        name,
        told.text(first),
        told.text(other),
        told.signed(other - first),
        MISSING if low is None or high is None or isnan(low) else told.ends(low, high, signed=True),
        told.text(hidden_in_first),
        told.text(hidden_in_other),
    )


def forecast_grid(summary: Summary) -> Grid:
    """What placements not run would take by the forecast, beside those run with what the others alone tell of each.

    No rows where there is none to try and the others tell nothing.
    """
    forecasts = summary.suggestion.forecasts if summary.suggestion else ()
    has_left_out = any(one.left_out_s is not None for one in forecasts)
    told = scale("s", [one.expected_s for one in forecasts])
    header = ("placement", "expected", *(("from the others",) if has_left_out else ()), "measured")
    rows = tuple(
        (
            one.placement,
            told.text(one.expected_s),
            *((told.text(one.left_out_s),) if has_left_out else ()),
            told.text(one.measured_s),
        )
        for one in forecasts
    )
    is_told = has_left_out or any(one.measured_s is None for one in forecasts)
    return Grid("Steps expected from the phases measured", header, rows if is_told else ())


def wait_grid(summary: Summary) -> Grid:
    """Idle time of each pool by cause, the longest first."""
    rows: list[tuple[str, ...]] = []
    for placement in summary.placements:
        for pool in placement.pools:
            found = [wait for wait in placement.waits if wait.label.startswith(f"{pool}/")]
            causes = [(wait.label.partition("/")[2], wait.value or 0.0) for wait in found]
            rows += [
                (placement.name, pool, CAUSES.get(cause, cause), *cells)
                for cause, *cells in _large_ones(placement, causes)
            ]
    header = ("placement", "pool", "waiting for", "time a step", "share of the step")
    return Grid("Idle time of each pool by cause", header, tuple(rows))


def device_wait_grid(summary: Summary) -> Grid:
    """What each device waited for, with the formulas; no rows where no step was measured."""
    found = [
        (placement, device.label, {wait.key.partition("/")[0]: wait.value or 0.0 for wait in device.waits})
        for placement in summary.placements
        for device in placement.devices
        if device.waits
    ]
    rows = [(placement.name, label, *_wait_cells(placement, waits)) for placement, label, waits in found]
    header: tuple[str, ...] = ("placement", "device", *_WAITS)
    traced = ["wait_host" in waits for *_, waits in found]
    on_gpus = {placement.name for placement, label, _ in found if label.rpartition("/")[2].startswith("gpu:")}
    notes = [_IDLE_WAITS]
    if any(traced):
        notes.append(_TRACED_WAITS)
    if not all(traced):
        notes += (_UNKNOWN_WAITS_OF_JOB if summary.job else _UNKNOWN_WAITS, *_lost_traces(summary, on_gpus))
    if all(row[-1] == MISSING for row in rows):
        header, rows = header[:-1], [row[:-1] for row in rows]
    else:
        notes.append(_NOT_TRACED)
    return Grid("What each device waits for", header, tuple(rows), tuple(notes))


def _lost_traces(summary: Summary, on_gpus: Collection[str]) -> Iterator[str]:
    """Of which placements the launch that would have been traced is missing, and is not to be waited for."""
    there = (Status.DONE, Status.RUNNING)
    lost = [
        f"{launch.placement} ({launch.status.words})"
        for launch in summary.launches
        if launch.round == 1 and launch.status not in there and launch.placement in on_gpus
    ]
    if lost and summary.workload.get("trace_kernels"):
        yield f"The first round of {listing(lost)} is missing, and with it the trace; --resume runs what is missing."


def _wait_cells(placement: PlacementSummary, waits: Mapping[str, float]) -> tuple[str, ...]:
    """Cells of a device; phases without a trace have one only where they are too long to ignore."""
    step = _step_time(placement)
    idle, slower = (waits[f"wait_{name}"] for name in ("nothing_to_do", "slower_ranks"))
    slower += waits.get("wait_slower_ranks_inside", 0.0)
    collectives, host = (waits.get(f"wait_{name}") for name in ("collectives", "host"))
    waited = idle + slower + (collectives or 0.0) + (host or 0.0)
    rest = waits.get("not_traced", 0.0)
    *cells, left = row("s", idle, slower, collectives, host, waited, rest if step and rest >= LEAST * step else None)
    return (*cells, percent(waited / step) if step else MISSING, left)


def overlap_grid(summary: Summary) -> Grid:
    """Phases that ran side by side, the longest first; what is too short to matter is left out."""
    rows = tuple(
        (placement.name, *cells)
        for placement in summary.placements
        for cells in _large_ones(
            placement, [(found.label.replace("+", " beside "), found.value or 0.0) for found in placement.overlaps]
        )
        if cells[0] != ALL_ELSE
    )
    return Grid("What ran side by side", ("placement", "phases", "time a step", "share of the step"), rows)


def _large_ones(placement: PlacementSummary, seconds: Sequence[tuple[str, float]]) -> list[tuple[str, str, str]]:
    """Names with their seconds and share of the step; those too short to matter are one row at the end."""
    step = _step_time(placement)
    if not step:
        return []
    large = [(name, value) for name, value in seconds if value >= LEAST * step]
    rest = sum(value for _, value in seconds) - sum(value for _, value in large)
    if rest >= LEAST / 10 * step:
        large.append((ALL_ELSE, rest))
    told = scale("s", [step], digits=OF_PARTS)
    return [(name, told.text(value), percent(value / step)) for name, value in large]


def _step_time(placement: PlacementSummary) -> float | None:
    return next((found.value for found in placement.quantities if found.key == STEP_TIME.key), None)
