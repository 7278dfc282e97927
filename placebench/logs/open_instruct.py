"""open-instruct's console log: a panel titled Metrics a step, wide or wrapped at the terminal's width."""

import re

from placebench.logs.console import console_log, number_of
from placebench.logs.formats import Count, Dialect, Tokens, Trap
from placebench.logs.step_blocks import BlockLine, StepBlocks
from placebench.logs.timing import Derived, TimingRules

TITLE = "╭(?:─)+ Metrics (?:─)+╮"
EDGE = "│"
PANEL_END = "╰"
CATEGORY = re.compile(r" {1,3}(\S+)(?: +(.*))?$")
CELL = re.compile(r"(\S+):\s+(\S+)")
UNNAMED = "other"
# Names that came within a week of the counting of every rank's tokens.
SINCE_MAY_2026 = r"^time/(?:trainer_waiting_for_data$|generation_waiting_for_trainer$|group_generation_)"

OPEN_INSTRUCT_DIALECT = Dialect(
    framework="open-instruct",
    marks=("time/total", "time/training", "time/trainer_waiting_for_data", "time/trainer_idling"),
    timing=TimingRules(
        prefixes=("time/",),
        phases={
            "total": "step",
            "saving": "save_checkpoint",
            "weight_sync": "update_weights",
            "trainer_idle_waiting_for_inference": "trainer_waiting_for_data",
            "generation_idling": "generation_waiting_for_trainer",
            "generation_idle_waiting_for_trainer": "generation_waiting_for_trainer",
        },
        # `training` begins with the wait for rollouts. Before, the trainer idled first and trained then.
        derived=(
            Derived("update_actor", "training", minus=("trainer_waiting_for_data",), minus_inside=("trainer_idling",)),
        ),
        containers={"training": ("update_actor",)},
        details=frozenset(f"weight_sync_{statistic}" for statistic in ("mean", "min", "max", "median")),
        beside=frozenset(
            {
                "update_weights",
                "generation_waiting_for_trainer",
                # How long the slowest group took, submitted while other steps trained.
                "getting_response",
                "group_generation_mean",
                "group_generation_max",
                "group_generation_min",
            }
        ),
        movable=("save_checkpoint",),
    ),
    tokens=Tokens(("val/num_step_tokens",), Count.TIMES_RANKS, ranks_since=SINCE_MAY_2026),
    traps=(
        Trap(
            "open-instruct-ranks",
            "since May 2026 step tokens, learner tokens/s, MFU and MBU are multiplied by the number of learner ranks;"
            " tokens are counted only if that number is given, and are divided by it",
            SINCE_MAY_2026,
        ),
        Trap(
            "open-instruct-training-waits",
            "time/training includes the wait for rollouts, in logs that call it trainer_waiting_for_data or"
            " trainer_idle_waiting_for_inference; update_actor is time/training without that wait",
            r"^time/training$",
        ),
        Trap(
            "open-instruct-two-decimals",
            "the panel prints two decimals: phases below 10 ms are lost",
            r"^time/",
        ),
    ),
)


def take_panel_line(line: str, rows: list[str]) -> BlockLine:
    """Put what a line has between the panel's edges into its rows."""
    if line.count(EDGE) >= 2 and line.rstrip().endswith(EDGE):
        rows.append(line[line.find(EDGE) + 1 : line.rfind(EDGE)])
        return "row"
    return "end" if PANEL_END in line else "other"


def panel_metrics(rows: list[str]) -> dict[str, float]:
    """The metrics of a panel's rows, with rows that go on joined to the one that they belong to."""
    groups: list[tuple[str, list[str]]] = []
    for row in rows:
        if begin := CATEGORY.match(row):
            groups.append((begin[1], [begin[2] or ""]))
        elif groups:
            groups[-1][1].append(row.strip())
    metrics: dict[str, float] = {}
    for category, parts in groups:
        prefix = "" if category == UNNAMED else f"{category}/"
        for cell in " ".join(part.strip() for part in parts).split("|"):
            if (found := CELL.fullmatch(cell.strip())) and (value := number_of(found[2])) is not None:
                metrics[prefix + found[1]] = value
    return metrics


PANELS = StepBlocks(TITLE, list, take_panel_line, panel_metrics, step_metric="training_step")
OPEN_INSTRUCT = console_log("open-instruct", OPEN_INSTRUCT_DIALECT, PANELS.read, begins=TITLE.encode())
