"""AReaL's console log: `… Train step 3/4670 done.` and a grid of names and values below it."""

from placebench.logs.console import STEP_SECONDS, console_log, number_of
from placebench.logs.formats import Dialect, Trap
from placebench.logs.step_blocks import BlockLine, StepBlocks
from placebench.logs.timer_names import AREAL_TIMERS
from placebench.logs.timing import TimingRules

TITLE = r"Train step ([0-9]{1,18})/[0-9]+ done"
EDGE = "│"
GRID_ENDS = ("╘", "╰")

AREAL_DIALECT = Dialect(
    framework="AReaL",
    marks=("timeperf/",),
    timing=TimingRules(
        prefixes=("timeperf/",),
        exact={STEP_SECONDS: "step"},
        phases=AREAL_TIMERS,
        movable=("testing", "save_checkpoint"),
    ),
    traps=(
        Trap(
            "areal-no-step",
            "the log does not time whole steps; their times are taken from the log's clock, and without a clock there"
            " are none",
            r"^timeperf/",
        ),
        Trap(
            "areal-rollout-wait",
            "timeperf/rollout is the time that the trainer was blocked waiting for a batch, not that of generation, "
            "unless max_head_offpolicyness is 0; it keeps its own name",
            r"^timeperf/rollout$",
        ),
    ),
)


def take_grid_line(line: str, metrics: dict[str, float]) -> BlockLine:
    """Put the names and values between the edges of a line into metrics."""
    if EDGE in line:
        cells = [cell.strip() for cell in line.split(EDGE)[1:-1]]
        for name, printed in zip(cells[::2], cells[1::2], strict=False):
            value = number_of(printed)
            if name and value is not None:
                metrics[name] = value
        return "row"
    return "end" if any(corner in line for corner in GRID_ENDS) else "other"


GRIDS = StepBlocks(TITLE, dict, take_grid_line, dict, begins_below=True, is_clocked=True, is_placed_at_end=True)
AREAL = console_log("areal", AREAL_DIALECT, GRIDS.read, begins=TITLE.encode())
