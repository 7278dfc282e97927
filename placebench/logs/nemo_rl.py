"""NeMo-RL's console log: a block a step, `=== Step 2/100 ===` and below it `  • policy_training: 25.05s (37.6%)`."""

import re
from collections.abc import Iterator

from placebench.logs.console import BARE_NUMBER, NUMBER, CleanLines
from placebench.logs.formats import Dialect, LogFormat, Trap
from placebench.logs.table import StepTable
from placebench.logs.timing import TimingRules

STEP_BYTES = re.compile(rb"={5,200} Step [0-9]{1,18}/[0-9]{1,18} ={5}")
STEP = re.compile(r"={5,200} Step ([0-9]{1,18})/[0-9]{1,18} ={5}")
SECONDS = re.compile(rf"^\s*•\s+([^:\s][^:]*):\s+({BARE_NUMBER})s(?:\s+\([-.\d]+%\))?\s*$")
VALUE = re.compile(rf"^\s*[•-]\s+([^:\s][^:]*):\s+({NUMBER})(?=\s|%|$)")
TIMING = "timing/train/"
TOTAL = TIMING + "total_step_time"
VALIDATION = "timing/validation/total_validation_time"
# Lines whose words are not the timer's name, which TensorBoard has.
NAMES = {"Total step time": TOTAL, "Total validation time": VALIDATION}

NEMO_RL_DIALECT = Dialect(
    framework="NeMo-RL",
    marks=(TIMING,),
    timing=TimingRules(
        prefixes=(TIMING,),
        exact={VALIDATION: "testing"},
        # valid_tokens_per_sec_per_gpu is written among the timings.
        not_seconds=re.compile(r"_per_sec"),
        phases={
            "total_step_time": "step",
            "generation": "gen",
            "reward_calculation": "reward",
            "advantage_calculation": "adv",
            "value_inference": "values",
            "value_training": "update_critic",
            "policy_training": "update_actor",
            "weight_sync": "update_weights",
            # Offloading and the transfer of the weights; the transfer alone is nested in it.
            "prepare_for_generation/total": "prepare_for_generation",
            "checkpointing": "save_checkpoint",
        },
        movable=("testing", "save_checkpoint"),
    ),
    traps=(
        Trap(
            "nemo-rl-idle-ratio",
            "training_worker_idle_time_ratio is 0 whenever the trainer did wait: its condition is inverted; not used",
            r"training_worker_idle_time_ratio$",
        ),
        Trap(
            "nemo-rl-nested-timers",
            "timers nest (prepare_for_generation/…, idle/…): parts are shown and never added",
            r"^timing/train/(?:prepare_for_generation|idle)/",
        ),
        Trap(
            "nemo-rl-mfu",
            "the model FLOP utilization is wrong with packed sequences (figures above 100 % were printed); not used",
            r"(?i)floating.point.utilization|model_flops_utilization",
        ),
    ),
)


def read_steps(blocks: Iterator[bytes], table: StepTable) -> None:
    """Put the blocks of metrics into a table; a block without its total time is cut off."""
    lines = CleanLines(blocks)
    step, began, metrics = -1, 0, dict[str, float]()

    def finish() -> None:
        if TOTAL in metrics:
            table.add(step, metrics)
        elif began:
            table.damage(began)

    table.where = lambda: began
    for line in lines:
        if found := STEP.search(line):
            finish()
            step, began, metrics = int(found[1]), lines.number, {}
        elif not began:
            continue
        elif found := SECONDS.match(line):
            name = found[1].strip()
            metrics[NAMES.get(name, TIMING + name)] = float(found[2])
        elif found := VALUE.match(line):
            metrics[found[1].strip()] = float(found[2])
    finish()


NEMO_RL = LogFormat(
    name="nemo-rl",
    title="console log of NeMo-RL",
    begins=lambda block: STEP_BYTES.search(block) is not None,
    read=read_steps,
    dialect=NEMO_RL_DIALECT,
    closed=False,
)
