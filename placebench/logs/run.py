"""One launch as its logs show it: one file or several of one run, with what its numbers mean and what to mind."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import numpy as np
import pandas as pd

from placebench.errors import UsageError
from placebench.logs.flags import (
    Flag,
    apart_flags,
    clock_flags,
    disagreement_flags,
    learning_flags,
    seconds_flags,
    table_flags,
    throughput_flags,
    trap_flags,
)
from placebench.logs.formats import Dialect
from placebench.logs.head import DEVICES, ROLLOUT_DEVICES, Facts, head_facts
from placebench.logs.read import Log, launch_names, scan_log
from placebench.logs.registry import UNKNOWN_DIALECT
from placebench.logs.throughput import MOST_TOKENS, throughput_frame
from placebench.logs.timing import Timings, timings_of

# Names under which frameworks log the mean lengths of a step's prompts and responses.
LENGTHS: Mapping[str, tuple[str, ...]] = {
    "mean prompt length": ("prompt_length/mean", "prompts/mean_length"),
    "mean response length": (
        "response_length/mean",
        "completions/mean_length",
        "train/completions/mean_length",
        "response_length",
        "rollout/response_len/mean",
        "rollout/response_length_mean",
        "train/rollout/response_length_mean",
        "val/sequence_lengths",
    ),
}


@dataclass(frozen=True)
class LoggedRun:
    """One launch, read from its logs."""

    name: str
    """Name of the launch in tables."""
    logs: tuple[Log, ...]
    """The launch's files, read."""
    dialect: Dialect
    """What the names of the metrics mean."""
    metrics: pd.DataFrame
    """Metrics: a row a step and a column a metric, NaN where a step lacks it."""
    timings: Timings | None
    """What the steps took; None where nothing is timed."""
    throughput: pd.DataFrame
    """Throughput, as `throughput_frame` gives it."""
    flags: tuple[Flag, ...]
    """What a reader of the numbers must know."""
    head: Facts
    """What stands before the steps, as `head_facts` gives it."""
    rollout_apart: bool
    """Whether the rollout had devices of its own, as far as the log shows."""


def read_run(
    paths: Sequence[Path],
    *,
    name: str | None = None,
    log_format: str | None = None,
    devices: int | None = None,
    learner_ranks: int | None = None,
    keep: Callable[[str], bool] | None = None,
) -> LoggedRun:
    """Read one launch from its logs.

    Args:
        paths: the launch's files, as `scan_log` takes them. Where two have the same step and metric, the one named
            first counts.
        name: what to call it; the first file's name by default.
        log_format: name of the format of all files; None finds that of each by its content.
        devices: all devices allocated to the run, for tokens/s/device.
        learner_ranks: number of learner ranks, for frameworks that multiply token counts by it.
        keep: which metrics to keep, by name; None keeps all.

    Raises:
        UsageError: a file cannot be read or holds no steps, or the files are of different frameworks.
    """
    logs = tuple(scan_log(path, log_format=log_format, keep=keep) for path in paths)
    if not logs:
        raise UsageError("name at least one log")
    return run_of_logs(logs, name=name, devices=devices, learner_ranks=learner_ranks)


def run_of_logs(
    logs: tuple[Log, ...], *, name: str | None = None, devices: int | None = None, learner_ranks: int | None = None
) -> LoggedRun:
    """One launch from its logs, which have been read; see `read_run`.

    Raises:
        UsageError: the logs are of different frameworks.
    """
    dialect = _one_dialect(logs)
    name = launch_names([logs[0].path])[0] if name is None else name
    files = [log.metrics for log in logs]
    metrics = reduce(pd.DataFrame.combine_first, files)
    names = tuple(dict.fromkeys(name for log in logs for name in log.table.names))
    flags = [*trap_flags(dialect, names)]
    for log in logs:
        where = f"{log.path}: " if len(logs) > 1 else ""
        flags += [Flag(flag.name, where + flag.text) for flag in table_flags(log.table)]
        flags += seconds_flags(log.path, log.table, dialect.timing)
        flags += learning_flags(log.path, log.table)
    flags += disagreement_flags(files)
    timings = timings_of(metrics, dialect.timing)
    head: Facts = {}
    for log in logs:
        head |= head_facts(log.path)
    rollout_apart = ROLLOUT_DEVICES in head or (dialect.tokens is not None and dialect.tokens.rollout_is_apart(names))
    if devices is None and ROLLOUT_DEVICES in head:
        devices = int(head[DEVICES])
    steps_per_number = min(log.table.steps_per_number or 0 for log in logs) or None
    throughput = throughput_frame(
        metrics,
        timings,
        dialect.tokens,
        devices=devices,
        learner_ranks=learner_ranks,
        rollout_apart=rollout_apart,
        steps_per_number=steps_per_number,
    )
    flags += clock_flags(metrics, timings)
    flags += throughput_flags(throughput, dialect, learner_ranks, names, steps_per_number)
    if rollout_apart:
        flags += apart_flags(throughput, devices)
    return LoggedRun(
        name, logs, dialect, metrics, timings, throughput, tuple(dict.fromkeys(flags)), head, rollout_apart
    )


def _one_dialect(logs: Sequence[Log]) -> Dialect:
    known = {log.dialect.framework: log for log in logs if log.dialect is not UNKNOWN_DIALECT}
    if len(known) > 1:
        listed = ", ".join(f"{log.path} is {framework}'s" for framework, log in known.items())
        raise UsageError(f"the files of one run are of different frameworks: {listed}")
    return next((log.dialect for log in known.values()), UNKNOWN_DIALECT)


def logged_facts(run: LoggedRun, devices: int | None = None) -> Facts:
    """What the logs of one launch say of their run; text, or a number where a little more or less is no difference.

    Args:
        run: the launch.
        devices: how many there are, where the user has said so.
    """
    facts: Facts = {"framework": run.dialect.framework, **run.head}
    if devices is not None:
        facts[DEVICES] = str(devices)
    elif DEVICES not in facts and (inferred := _inferred_devices(run)) is not None:
        facts[DEVICES] = str(inferred)
    elif run.rollout_apart and ROLLOUT_DEVICES not in facts:
        # The configuration names the trainer's alone.
        facts.pop(DEVICES, None)
    counted = run.throughput.dropna(subset="tokens")
    if len(counted):
        facts["tokens a step"] = float(counted["tokens"].sum() / counted["steps"].sum())
    return facts | _lengths(run.metrics)


def _inferred_devices(run: LoggedRun) -> int | None:
    """The devices that the log's own throughput was divided by; None where that is not known."""
    rows = run.throughput
    ratio = (rows["tokens_per_s"] / rows["tokens_per_s_per_device"]).median()
    return round(float(ratio)) if np.isfinite(ratio) else None


def _lengths(metrics: pd.DataFrame) -> Facts:
    facts: Facts = {}
    for fact, names in LENGTHS.items():
        for name in filter(metrics.columns.__contains__, names):
            values = metrics[name][(metrics[name] >= 0) & (metrics[name] < MOST_TOKENS)]
            if len(values):
                facts[fact] = float(values.mean())
                break
    return facts
