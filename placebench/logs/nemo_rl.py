"""NeMo-RL's console log: a block a step, `=== Step 2/100 ===` and below it `  • policy_training: 25.05s (37.6%)`."""

import re

from placebench.logs.console import BARE_NUMBER, NUMBER, console_log
from placebench.logs.formats import Dialect, Trap
from placebench.logs.step_blocks import BlockLine, StepBlocks
from placebench.logs.timing import TimingRules

TITLE = r"={5,200} Step ([0-9]{1,18})/[0-9]{1,18} ={5}"
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
            "its MFU is wrong with packed sequences (figures above 100 % were printed); not used",
            r"(?i)floating.point.utilization|model_flops_utilization",
        ),
    ),
)


def take_line(line: str, metrics: dict[str, float]) -> BlockLine:
    """Put the time or the value of a line into metrics."""
    if found := SECONDS.match(line):
        name = found[1].strip()
        metrics[NAMES.get(name, TIMING + name)] = float(found[2])
    elif found := VALUE.match(line):
        metrics[found[1].strip()] = float(found[2])
    return "row" if found else "other"


BLOCKS = StepBlocks(TITLE, dict, take_line, dict, total_metric=TOTAL)
NEMO_RL = console_log("nemo-rl", NEMO_RL_DIALECT, BLOCKS.read, begins=TITLE.encode(), sign=b"= Step ", closed=False)
