"""slime's console log: `[time] file.py:401 - perf 3: {'perf/step_time': 35.5, …}`, several such lines a step.

The trainer and the rollout manager both print `perf N`; their metrics are put together by the number. `step N` lines
count training steps, of which a rollout can have several, and are left out.
"""

import re

from placebench.logs.console import StepDicts, console_log
from placebench.logs.formats import Dialect, Trap
from placebench.logs.timing import TimingRules

BEGINS = rb"\b(?:perf|rollout) [0-9]{1,18}: \{'(?:perf|rollout)/"
# Only the trainer's lines have the step's time.
STEP_TIME = "perf/step_time"
STEPS = StepDicts(r"\b(?:perf|rollout|eval) ([0-9]{1,18}): \{", clock=STEP_TIME)

SLIME_DIALECT = Dialect(
    framework="slime",
    marks=("perf/step_time", "perf/train_wait_time", "perf/actor_train_time", "perf/rollout_time"),
    timing=TimingRules(
        prefixes=("perf/",),
        suffix="_time",
        phases={
            "rollout": "gen",
            "ref_log_probs": "ref",
            "log_probs": "old_log_prob",
            "actor_train": "update_actor",
        },
        # The trainer waits while the rollout runs, and trains in the rest of the step.
        beside=frozenset({"gen"}),
        containers={"train": ("ref", "old_log_prob", "update_actor")},
        # What the trainer does from the end of one training to the start of the next: train_wait spans it all.
        details=frozenset({"update_weights", "sleep", "wake_up", "data_preprocess", "ref_model_update", "save_model"}),
        not_seconds=re.compile(r"^perf/(?:longest|effective|request)"),
    ),
    traps=(
        Trap(
            "slime-step-time",
            "step_time is train_wait_time + train_time, and the wait lasts from the end of one training to the start "
            "of the next: update_weights_time, sleep_time, wake_up_time and data_preprocess_time are parts of it and "
            "are not added to the step",
            r"^perf/step_time$",
        ),
        Trap(
            "slime-tokens-per-gpu",
            "tokens_per_gpu_per_sec counts response tokens over rollout time and rollout GPUs alone; not used",
            r"^perf/(?:effective_)?tokens_per_gpu_per_sec$",
        ),
    ),
)
SLIME = console_log("slime", SLIME_DIALECT, STEPS.read, begins=BEGINS, sign=b": {'", last_metric=STEP_TIME)
