"""One launch as its logs show it: one file or several of one run, with what its numbers mean and what to mind."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from placebench.errors import UsageError
from placebench.logs.flags import Flag, clock_flags, table_flags, trap_flags
from placebench.logs.formats import Count, Dialect
from placebench.logs.head import DEVICES, ROLLOUT_DEVICES, Facts, head_facts
from placebench.logs.read import Log, launch_names, scan_log
from placebench.logs.registry import UNKNOWN_DIALECT
from placebench.logs.throughput import reported_devices, throughput_frame
from placebench.logs.timing import timing_frame, timing_rows

# One file may print fewer digits of a number than another.
SAME_RELATIVE = 0.01
SAME_ABSOLUTE = 0.005


@dataclass(frozen=True)
class LoggedRun:
    """One launch, read from its logs."""

    name: str
    """Name of the launch in tables."""
    logs: tuple[Log, ...]
    """The launch's files, read."""
    dialect: Dialect
    """What the names of the metrics mean."""
    frame: pd.DataFrame
    """Metrics: columns launch, step, metric, value."""
    timings: pd.DataFrame | None
    """Timings: columns launch, step, phase, seconds, kind, as `timing_frame` gives them; None where there are none."""
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
    frames = [log.table.frame(name) for log in logs]
    frame = pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
    names = tuple(dict.fromkeys(name for log in logs for name in log.table.names))
    flags = [*trap_flags(dialect, names)]
    for log in logs:
        where = f"{log.path}: " if len(logs) > 1 else ""
        flags += [Flag(flag.name, where + flag.text) for flag in table_flags(log.table)]
    if len(frames) > 1:
        flags += _disagreements(frame)
        frame = frame.drop_duplicates(["step", "metric"]).sort_values("step", kind="stable", ignore_index=True)
    timings = timing_frame(frame, dialect.timing) if timing_rows(frame, dialect.timing).any() else None
    head: Facts = {}
    for log in logs:
        head |= head_facts(log.path)
    rollout_apart = ROLLOUT_DEVICES in head or (dialect.tokens is not None and dialect.tokens.rollout_is_apart(names))
    if devices is None and ROLLOUT_DEVICES in head:
        devices = int(head[DEVICES])
    steps_per_number = min(log.table.steps_per_number or 0 for log in logs) or None
    throughput = throughput_frame(
        frame,
        timings,
        dialect.tokens,
        devices=devices,
        learner_ranks=learner_ranks,
        rollout_apart=rollout_apart,
        steps_per_number=steps_per_number,
    )
    flags += clock_flags(frame, timings)
    flags += _throughput_flags(throughput, dialect, learner_ranks, names, steps_per_number)
    if rollout_apart:
        flags += _apart_flags(throughput, devices)
    return LoggedRun(name, logs, dialect, frame, timings, throughput, tuple(dict.fromkeys(flags)), head, rollout_apart)


def _one_dialect(logs: Sequence[Log]) -> Dialect:
    known = {log.dialect.framework: log for log in logs if log.dialect is not UNKNOWN_DIALECT}
    if len(known) > 1:
        listed = ", ".join(f"{log.path} is {framework}'s" for framework, log in known.items())
        raise UsageError(f"the files of one run are of different frameworks: {listed}")
    return next((log.dialect for log in known.values()), UNKNOWN_DIALECT)


def _disagreements(frame: pd.DataFrame) -> list[Flag]:
    """Metrics that two files of a run give different values."""
    cells = frame.groupby(["metric", "step"], sort=False)["value"].agg(["min", "max"])
    slack = SAME_ABSOLUTE + SAME_RELATIVE * cells["max"].abs()
    names = cells.index[(cells["max"] - cells["min"] > slack).to_numpy()].get_level_values("metric").unique()
    if names.empty:
        return []
    return [
        Flag("files-disagree", f"the files give different values of {', '.join(sorted(names)[:3])}: the first counts")
    ]


def _apart_flags(throughput: pd.DataFrame, devices: int | None) -> list[Flag]:
    """Whether the log's own throughput leaves out the devices of the rollout, and what follows from it."""
    divided_by = reported_devices(throughput)
    if divided_by is None or divided_by == devices:
        return []
    own = f"the log divides its tokens/s by {divided_by} devices"
    if devices is None:
        text = f"{own}, which may leave out the rollout's own: no tokens/s/device; give --devices, all of the run"
    else:
        text = f"{own} of {devices}, without the rollout's own; the recomputed figure counts all"
    return [Flag("rollout-devices", text)]


def _throughput_flags(
    throughput: pd.DataFrame,
    dialect: Dialect,
    learner_ranks: int | None,
    names: Collection[str],
    steps_per_number: int | None,
) -> list[Flag]:
    flags = []
    wrong = throughput.loc[throughput["contradicts"], "step"].tolist()
    if wrong:
        shown = ", ".join(map(str, wrong[:5])) + (", …" if len(wrong) > 5 else "")
        flags.append(
            Flag(
                "throughput-contradicts",
                f"{len(wrong)} of {len(throughput)} steps: the log's tokens/s x seconds x devices is not its tokens "
                f"(steps {shown}); the recomputed figure counts",
            )
        )
    if throughput["tokens"].isna().all():
        if dialect.tokens is None:
            why = f"{dialect.framework}'s log does not count tokens of prompts and responses"
        elif learner_ranks is None and dialect.tokens.count_in(names) is Count.TIMES_RANKS:
            why = "the count is multiplied by the number of learner ranks, which is not given"
        elif steps_per_number is None and any(name in names for name in dialect.tokens.metrics):
            why = (
                "the log does not say how many steps lie between two of its lines; the last line of a run that ended, "
                "trainer_state.json, TensorBoard's events and a CSV's train/global_step do"
            )
        else:
            why = f"the log lacks {' and '.join(dialect.tokens.metrics)}"
        flags.append(Flag("no-tokens", f"no throughput: {why}"))
    return flags
