"""Arms from logs of any framework: what its launches measured, under placebench's names where they mean the same."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd

from placebench.compare.arms import Arm, ArmLaunch
from placebench.compare.text import listing, plural
from placebench.errors import UsageError
from placebench.logs.console import STEP_SECONDS
from placebench.logs.facts import LENGTHS, Facts, logged_facts
from placebench.logs.formats import Count
from placebench.logs.read import is_timing
from placebench.logs.registry import DIALECTS
from placebench.logs.run import LoggedRun, read_run
from placebench.logs.timing import UNATTRIBUTED, Kind

PHASES = (Kind.PHASE, Kind.OVERLAP)
PARTS = (Kind.DETAIL, Kind.OUTSIDE)
_OF_USE = {
    STEP_SECONDS,
    *(name for names in LENGTHS.values() for name in names),
    *(name for known in DIALECTS if known.tokens for name in (*known.tokens.metrics, known.tokens.reported) if name),
}


def is_of_use(metric: str) -> bool:
    """Whether a comparison uses a metric, in whatever format; the others need not be kept."""
    return metric in _OF_USE or is_timing(metric)


def log_arm(
    launches: Sequence[Sequence[Path]],
    *,
    name: str | None = None,
    log_format: str | None = None,
    devices: int | None = None,
    learner_ranks: int | None = None,
    warmup_steps: int = 2,
) -> Arm:
    """An arm from logs.

    Args:
        launches: the files of each launch.
        name: what to call it; the first file's name by default.
        log_format: name of the format of all files; None tells each by its content.
        devices: all devices allocated to the run.
        learner_ranks: number of learner ranks, for frameworks that multiply token counts by it.
        warmup_steps: first steps of each launch, and behind each restart, that are left out of the numbers.

    Raises:
        UsageError: a file cannot be read, holds no steps or no timings, or the warm-up leaves no step.
    """
    runs = [
        read_run(files, log_format=log_format, devices=devices, learner_ranks=learner_ranks, keep=is_of_use)
        for files in launches
    ]
    return arm_of_logs(runs, name=name, devices=devices, warmup_steps=warmup_steps)


def arm_of_logs(
    runs: Sequence[LoggedRun], *, name: str | None = None, devices: int | None = None, warmup_steps: int = 2
) -> Arm:
    """An arm from launches that have been read; see `log_arm`."""
    label = runs[0].name if name is None else name
    launches, values, timings, flags = [], [], [], []
    for run in runs:
        launch, numbers, tidy = _measure(run, warmup_steps)
        launches.append(launch)
        values.append(numbers)
        timings.append(tidy.assign(launch=launch.source))
        where = f"{launch.source}: " if len(runs) > 1 else ""
        flags += [f"{label}: {where}{flag.name}: {flag.text}" for flag in run.flags]
    facts, unequal = _joined_facts([logged_facts(run, devices) for run in runs])
    if unequal:
        flags.append(f"{label}: its launches differ in {listing(unequal)}")
    everything = pd.concat(timings, ignore_index=True)
    return Arm(
        label=label,
        launches=tuple(launches),
        launch_values=pd.DataFrame.from_dict(dict(enumerate(values, start=1)), orient="index"),
        timings=everything,
        facts=facts,
        flags=tuple(flags),
        overlapping=frozenset(everything.loc[everything["kind"] == Kind.OVERLAP, "phase"]),
    )


def _measure(run: LoggedRun, warmup_steps: int) -> tuple[ArmLaunch, dict[str, float], pd.DataFrame]:
    """The numbers of one launch: medians of the measured steps."""
    source = "+".join(str(log.path) for log in run.logs)
    if run.timings is None:
        raise UsageError(f"{source}: it has no timings, so there is nothing to compare")
    steps = np.sort(run.timings["step"].unique())
    warm = _warmup(run, steps, warmup_steps)
    if warm.all():
        raise UsageError(f"{source}: --warmup-steps {warmup_steps} leaves none of its {plural(len(steps), 'step')}")
    measured = run.timings[run.timings["step"].isin(steps[~warm])]
    upkeep = _upkeep(run, measured)
    numbers = {}
    for (phase, kind), group in measured.groupby(["phase", "kind"], sort=False):
        numbers[_key(str(phase), Kind(str(kind)), is_upkeep=phase in upkeep)] = _typical(run, group["seconds"])
    whole = measured[measured["kind"] == Kind.STEP].set_index("step")["seconds"]
    kept = (
        measured[measured["phase"].isin(upkeep)].groupby("step")["seconds"].sum().reindex(whole.index, fill_value=0.0)
    )
    if len(whole):
        numbers["step_time"] = _typical(run, whole - kept)
        rows = run.throughput.set_index("step").reindex(whole.index)
        share = whole / (whole - kept)
        for name in ("tokens_per_s", "tokens_per_s_per_device"):
            numbers[name] = float((rows[name] * share).median())
    formats = "+".join(dict.fromkeys(log.format.name for log in run.logs))
    return ArmLaunch(source, formats, len(steps), int((~warm).sum())), numbers, run.timings


def _warmup(run: LoggedRun, steps: np.ndarray, warmup_steps: int) -> np.ndarray:
    """Which steps are warm-up: the first of the log, and the first behind each restart."""
    begins = [steps[0], *(restart.step for log in run.logs for restart in log.table.restarts)]
    warm = np.zeros(len(steps), np.bool_)
    for begin in begins:
        first = int(np.searchsorted(steps, begin))
        warm[first : first + warmup_steps] = True
    return warm


def _upkeep(run: LoggedRun, timings: pd.DataFrame) -> frozenset[str]:
    """Validation and checkpoints that the log's step time contains: no part of what a step costs."""
    inside = timings.loc[timings["kind"] == Kind.PHASE, "phase"]
    return frozenset(inside[inside.isin(run.dialect.timing.movable)])


def _key(phase: str, kind: Kind, *, is_upkeep: bool) -> str:
    if kind is Kind.STEP:
        return "step_time"
    if kind is Kind.UNATTRIBUTED:
        return UNATTRIBUTED
    return f"part/{phase}" if is_upkeep or kind in PARTS else f"phase/{phase}"


def _typical(run: LoggedRun, seconds: "pd.Series[float]") -> float:
    """The median; the mean where one generation serves several rows, most of which are short."""
    tokens = run.dialect.tokens
    alternates = tokens is not None and tokens.count is Count.CUMULATIVE
    return float(seconds.mean() if alternates else seconds.median())


def _joined_facts(launches: Sequence[Facts]) -> tuple[Facts, list[str]]:
    """What the launches of an arm say, means of numbers; and in which texts they differ."""
    joined: Facts = {}
    unequal = []
    for fact in dict.fromkeys(fact for facts in launches for fact in facts):
        values = [facts[fact] for facts in launches if fact in facts]
        numbers = [value for value in values if isinstance(value, float)]
        if numbers:
            joined[fact] = fmean(numbers)
            continue
        texts = list(dict.fromkeys(map(str, values)))
        joined[fact] = " or ".join(texts)
        if len(texts) > 1:
            unequal.append(fact)
    return joined, unequal
