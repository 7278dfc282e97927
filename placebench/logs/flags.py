"""What a reader of a log's numbers must know: the framework's traps, what was odd about the file, what does not fit."""

import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from pathlib import Path

import pandas as pd

from placebench.logs.console import STEP_SECONDS
from placebench.logs.formats import Count, Dialect, any_matches
from placebench.logs.table import Restart, StepTable
from placebench.logs.throughput import reported_devices
from placebench.logs.timing import MOST_SECONDS, TimingRules, Timings, seconds_of
from placebench.spec.phases import STEP
from placebench.spec.text import plural

# The log's clock must differ from the step's own time by this share, and by this many seconds, to be worth a word.
CLOCK_SHARE = 0.05
CLOCK_SECONDS = 1.0
LINES_SHOWN = 5
NO_SECONDS, NOT_FINITE, NO_TOKENS, OPEN_END = "no-seconds", "not-finite", "no-tokens", "open-end"
# Metrics that are numbers as long as training works, in the order in which one spoils the next.
LEARNING = (r"^critic/score/mean$", r"^critic/rewards/mean$", r"(^|_|/)loss$", r"(^|/)grad_norm$")
# One file may print fewer digits of a number than another.
SAME_RELATIVE = 0.01
SAME_ABSOLUTE = 0.005


@dataclass(frozen=True)
class Flag:
    """One thing to know."""

    name: str
    """The word for it in tables and files."""
    text: str
    """One line for people."""


def trap_flags(dialect: Dialect, names: Collection[str]) -> Iterator[Flag]:
    """The framework's known traps that a log with these metrics has."""
    for trap in dialect.traps:
        if any_matches(trap.metrics, names):
            yield Flag(trap.name, trap.text)


def table_flags(table: StepTable) -> Iterator[Flag]:
    """What was odd about a file's steps."""
    for _, at_one_step in groupby(table.restarts, lambda restart: restart.step):
        yield _restarts(list(at_one_step))
    if lines := table.replaced:
        text = "1 step line repeats an earlier one" if lines == 1 else f"{lines:,} step lines repeat earlier ones"
        yield Flag("repeated", text)
    if table.out_of_order:
        yield Flag("out-of-order", f"{_steps(table.out_of_order)} after a later one; sorted")
    if table.damages:
        yield Flag("cut-off", f"{_steps(table.damages)} cut off or torn apart, and left out: {table.damaged_at}")
    if table.open_end:
        yield Flag(OPEN_END, "the last line has no line end: its last number may be cut off")


def seconds_flags(path: Path, table: StepTable, rules: TimingRules) -> Iterator[Flag]:
    """Which timings of a file are no times of a step: NaN, infinite, negative, or beyond reason."""
    count, first = table.values_outside(0, MOST_SECONDS, lambda name: rules.phase(name) is not None)
    if count:
        listed = "; ".join(
            f"{path}{f':{odd.line}' if odd.line else ''}: step {odd.step}, {odd.metric} {odd.value:g}" for odd in first
        )
        are = (
            "timing cannot be a time of a step, and is" if count == 1 else "timings cannot be times of a step, and are"
        )
        yield Flag(NO_SECONDS, f"{count:,} {are} left out: {listed}{'; …' * (count > len(first))}")


def tells_learning(metric: str) -> bool:
    """Whether a metric is a number as long as training works."""
    return any(re.search(words, metric) for words in LEARNING)


def learning_flags(path: Path, table: StepTable) -> Iterator[Flag]:
    """Whether training came apart: it takes its time, but computes nothing that a job would go on with.

    A single step without a number is none of that: frameworks log the mean of nothing so.
    """
    most = sys.float_info.max
    for metric in filter(tells_learning, table.names):
        count, first = table.values_outside(-most, most, metric.__eq__)
        if count > 1:
            odd = first[0]
            yield Flag(
                NOT_FINITE,
                f"{path}{f':{odd.line}' if odd.line else ''}: {metric} is {odd.value} in step {odd.step} and"
                f" {plural(count - 1, 'later step')}: training failed there, although its times were measured",
            )
            return


