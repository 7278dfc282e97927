"""What a reader of a log's numbers must know: the framework's known traps, and what was odd about the file."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pandas as pd

from placebench.logs.console import STEP_SECONDS
from placebench.logs.formats import Dialect
from placebench.logs.table import Restart, StepTable
from placebench.logs.timing import STEP

# The log's clock must differ from the step's own time by this share, and by this many seconds, to be worth a word.
CLOCK_SHARE = 0.05
CLOCK_SECONDS = 1.0
LINES_SHOWN = 5


@dataclass(frozen=True)
class Flag:
    """One thing to know."""

    name: str
    """The word for it in tables and files."""
    text: str
    """One line for people."""


def trap_flags(dialect: Dialect, names: Iterable[str]) -> tuple[Flag, ...]:
    """The framework's known traps that a log with these metrics has."""
    names = tuple(names)
    return tuple(
        Flag(trap.name, trap.text) for trap in dialect.traps if any(re.search(trap.metrics, name) for name in names)
    )


def table_flags(table: StepTable) -> tuple[Flag, ...]:
    """What was odd about a file's steps."""
    flags = [_restarts(list(at_one_step)) for _, at_one_step in groupby(table.restarts, lambda restart: restart.step)]
    if table.replaced:
        lines = "1 step line repeats an earlier one" if table.replaced == 1 else f"{table.replaced:,} step lines repeat"
        flags.append(Flag("repeated", lines if table.replaced == 1 else f"{lines} earlier ones"))
    if table.out_of_order:
        flags.append(Flag("out-of-order", f"{_steps(table.out_of_order)} behind a later one; sorted"))
    if table.damages:
        lines = ", ".join(f"{line:,}" for line in table.damaged)
        more = ", …" if table.damages > len(table.damaged) else ""
        flags.append(
            Flag("cut-off", f"{_steps(table.damages)} cut off or torn apart, and left out: at line {lines}{more}")
        )
    if table.open_end:
        flags.append(Flag("open-end", "the last line has no line end: its last number may be cut off"))
    return tuple(flags)


def clock_flags(frame: pd.DataFrame, timings: pd.DataFrame | None) -> tuple[Flag, ...]:
    """Whether the log's clock shows more or less time a step than the step's own time.

    Args:
        frame: a tidy log frame.
        timings: its timings, None where it has none.
    """
    clock = frame.loc[frame["metric"] == STEP_SECONDS, ["step", "value"]]
    if timings is None or clock.empty:
        return ()
    whole = timings.loc[timings["phase"] == STEP, ["step", "seconds"]]
    both = clock.merge(whole, on="step")
    if both.empty:
        return ()
    shown, timed = float(np.median(both["value"])), float(np.median(both["seconds"]))
    if abs(shown - timed) <= max(CLOCK_SHARE * timed, CLOCK_SECONDS):
        return ()
    why = "the rest is in no number of it" if shown > timed else "steps overlap, or some time is counted twice"
    return (Flag("clock", f"the log's clock shows {shown:.1f} s a step, its step time {timed:.1f} s: {why}"),)


def _restarts(restarts: Sequence[Restart]) -> Flag:
    """Restarts in a row that went on from one step: all but the last came to nothing."""
    lines = [f"{restart.line:,}" for restart in restarts[:LINES_SHOWN]] + ["…"] * (len(restarts) > LINES_SHOWN)
    again = f", {len(restarts)} times" if len(restarts) > 1 else ""
    # Events have no lines.
    where = f"line{'s' * bool(again)} {', '.join(lines)}: " if restarts[0].line else ""
    return Flag(
        "restart",
        f"{where}the run was restarted at step {restarts[0].step}{again}; what was done before from that step on is "
        "undone, and the first steps behind it are warm-up again",
    )


def _steps(count: int) -> str:
    return f"{count:,} step{'s' * (count != 1)}"
