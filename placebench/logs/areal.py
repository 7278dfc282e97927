"""AReaL's console log: `… Train step 3/4670 done.` and a grid of names and values below it."""

import re
from collections.abc import Iterator

from placebench.logs.console import STEP_SECONDS, CleanLines, StepClock, number_of
from placebench.logs.formats import Dialect, LogFormat, Trap
from placebench.logs.table import StepTable
from placebench.logs.timing import TimingRules

STEP_BYTES = re.compile(rb"Train step [0-9]{1,18}/[0-9]+ done")
STEP = re.compile(r"Train step ([0-9]{1,18})/[0-9]+ done")
GRID_ENDS = ("╘", "╰")

AREAL_DIALECT = Dialect(
    framework="AReaL",
    marks=("timeperf/",),
    timing=TimingRules(
        prefixes=("timeperf/",),
        exact={STEP_SECONDS: "step"},
        phases={
            "critic_values": "values",
            "ref_logp": "ref",
            "recompute_logp": "old_log_prob",
            "compute_advantage": "adv",
            "train_step": "update_actor",
            "critic_train_step": "update_critic",
            "save": "save_checkpoint",
            "eval": "testing",
        },
        movable=("testing", "save_checkpoint"),
    ),
    traps=(
        Trap(
            "areal-no-step",
            "the log has no time of the whole step; it is taken from the log's clock, and without it there is none",
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


def read_steps(blocks: Iterator[bytes], table: StepTable) -> None:
    """Put the grids of blocks of whole lines into a table; a grid without its lower edge is cut off."""
    lines, clock = CleanLines(blocks), StepClock()
    table.where = lines.where
    step, metrics, stamped = -1, dict[str, float](), dict[str, float]()
    begun = 0
    for line in lines:
        if found := STEP.search(line):
            if begun:
                table.damage(begun)
            step, metrics, begun = int(found[1]), {}, 0
            stamped = clock.since_last(step, line)
        elif step >= 0 and "│" in line:
            begun = begun or lines.number
            cells = [cell.strip() for cell in line.split("│")[1:-1]]
            for name, printed in zip(cells[::2], cells[1::2], strict=False):
                value = number_of(printed)
                if name and value is not None:
                    metrics[name] = value
        elif begun and any(corner in line for corner in GRID_ENDS):
            table.add(step, {**metrics, **stamped})
            metrics, stamped, begun = {}, {}, 0
    if begun:
        table.damage(begun)


AREAL = LogFormat(
    name="areal",
    title="console log of AReaL",
    begins=lambda block: STEP_BYTES.search(block) is not None,
    read=read_steps,
    dialect=AREAL_DIALECT,
)
