"""open-instruct's console log: a panel titled Metrics a step, wide or wrapped at the terminal's width."""

import re
from collections.abc import Iterator

from placebench.logs.console import CleanLines, number_of
from placebench.logs.formats import Count, Dialect, LogFormat, Tokens, Trap
from placebench.logs.table import STEP_LIMIT, StepTable
from placebench.logs.timing import Derived, TimingRules

PANEL_BYTES = re.compile("╭(?:─)+ Metrics (?:─)+╮".encode())
PANEL = re.compile("╭─+ Metrics ─+╮")
EDGE = "│"
CATEGORY = re.compile(r" {1,3}(\S+)(?: +(.*))?$")
CELL = re.compile(r"(\S+):\s+(\S+)")
UNNAMED = "other"
STEP = "training_step"
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
            "step tokens, learner tokens/s, MFU and MBU are multiplied by the number of learner ranks since May 2026; "
            "tokens are counted only where the number of learner ranks is given, and divided by it",
            SINCE_MAY_2026,
        ),
        Trap(
            "open-instruct-training-waits",
            "time/training contains the wait for rollouts, in logs that call it trainer_waiting_for_data or "
            "trainer_idle_waiting_for_inference; update_actor is time/training without it",
            r"^time/training$",
        ),
        Trap(
            "open-instruct-two-decimals",
            "the panel prints two decimals: phases below 10 ms are lost",
            r"^time/",
        ),
    ),
)


def read_steps(blocks: Iterator[bytes], table: StepTable) -> None:
    """Put the panels of blocks of whole lines into a table; a panel without its lower edge is cut off."""
    lines = CleanLines(blocks)
    rows: list[str] = []
    began, step = 0, -1
    table.where = lambda: began
    for line in lines:
        if PANEL.search(line):
            if began:
                table.damage(began)
            rows, began = [], lines.number
        elif began and line.count(EDGE) >= 2 and line.rstrip().endswith(EDGE):
            rows.append(line[line.find(EDGE) + 1 : line.rfind(EDGE)])
        elif began and "╰" in line:
            metrics = panel_metrics(rows)
            number = metrics.get(STEP, step)
            if metrics and 0 <= number < STEP_LIMIT:
                step = int(number)
                table.add(step, metrics)
            began = 0
    if began:
        table.damage(began)


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
            found = CELL.fullmatch(cell.strip())
            value = number_of(found[2]) if found else None
            if found and value is not None:
                metrics[prefix + found[1]] = value
    return metrics


OPEN_INSTRUCT = LogFormat(
    name="open-instruct",
    title="console log of open-instruct",
    begins=lambda block: PANEL_BYTES.search(block) is not None,
    read=read_steps,
    dialect=OPEN_INSTRUCT_DIALECT,
)
