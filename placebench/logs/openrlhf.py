"""OpenRLHF's console log: `… ✨ Global step 3: {'policy_loss': -0.0012, …, 'timing/step_total': 35.6}`."""

import re
from collections.abc import Iterator

from placebench.logs.console import StepClock, printed_dicts
from placebench.logs.formats import Dialect, LogFormat, Trap
from placebench.logs.table import StepTable
from placebench.logs.timing import TimingRules

STEP_BYTES = re.compile(rb"Global step [0-9]{1,18}: \{")
STEP = re.compile(r"Global step ([0-9]{1,18}): \{")

OPENRLHF_DIALECT = Dialect(
    framework="OpenRLHF",
    marks=("timing/step_total", "timing/make_experience", "train/timing/step_total", "train/timing/make_experience"),
    timing=TimingRules(
        prefixes=("timing/", "train/timing/"),
        phases={"generation": "gen", "broadcast": "update_weights", "step_total": "step"},
        step_is_sum=True,
    ),
    traps=(
        Trap(
            "openrlhf-step-total",
            "step_total is the sum of its phases in synchronous runs, so time between them is in no number, and wall "
            "time with waiting in asynchronous ones; compare by the log's clock (log/step_seconds)",
            r"timing/step_total$",
        ),
    ),
)


def read_steps(blocks: Iterator[bytes], table: StepTable) -> None:
    """Put the step lines of blocks of whole lines into a table."""
    clock = StepClock()
    for found, metrics in printed_dicts(blocks, table, STEP):
        step = int(found[1])
        table.add(step, {**metrics, **clock.since_last(step, found.string)})


OPENRLHF = LogFormat(
    name="openrlhf",
    title="console log of OpenRLHF",
    begins=lambda block: STEP_BYTES.search(block) is not None,
    read=read_steps,
    dialect=OPENRLHF_DIALECT,
)
