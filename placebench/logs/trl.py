"""TRL: the dicts that its trainers print, with quoted or plain numbers, and `trainer_state.json`.

A printed dict carries no step, so the lines are counted; where the epoch goes back, the run was restarted.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from placebench.logs.console import CARRIED, console_log, printed_dicts
from placebench.logs.formats import Count, Dialect, LogFormat, Tokens, Trap
from placebench.logs.jsonl import json_numbers, pop_step
from placebench.logs.table import DamagedLogError, StepTable
from placebench.logs.timing import TimingRules

FIRST_KEYS = "loss|grad_norm|learning_rate|num_tokens|reward|objective/kl|eps|perf/step_s|step_time"
BEGINS = rb"(?m)(?:^" + CARRIED + rb"|\r|\])[ \t]*\{'(?:" + FIRST_KEYS.encode() + rb")': "
TITLE = rf"(?:^|\])\s*\{{(?='(?:{FIRST_KEYS}|train_runtime)': )"
LAST_LINE = "train_runtime"
HISTORY = b'"log_history"'
MAX_STATE_BYTES = 1 << 29
MAX_STEPS_PER_LINE = 1 << 31

_ASYNC = ("step", "fwd_bwd", "fwd", "optimizer", "rollout_wait", "weight_sync")
_ASYNC_PARTS = ("weight_sync_pause", "weight_sync_barrier", "weight_sync_transfer")
_OWN_NAME = {"weight_sync": "update_weights"}

TRL_DIALECT = Dialect(
    framework="TRL",
    # Any trainer may log a step_time.
    marks=("num_tokens", "train/num_tokens", "perf/step_s", "train/perf/step_s", "completions/", "train/completions/"),
    timing=TimingRules(
        prefixes=(),
        exact={
            "step_time": "step",
            "train/step_time": "step",
            **{
                f"{prefix}perf/{name}_s": _OWN_NAME.get(name, name)
                for prefix in ("", "train/")
                for name in (*_ASYNC, *_ASYNC_PARTS)
            },
        },
        details=frozenset({"fwd", *_ASYNC_PARTS}),
    ),
    tokens=Tokens(("num_tokens", "train/num_tokens"), Count.CUMULATIVE),
    traps=(
        Trap(
            "trl-step-time",
            "step_time is rank 0's and leaves out the optimizer, logging, checkpoints and the data loader",
            r"^(?:train/)?step_time$",
        ),
        Trap(
            "trl-cumulative-tokens",
            "num_tokens counts since the start of the run; the difference between steps is used",
            r"^(?:train/)?num_tokens$",
        ),
    ),
)


def read_console(blocks: Iterator[bytes], table: StepTable) -> None:
    """Put the printed dicts of blocks of whole lines into a table, counted from 1."""
    epochs: list[float] = []
    seconds: list[float] = []
    table.steps_per_number = None
    for _, metrics in printed_dicts(blocks, table, TITLE):
        if LAST_LINE in metrics:
            table.summary.update(metrics)
            table.steps_per_number = steps_per_line(epochs[-len(seconds) :], seconds, metrics)
            continue
        epoch = metrics.get("epoch", math.nan)
        if not math.isfinite(epoch):
            epoch = epochs[-1] if epochs else 0.0
        if epochs and epoch < epochs[-1]:
            del epochs[bisect_left(epochs, epoch) :]
            seconds.clear()
        epochs.append(epoch)
        seconds.append(metrics.get("step_time", metrics.get("perf/step_s", 0.0)))
        table.add(len(epochs), metrics)


def steps_per_line(epochs: Sequence[float], seconds: Sequence[float], end: Mapping[str, float]) -> int | None:
    """Training steps between two lines, of which the last line of the log says how many the whole run has.

    That is the only whole number that fits the lines' share of the run's epochs, within the rounding of what is
    printed, and with which the steps took no longer than the log says that training ran. A resumed run's log holds a
    part of the lines, while its last line divides all steps of the run by the time since it was resumed.

    Args:
        epochs: epoch of each line since the start, or since the run was resumed.
        seconds: time of one step, as each of the lines has it; 0 where it has none.
        end: the last line of the log.

    Returns:
        The number; None where none fits, or more than one.
    """
    runtime, rate, last = (end.get(name, math.nan) for name in (LAST_LINE, "train_steps_per_second", "epoch"))
    span = epochs[-1] - epochs[0] if epochs else 0.0
    if not (min(runtime, rate, last, span) > 0 and max(runtime, rate, last) < math.inf):
        return None
    # Epochs are printed with two decimals or with four digits, the rate with three decimals.
    digit = 0.01 if all(round(epoch, 2) == epoch for epoch in epochs) else 1e-3 * last
    slack = digit / span + digit / last + 0.0005 / rate
    steps = runtime * rate * span / last / (len(epochs) - 1)
    if not (slack < 1 and steps < MAX_STEPS_PER_LINE):
        return None
    fits = range(max(1, math.ceil(steps * (1 - slack))), math.floor(steps * (1 + slack)) + 1)
    if len(fits) != 1 or fits[0] * sum(filter(math.isfinite, seconds[1:])) > runtime:
        return None
    return fits[0]


def read_state(blocks: Iterator[bytes], table: StepTable) -> None:
    """Put the log history of a `trainer_state.json` into a table.

    Raises:
        DamagedLogError: the file is no JSON, or too large to be one state.
    """
    content = bytearray()
    for block in blocks:
        content += block
        if len(content) > MAX_STATE_BYTES:
            raise DamagedLogError(f"the state is larger than {MAX_STATE_BYTES >> 20} MiB")
    try:
        state = json.loads(content)
    except json.JSONDecodeError as error:
        raise DamagedLogError(f"line {error.lineno}: the file is not JSON: cut off?") from None
    except (ValueError, RecursionError):
        raise DamagedLogError("the file is not JSON") from None
    history = state.get("log_history") if isinstance(state, dict) else None
    for entry in history if isinstance(history, list) else ():
        step = pop_step(entry)
        metrics = {} if step is None else json_numbers(entry)
        if LAST_LINE in metrics:
            table.summary.update(metrics)
        elif step is not None and metrics:
            table.add(step, metrics)


TRL = console_log("trl", TRL_DIALECT, read_console, begins=BEGINS, sign=b"{'")
TRL_STATE = LogFormat(
    name="trl-state",
    title="trainer_state.json of TRL",
    begins=lambda block: HISTORY in block and block.lstrip()[:1] == b"{",
    read=read_state,
    dialect=TRL_DIALECT,
)
