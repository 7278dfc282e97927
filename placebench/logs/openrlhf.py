"""OpenRLHF's console log: `… ✨ Global step 3: {'policy_loss': -0.0012, …, 'timing/step_total': 35.6}`."""

from placebench.logs.console import StepDicts, console_log
from placebench.logs.formats import Dialect, Trap
from placebench.logs.timing import TimingRules

TITLE = r"Global step ([0-9]{1,18}): \{"

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
            "in synchronous runs step_total is the sum of its phases, without the time between them; in asynchronous"
            " ones it is wall time and includes waiting; compare by the log's clock (log/step_seconds)",
            r"timing/step_total$",
        ),
    ),
)
OPENRLHF = console_log("openrlhf", OPENRLHF_DIALECT, StepDicts(TITLE).read, begins=TITLE.encode())
