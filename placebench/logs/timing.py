"""What the timing metrics of a log mean: phases, their parts, and the time that no phase explains.

`timing_s/*` is not a list of numbers to add up. Some entries are parts of another one, some run beside
others, some lie outside the step or inside it depending on the version, and some are not seconds at all.
Every total and every share of the project is built on the kinds given here.
"""

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import combinations

import numpy as np
import pandas as pd

from placebench.errors import UsageError
from placebench.stepgraph import PHASE_ORDER

TIMING_PREFIXES = ("timing_s/", "timing/")
STEP = "step"
UNATTRIBUTED = "unattributed"

# verl: parts of `gen`, and the profiler's switches.
DETAILS = frozenset({"generate_sequences", "reshard", "start_profile", "stop_profile"})
# verl: runs beside the step by construction, whatever the sums say.
BESIDE = frozenset({"generate_async"})
# verl: inside the step in some versions and outside in others; the log itself shows which.
MOVABLE = ("testing", "save_checkpoint")
# Counts and ratios that stand under the timing prefix.
NOT_SECONDS = re.compile(r"(?:^|/)(?:num_preempted|prompt_length|response_length|topk_ratio)(?:/|$)")

# Three decimals are printed by old versions; timers start and stop a little apart.
ROUNDING_S = 0.0005
TIMER_SLACK = 0.01


class Kind(StrEnum):
    """What a timing is to its step."""

    STEP = "step"
    """The whole step."""
    PHASE = "phase"
    """One of the phases that run one after the other and fill the step together with `unattributed`."""
    OVERLAP = "overlap"
    """A phase that runs beside others: its seconds must not be added to theirs."""
    DETAIL = "detail"
    """A part of a phase, a statistic over samples or a profiler's switch: never added to anything."""
    OUTSIDE = "outside"
    """Outside the step's own time."""
    UNATTRIBUTED = "unattributed"
    """The step's time that no phase explains."""


def is_timing(metric: str) -> bool:
    """Whether a metric is a timing; the filter to read a log with when only timings are wanted."""
    return metric.startswith(TIMING_PREFIXES)


def timing_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Timings of a tidy log frame under phase names, each with what it is to the step.

    `timing/x` (verl before 0.2) and `timing_s/x` both become phase `x`; where a step has both, `timing_s/x` counts.
    `unattributed` is the log's own `timing_s/unattributed` if it has one, else step - sum of the serial
    phases; it is left out where the phases overlap or the log has no step time.

    Args:
        frame: columns launch, step, metric, value, as `read_logs` gives them.

    Returns:
        Columns launch (str), step (int), phase (str), seconds (float64) and kind (a `Kind` word), by launch in
        the order of the frame, step, and phase in `phase_order`.

    Raises:
        UsageError: the frame has no timings.
    """
    metric = frame["metric"].astype(str)
    wanted = metric.str.startswith(TIMING_PREFIXES) & ~metric.str.contains(NOT_SECONDS) & np.isfinite(frame["value"])
    timings = frame[wanted]
    if timings.empty:
        raise UsageError(f"no timing metrics (timing_s/… or timing/…): {_found(frame)}")
    current = timings["metric"].astype(str).str.startswith("timing_s/")
    tidy = pd.DataFrame(
        {
            "launch": timings["launch"].astype(str),
            "step": timings["step"],
            "phase": timings["metric"].astype(str).str.replace(r"^timing(?:_s)?/", "", regex=True),
            "seconds": timings["value"],
            "current": current,
        }
    )
    tidy = tidy.sort_values("current", kind="stable").drop_duplicates(["launch", "step", "phase"], keep="last")
    tidy = tidy.drop(columns="current")
    launches = [_classify(tidy[tidy["launch"] == launch]) for launch in tidy["launch"].sort_index().unique()]
    return pd.concat(launches, ignore_index=True)


def phase_order(phases: Iterable[str]) -> list[str]:
    """Phases in the order in which every table and figure shows them: the step graph's, others by name, the whole."""
    known = {phase: rank for rank, phase in enumerate(PHASE_ORDER)}
    last = {UNATTRIBUTED: len(known) + 1, STEP: len(known) + 2}
    return sorted(set(phases), key=lambda phase: (known.get(phase, last.get(phase, len(known))), phase))


