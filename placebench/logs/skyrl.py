"""SkyRL's console log: `… - Step 3: ` and the metrics of the step below it, one a line, as `pprint` shows a dict."""

from placebench.logs.console import PAIR, console_log, numbers_of_dict, take_pair
from placebench.logs.formats import Dialect, Trap
from placebench.logs.step_blocks import BlockLine, StepBlocks
from placebench.logs.timer_names import SKYRL_TIMERS
from placebench.logs.timing import TimingRules

BEGINS = rb"Step [0-9]{1,18}: ?\r?\n[^\n]{0,80}\{'"
TITLE = r"(?:^|[\s-])Step ([0-9]{1,18}):\s*$"

SKYRL_DIALECT = Dialect(
    framework="SkyRL",
    marks=("timing/policy_train", "timing/train_critic_and_policy", "timing/generate", "timing/run_training"),
    timing=TimingRules(
        prefixes=("timing/",),
        phases=SKYRL_TIMERS,
        containers={
            "train_critic_and_policy": ("update_critic", "update_actor"),
            "run_training": ("train_critic_and_policy", "fwd_logprobs_values_reward", "adv", "update_actor"),
        },
        movable=("testing", "save_checkpoint"),
    ),
    traps=(
        Trap(
            "skyrl-tokens-per-gpu",
            "tokens_per_second_per_gpu counts only the training phase and the policy's GPUs; not used",
            r"tokens_per_second_per_gpu$",
        ),
    ),
)


def take_dict_line(line: str, metrics: dict[str, float]) -> BlockLine:
    """Put a line of a printed dict into metrics; one that fits into one line is printed in one."""
    if line.startswith("{") and (numbers := numbers_of_dict(line, 0)) is not None:
        metrics.clear()
        metrics.update(numbers)
        return "end"
    pair = PAIR.fullmatch(line.rstrip().removeprefix("{"))
    if pair is None:
        return "other"
    take_pair(pair, metrics)
    return "end" if pair["end"] == "}" else "row"


DICTS = StepBlocks(TITLE, dict, take_dict_line, dict, is_clocked=True, is_placed_at_end=True)
SKYRL = console_log("skyrl", SKYRL_DIALECT, DICTS.read, begins=BEGINS)
