"""SkyRL's console log: `… - Step 3: ` and the metrics of the step below it, one a line, as `pprint` shows a dict."""

import re
from collections.abc import Iterator

from placebench.logs.console import PAIR, CleanLines, StepClock, number_of, numbers_of_dict
from placebench.logs.formats import Dialect, LogFormat, Trap
from placebench.logs.table import StepTable
from placebench.logs.timing import TimingRules

STEP_BYTES = re.compile(rb"Step [0-9]{1,18}: ?\r?\n[^\n]{0,80}\{'")
STEP = re.compile(r"(?:^|[\s-])Step ([0-9]{1,18}):\s*$")

SKYRL_DIALECT = Dialect(
    framework="SkyRL",
    marks=("timing/policy_train", "timing/train_critic_and_policy", "timing/generate", "timing/run_training"),
    timing=TimingRules(
        prefixes=("timing/",),
        phases={
            "generate": "gen",
            "compute_advantages_and_returns": "adv",
            "critic_train": "update_critic",
            "policy_train": "update_actor",
            "sync_weights": "update_weights",
            "eval": "testing",
            "save_checkpoints": "save_checkpoint",
        },
        containers={
            "train_critic_and_policy": ("update_critic", "update_actor"),
            "run_training": ("train_critic_and_policy", "fwd_logprobs_values_reward", "adv", "update_actor"),
        },
        movable=("testing", "save_checkpoint"),
    ),
    traps=(
        Trap(
            "skyrl-tokens-per-gpu",
            "tokens_per_second_per_gpu is over the training phase and the policy's GPUs alone; not used",
            r"tokens_per_second_per_gpu$",
        ),
    ),
)


def read_steps(blocks: Iterator[bytes], table: StepTable) -> None:
    """Put the blocks of metrics into a table; lines of others in between are passed over.

    A dict that fits into one line is printed in one.
    """
    lines, clock = CleanLines(blocks), StepClock()
    table.where = lines.where
    step, began, metrics, stamped = -1, 0, dict[str, float](), dict[str, float]()
    for line in lines:
        if found := STEP.search(line):
            if began:
                table.damage(began)
            step, began, metrics = int(found[1]), lines.number, {}
            stamped = clock.since_last(step, line)
        elif began and line.startswith("{") and (numbers := numbers_of_dict(line, 0)) is not None:
            table.add(step, {**numbers, **stamped})
            began = 0
        elif began and (pair := PAIR.fullmatch(line.rstrip().removeprefix("{"))):
            if pair["number"] is not None:
                value = number_of(pair["number"])
                metrics[pair["key"] or pair["key2"] or ""] = float("nan") if value is None else value
            if pair["end"] == "}":
                table.add(step, {**metrics, **stamped})
                began = 0
    if began:
        table.damage(began)


SKYRL = LogFormat(
    name="skyrl",
    title="console log of SkyRL",
    begins=lambda block: STEP_BYTES.search(block) is not None,
    read=read_steps,
    dialect=SKYRL_DIALECT,
)
