"""Sides from logs of any framework: what their launches measured, under placebench's names where they mean the same."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from placebench.compare.metrics import LOG_CLOCK
from placebench.compare.read.warmup import find_warmup
from placebench.compare.side import Background, LaunchSource, Side
from placebench.compare.statistics.estimates import Floats, middle
from placebench.errors import UsageError
from placebench.logs.console import STEP_SECONDS
from placebench.logs.flags import tells_learning
from placebench.logs.formats import Count
from placebench.logs.head import Facts
from placebench.logs.read import is_timing
from placebench.logs.registry import DIALECTS
from placebench.logs.run import LENGTHS, LoggedRun, logged_facts, read_run
from placebench.logs.timing import Kind, Timings, names_of_timings, seconds_of
from placebench.spec.phases import STEP, UNATTRIBUTED
from placebench.spec.text import listing, plural

PARTS = (Kind.DETAIL, Kind.OUTSIDE)
_OF_USE = {
    STEP_SECONDS,
    *(name for names in LENGTHS.values() for name in names),
    *(name for known in DIALECTS if known.tokens for name in (*known.tokens.metrics, known.tokens.reported) if name),
}


def is_of_use(metric: str) -> bool:
    """Whether a comparison uses a metric, in whatever format; the others need not be kept."""
    return metric in _OF_USE or is_timing(metric) or tells_learning(metric)


def log_side(
    launches: Sequence[Sequence[Path]],
    *,
    name: str | None = None,
    log_format: str | None = None,
    devices: int | None = None,
    learner_ranks: int | None = None,
    warmup_steps: int = 2,
) -> Side:
    """A side from logs.

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
    return side_of_logs(runs, name=name, devices=devices, warmup_steps=warmup_steps)


def side_of_logs(
    runs: Sequence[LoggedRun], *, name: str | None = None, devices: int | None = None, warmup_steps: int = 2
) -> Side:
    """A side from launches that have been read; see `log_side`."""
    label = runs[0].name if name is None else name
    launches, values, steps = [], [], []
    for number, run in enumerate(runs, start=1):
        launch, numbers, measured = _measure(run, warmup_steps)
        launches.append(launch)
        values.append(numbers)
        if len(measured):
            steps.append(measured.assign(round=number))
    flags = [f"{label}: {text}" for text in _flags(launches, runs)]
    facts, unequal = _joined_facts([logged_facts(run, devices) for run in runs])
    if unequal:
        flags.append(f"{label}: its launches differ in {listing(unequal)}")
    timings = {launch.path: run.timings for launch, run in zip(launches, runs, strict=True) if run.timings}
    return Side(
        name=label,
        launch_values=pd.DataFrame.from_dict(dict(enumerate(values, start=1)), orient="index"),
        steps=pd.concat(steps, ignore_index=True) if steps else pd.DataFrame(),
        background=Background(
            sources=tuple(launches),
            timings=timings,
            facts=facts,
            flags=tuple(flags),
            overlapping=frozenset(
                phase for one in timings.values() for phase, kind in one.kinds.items() if kind is Kind.OVERLAP
            ),
            step_is_sum=any(run.dialect.timing.step_is_sum for run in runs),
        ),
    )


def _flags(launches: Sequence[LaunchSource], runs: Sequence[LoggedRun]) -> list[str]:
    """What to mind, by name: once where it is the same for every launch, else as the first that has it says it."""
    lines = []
    for name in dict.fromkeys(flag.name for run in runs for flag in run.flags):
        texts = [tuple(flag.text for flag in run.flags if flag.name == name) for run in runs]
        if len(set(texts)) == 1:
            lines += [f"{name}: {text}" for text in texts[0]]
            continue
        source, first = next((launch.path, found) for launch, found in zip(launches, texts, strict=True) if found)
        others = sum(map(bool, texts)) - 1
        more = f" (and in {plural(others, 'launch', 'launches')} more)" if others else ""
        lines += [f"{source}: {name}: {text}{more}" for text in first]
    return lines