def _found(frame: pd.DataFrame) -> str:
    names = sorted(frame["metric"].astype(str).unique())
    if not names:
        return "no metrics at all"
    steps = frame["step"].nunique()
    return f"found {steps} step{'s' * (steps != 1)} with {len(names)} other metrics, such as {names[0]}"


def _classify(launch: pd.DataFrame) -> pd.DataFrame:
    """Give the timings of one launch their kinds and add `unattributed`."""
    seconds = launch.pivot(index="step", columns="phase", values="seconds")
    kinds = {str(phase): _kind_by_name(str(phase)) for phase in seconds.columns}
    serial = [phase for phase, kind in kinds.items() if kind is Kind.PHASE]
    if STEP in seconds:
        outside = _outside_step(seconds, serial)
        kinds |= dict.fromkeys(outside, Kind.OUTSIDE)
        serial = [phase for phase in serial if phase not in outside]
        rest = seconds[STEP] - seconds[serial].sum(axis=1)
        explained = rest - seconds[UNATTRIBUTED] if UNATTRIBUTED in seconds else rest
        slack = TIMER_SLACK * seconds[STEP] + ROUNDING_S * (len(serial) + 1)
        if bool((explained < -slack).any()):
            kinds |= dict.fromkeys(serial, Kind.OVERLAP)
        elif UNATTRIBUTED not in seconds:
            seconds[UNATTRIBUTED] = rest.clip(lower=0)
            kinds[UNATTRIBUTED] = Kind.UNATTRIBUTED
    order = phase_order(kinds)
    tidy = seconds[order].melt(ignore_index=False, var_name="phase", value_name="seconds").reset_index()
    tidy = tidy.dropna(subset="seconds").sort_values("step", kind="stable")
    tidy.insert(0, "launch", launch["launch"].iloc[0])
    tidy["kind"] = tidy["phase"].map({phase: kind.value for phase, kind in kinds.items()})
    return tidy[["launch", "step", "phase", "seconds", "kind"]]


def _kind_by_name(phase: str) -> Kind:
    if phase == STEP:
        return Kind.STEP
    if phase == UNATTRIBUTED:
        return Kind.UNATTRIBUTED
    if phase in BESIDE:
        return Kind.OVERLAP
    # A name with a slash tells about something else: agent_loop/slowest/…, generation_timing/max, rollouter/….
    if phase in DETAILS or "/" in phase:
        return Kind.DETAIL
    return Kind.PHASE


def _outside_step(seconds: pd.DataFrame, serial: Sequence[str]) -> frozenset[str]:
    """Which movable phases lie outside the step's own time, by what the log itself shows.

    On the steps that have such a phase, the rest step - sum(other phases) grows by the phase's time where the
    step contains it, and stays as on all other steps where it does not.
    """
    movable = [phase for phase in MOVABLE if phase in serial]
    has_any = seconds[movable].notna().any(axis=1) & seconds[STEP].notna()
    if not has_any.any():
        return frozenset(movable)
    rest = seconds[STEP] - seconds[[phase for phase in serial if phase not in movable]].sum(axis=1)
    usual = rest[~has_any].median()
    extra = rest[has_any] - (0.0 if np.isnan(usual) else usual)

    def mismatch(inside: tuple[str, ...]) -> float:
        return float((extra - seconds.loc[has_any, list(inside)].sum(axis=1)).abs().median())

    choices: list[tuple[str, ...]] = [
        inside for size in range(len(movable) + 1) for inside in combinations(movable, size)
    ]
    best = min(choices, key=mismatch)
    return frozenset(movable).difference(best)