def clock_flags(metrics: pd.DataFrame, timings: Timings | None) -> Iterator[Flag]:
    """Whether the log's clock shows more or less time a step than the step's own time.

    Args:
        metrics: a row a step and a column a metric.
        timings: the timings among them, None where there are none.
    """
    if timings is None or STEP_SECONDS not in metrics or STEP not in timings.seconds:
        return
    both = pd.DataFrame({"shown": seconds_of(metrics[STEP_SECONDS]), "timed": timings.seconds[STEP]}).dropna()
    shown, timed = both["shown"].median(), both["timed"].median()
    if abs(shown - timed) > max(CLOCK_SHARE * timed, CLOCK_SECONDS):
        why = (
            "no number of the log covers the rest" if shown > timed else "steps overlap, or some time is counted twice"
        )
        yield Flag("clock", f"the log's clock shows {shown:.1f} s a step, its step time is {timed:.1f} s: {why}")


def disagreement_flags(files: Sequence[pd.DataFrame]) -> Iterator[Flag]:
    """Whether several files of a run give a metric different values.

    Args:
        files: the metrics of each, a row a step and a column a metric.
    """
    names = set()
    for one, other in combinations(files, 2):
        for name in set(one.columns) & set(other.columns):
            first, second = one[name].align(other[name], join="inner")
            slack = SAME_ABSOLUTE + SAME_RELATIVE * first.where(first > second, second).abs()
            if ((first - second).abs() > slack).any():
                names.add(name)
    if names:
        yield Flag(
            "files-disagree",
            f"the files give different values of {', '.join(sorted(names)[:3])}: those of the first file count",
        )


def apart_flags(throughput: pd.DataFrame, devices: int | None) -> Iterator[Flag]:
    """Whether the log's own throughput leaves out the devices of the rollout, and what follows from it."""
    divided_by = reported_devices(throughput)
    if divided_by is None or divided_by == devices:
        return
    own = f"the log divides its tokens/s by {divided_by} devices"
    if devices is None:
        text = (
            f"{own}, which may leave out the rollout's own: no tokens/s/device; give --devices, the number of all"
            " devices of the run"
        )
    else:
        text = f"{own} of {devices}, without the rollout's own; the recomputed figure counts all"
    yield Flag("rollout-devices", text)


def throughput_flags(
    throughput: pd.DataFrame,
    dialect: Dialect,
    learner_ranks: int | None,
    names: Collection[str],
    steps_per_number: int | None,
) -> Iterator[Flag]:
    """Where the log contradicts its own throughput, or why there is none."""
    wrong = throughput.loc[throughput["contradicts"], "step"].tolist()
    if wrong:
        shown = ", ".join(map(str, wrong[:5])) + (", …" if len(wrong) > 5 else "")
        yield Flag(
            "throughput-contradicts",
            f"{len(wrong)} of {len(throughput)} steps: the log's tokens/s x seconds x devices does not equal its"
            f" tokens (steps {shown}); the recomputed figure counts",
        )
    if throughput["tokens"].isna().all():
        if dialect.tokens is None:
            why = f"{dialect.framework}'s log does not count tokens of prompts and responses"
        elif learner_ranks is None and dialect.tokens.count_in(names) is Count.TIMES_RANKS:
            why = "the count is multiplied by the number of learner ranks, which is not given"
        elif steps_per_number is None and any(name in names for name in dialect.tokens.metrics):
            why = (
                "the log does not say how many steps lie between two of its lines; the last line of a finished run,"
                " trainer_state.json, TensorBoard's events and a CSV's train/global_step say so"
            )
        elif (counted := next((name for name in dialect.tokens.metrics if name in names), None)) is None:
            why = f"the log lacks {' and '.join(dialect.tokens.metrics)}"
        elif throughput.empty:
            why = f"the log has {counted}, but no step has a time"
        elif dialect.tokens.count is Count.CUMULATIVE:
            why = f"{counted} is a running total, and no two steps with a time tell what was added between them"
        else:
            why = f"{counted} is not a number of tokens in any step with a time"
        yield Flag(NO_TOKENS, f"no throughput: {why}")


def _restarts(restarts: Sequence[Restart]) -> Flag:
    """Restarts in a row that went on from one step: all but the last came to nothing."""
    lines = [f"{restart.line:,}" for restart in restarts[:LINES_SHOWN]] + ["…"] * (len(restarts) > LINES_SHOWN)
    again = f", {len(restarts)} times" if len(restarts) > 1 else ""
    # Events have no lines.
    where = f"line{'s' * bool(again)} {', '.join(lines)}: " if restarts[0].line else ""
    return Flag(
        "restart",
        f"{where}the run was restarted at step {restarts[0].step}{again}; what was done before from that step on does"
        " not count, and the first steps after it are warm-up again",
    )


def _steps(count: int) -> str:
    return f"{count:,} step{'s' * (count != 1)}"