def _measure(run: LoggedRun, warmup_steps: int) -> tuple[LaunchSource, dict[str, float], pd.DataFrame]:
    """The numbers of one launch, medians of the measured steps; time and tokens of these steps."""
    source = "+".join(str(log.path) for log in run.logs)
    if run.timings is None:
        found = "; ".join(log.found_instead for log in run.logs)
        names = names_of_timings(run.dialect.timing)
        raise UsageError(f"{source}: it has no timings in seconds ({names}), so there is nothing to compare: {found}")
    timings, steps = run.timings, run.timings.steps
    warm = _warmup(run, timings, warmup_steps)
    if warm.all():
        left = f"{source}: --warmup-steps {warmup_steps} leaves none of its {plural(len(steps), 'step')}"
        raise UsageError(f"{left}: give fewer, such as 0")
    measured = timings.seconds[~warm]
    upkeep = _upkeep(run, timings)
    numbers = {}
    for phase in _by_appearance(measured):
        key = _key(phase, timings.kinds[phase], is_upkeep=phase in upkeep)
        numbers[key] = _typical(run, measured[phase].dropna())
    whole = _step_seconds(measured)
    steps_work = pd.DataFrame()
    if len(whole):
        work = whole - _upkeep_seconds(measured, upkeep, whole.index)
        numbers["step_time"] = _typical(run, work)
        rows = run.throughput.set_index("step").reindex(whole.index)
        share = whole / work
        for name in ("tokens_per_s", "tokens_per_s_per_device"):
            numbers[name] = _typical_rate(run, rows[name] * share, rows["spent"])
        if not _alternates(run):
            steps_work = pd.DataFrame({"step": work.index, "step_time": work, "tokens": rows["tokens"]})
    if STEP_SECONDS in run.metrics:
        clock = seconds_of(run.metrics[STEP_SECONDS]).reindex(steps[~warm]).dropna()
        if len(clock):
            numbers[LOG_CLOCK.key] = _typical(run, clock)
    formats = "+".join(dict.fromkeys(log.format.name for log in run.logs))
    return LaunchSource(source, formats, len(steps), int((~warm).sum())), numbers, steps_work


def _by_appearance(measured: pd.DataFrame) -> list[str]:
    """The phases that steps have, those of the first step first."""
    first = (measured.notna().to_numpy().argmax(axis=0)).tolist()
    names = [str(phase) for phase in measured.columns]
    ranks = {name: place for name, place in zip(names, first, strict=True) if measured[name].notna().any()}
    return sorted(ranks, key=ranks.__getitem__)


def _warmup(run: LoggedRun, timings: Timings, warmup_steps: int) -> NDArray[np.bool_]:
    """Which steps are warm-up: the first of the log and the first behind each restart, as `find_warmup` tells."""
    steps = timings.steps
    restarts = (restart.step for log in run.logs for restart in log.table.standing)
    begins = sorted({0, *(int(np.searchsorted(steps, step)) for step in restarts)})
    whole = _step_seconds(timings.seconds)
    work = whole - _upkeep_seconds(timings.seconds, _upkeep(run, timings), whole.index)
    seconds: Floats = np.asarray(work.reindex(steps), dtype=np.float64)
    warm = np.zeros(len(steps), np.bool_)
    for begin, end in pairwise([*begins, len(steps)]):
        segment = seconds[begin:end]
        is_even = not _alternates(run) and not np.isnan(segment).any()
        warm[begin : begin + (find_warmup(segment, warmup_steps) if is_even else warmup_steps)] = True
    return warm


def _step_seconds(seconds: pd.DataFrame) -> "pd.Series[float]":
    """The time of the steps that have one."""
    return seconds[STEP].dropna() if STEP in seconds else pd.Series(dtype=np.float64)


def _upkeep_seconds(seconds: pd.DataFrame, upkeep: frozenset[str], steps: pd.Index) -> "pd.Series[float]":
    """Seconds of validation and checkpoints inside each step."""
    spent: pd.Series[float] = seconds.loc[steps, sorted(upkeep)].sum(axis=1)
    return spent


def _upkeep(run: LoggedRun, timings: Timings) -> frozenset[str]:
    """Validation and checkpoints that the log's step time contains: no part of what a step costs."""
    movable = run.dialect.timing.movable
    return frozenset(phase for phase, kind in timings.kinds.items() if kind is Kind.PHASE and phase in movable)


def _key(phase: str, kind: Kind, *, is_upkeep: bool) -> str:
    if kind is Kind.STEP:
        return "step_time"
    if kind is Kind.UNATTRIBUTED:
        return UNATTRIBUTED
    return f"part/{phase}" if is_upkeep or kind in PARTS else f"phase/{phase}"


def _typical(run: LoggedRun, seconds: "pd.Series[float]") -> float:
    """The median; the mean where most rows are short, because one generation serves several."""
    return float(seconds.mean()) if _alternates(run) else middle(seconds)


def _typical_rate(run: LoggedRun, rates: "pd.Series[float]", spent: "pd.Series[float]") -> float:
    """The median; over the whole span where the log counts from the start of the run, which may be in few digits."""
    if not _alternates(run):
        return middle(rates)
    known = rates.notna()
    return float(np.average(rates[known], weights=spent[known])) if known.any() else float("nan")


def _alternates(run: LoggedRun) -> bool:
    """Whether one generation may serve several rows, so that rows are of two kinds."""
    return run.dialect.tokens is not None and run.dialect.tokens.count is Count.CUMULATIVE


def _joined_facts(launches: Sequence[Facts]) -> tuple[Facts, list[str]]:
    """What the launches of a side say, means of numbers; and in which texts they differ."""
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
