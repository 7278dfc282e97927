"""prime-rl: the step lines of its trainer and orchestrator logs, and the flat objects of `metrics.jsonl`."""

import json
import re
from collections.abc import Iterator

from placebench.logs.console import BARE_NUMBER, StepClock, console_log, found_lines
from placebench.logs.formats import Dialect, LogFormat, Trap
from placebench.logs.jsonl import read_objects
from placebench.logs.table import StepTable
from placebench.logs.timing import TimingRules

BEGINS = rb"\bStep [0-9]{1,18} \| +(?:Time: *)?[0-9][0-9.]*(?:ms|[smhd])\b"
TITLE = r"\bStep ([0-9]{1,18}) \| +(?:Time: *)?((?:[0-9.]+(?:ms|[smhd])\s*)+)\|?(.*)$"
DURATION = re.compile(r"([0-9]+\.?[0-9]*)(ms|[smhd])")
FIELD = re.compile(rf"\s*([A-Z][\w .()-]*?):?\s+({BARE_NUMBER})(?=[\s%/]|$)")
MAX_FIELD = 200
STEP_TIME = "time/step"
JSON_STEP = re.compile(rb'^[ \t]*\{(?=[^\n]*"step"\s*:\s*[0-9])[^\n]*', re.MULTILINE)
UNIT_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
NAMES = {"Throughput": "perf/throughput", "MFU": "perf/mfu", "Peak Mem": "perf/peak_memory"}

PRIME_RL_DIALECT = Dialect(
    framework="prime-rl",
    marks=(
        "time/wait_for_batch",
        "time/forward_backward",
        "time/broadcast_weights",
        "time/wait_for_policy",
        "off_policy/",
    ),
    timing=TimingRules(
        prefixes=("time/", "orchestrator/time/"),
        phases={
            "forward_backward": "update_actor",
            "broadcast_weights": "update_weights",
            "save_ckpt": "save_checkpoint",
        },
        movable=("save_checkpoint",),
    ),
    traps=(
        Trap(
            "prime-rl-throughput",
            "throughput counts padded tokens over forward and backward alone, on the trainer's GPUs; not used",
            r"^perf/throughput",
        ),
    ),
)


def read_console(blocks: Iterator[bytes], table: StepTable) -> None:
    """Put the step lines of blocks of whole lines into a table.

    The orchestrator's lines have a reward; their time is `orchestrator/time/step`, so that both logs of a run can be
    read together.
    """
    clock = StepClock()
    for found in found_lines(blocks, table, TITLE):
        step = int(found[1])
        orchestrator = "Reward" in found[3]
        metrics = {"orchestrator/time/step" if orchestrator else STEP_TIME: _seconds(found[2])}
        for field in found[3].split("|"):
            if len(field) < MAX_FIELD and (pair := FIELD.match(field)):
                label = pair[1].rstrip(". ")
                metrics[NAMES.get(label, label.lower().replace(" ", "_").replace("._", "_"))] = float(pair[2])
        if not orchestrator:
            metrics |= clock.since_last(step, found.string)
        table.add(step, metrics)


def _seconds(duration: str) -> float:
    return sum(float(number) * UNIT_S[unit] for number, unit in DURATION.findall(duration))


def is_flat_step(block: bytes) -> bool:
    """Whether a flat object with a step is in a block: `{"step": 3, "time/step": 14.2}`."""
    for found in JSON_STEP.finditer(block) if b'"step"' in block else ():
        try:
            content = json.loads(found[0])
        except (ValueError, RecursionError):
            continue
        if isinstance(content, dict) and len(content) > 1 and not any(isinstance(v, dict) for v in content.values()):
            return True
    return False


PRIME_RL = console_log(
    "prime-rl", PRIME_RL_DIALECT, read_console, begins=BEGINS, sign=b" | ", closed=False, last_metric=STEP_TIME
)
FLAT_JSONL = LogFormat(
    "jsonl", "JSONL with a step and metrics side by side (prime-rl's metrics.jsonl)", is_flat_step, read_objects, None
)
