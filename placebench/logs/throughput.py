"""Throughput as placebench counts it: real tokens / wall time of the step / all devices, and whether a log agrees.

Frameworks divide by other times, other devices, or count padding; their own figures are not comparable. Where a log
reports tokens/s by the same definition, reported x seconds x devices = tokens must hold on every row.
"""

from typing import TypeAlias

import numpy as np
import pandas as pd

from placebench.logs.formats import Count, Tokens
from placebench.logs.timing import Timings
from placebench.spec.phases import STEP

Series: TypeAlias = "pd.Series[float]"

# Old logs print three decimals.
IDENTITY_SLACK = 0.01
# A larger count is none.
MOST_TOKENS = 2.0**63


def throughput_frame(
    metrics: pd.DataFrame,
    timings: Timings | None,
    tokens: Tokens | None,
    *,
    devices: int | None = None,
    learner_ranks: int | None = None,
    rollout_apart: bool = False,
    steps_per_number: int | None = 1,
) -> pd.DataFrame:
    """Tokens and throughput of each step.

    Args:
        metrics: a row a step and a column a metric, of one launch.
        timings: its timings; the phase `step` is the wall time.
        tokens: where the log counts tokens; None where it does not.
        devices: all devices allocated to the run; inferred from the log's own throughput where not given.
        learner_ranks: number of learner ranks, by which a count that is multiplied by it is divided.
        rollout_apart: the rollout has devices of its own, which the log's own throughput may leave out: no number of
            devices follows from it, and it contradicts nothing.
        steps_per_number: training steps between two consecutive numbers of steps; None where that is not known.

    Returns:
        A row a step that has a time: columns step (int64), seconds, tokens, steps (of which they are the tokens, 1
        unless the log counts from the start of the run) and spent (the time of these steps, s), tokens_per_s,
        tokens_per_s_per_device, reported (tokens/s/device, the log's own) and contradicts (bool: the row's own figures
        do not fit together). What is not known is NaN.
    """
    seconds = (
        timings.seconds[STEP].dropna()
        if timings is not None and STEP in timings.seconds
        else pd.Series(dtype=np.float64, index=pd.Index([], dtype=np.int64))
    )
    rows = pd.DataFrame({"seconds": seconds})
    counted = _counted(metrics, tokens, learner_ranks)
    if tokens is not None and tokens.count is Count.CUMULATIVE:
        rows = rows.join(_differences(rows["seconds"], counted, steps_per_number))
    else:
        rows = rows.assign(tokens=counted.reindex(rows.index), steps=1.0, spent=rows["seconds"])
    rows["reported"] = np.nan
    if tokens is not None and tokens.reported in metrics:
        reported = metrics[tokens.reported].reindex(rows.index)
        rows["reported"] = reported.where(np.isfinite(reported))
    per_second = rows["tokens"] / rows["spent"].where(rows["spent"] > 0)
    rows["tokens_per_s"] = per_second
    inferred = reported_devices(rows)
    count = devices if devices is not None or rollout_apart else inferred
    rows["tokens_per_s_per_device"] = per_second / count if count else np.nan
    checked = per_second / (inferred or np.nan) if rollout_apart else rows["tokens_per_s_per_device"]
    error = (checked / rows["reported"].where(rows["reported"] > 0) - 1).abs()
    rows["contradicts"] = (error > IDENTITY_SLACK).to_numpy()
    return rows.rename_axis("step").reset_index()


def _counted(wide: pd.DataFrame, tokens: Tokens | None, learner_ranks: int | None) -> Series:
    """The count of tokens as the log has it, a value a step."""
    name = next((name for name in tokens.metrics if name in wide), None) if tokens else None
    if tokens is None or name is None:
        return pd.Series(np.nan, index=wide.index)
    counted = wide[name].where((wide[name] >= 0) & (wide[name] < MOST_TOKENS))
    if tokens.count_in(wide.columns) is Count.TIMES_RANKS:
        return counted / (np.nan if learner_ranks is None else learner_ranks)
    return counted


def _differences(seconds: Series, counted: Series, steps_per_number: int | None) -> pd.DataFrame:
    """Tokens, steps and time since the row before that has a count; a generation may serve several rows.

    A row's time is that of one step, the mean of those that the row stands for.
    """
    numbers = seconds.index.to_series().diff().fillna(0)
    steps = numbers * (np.nan if steps_per_number is None else steps_per_number)
    known = counted.reindex(seconds.index).dropna()
    whole = pd.DataFrame({"steps": steps.cumsum(), "spent": (steps * seconds).cumsum()}).reindex(known.index)
    found = whole.assign(tokens=known).diff()
    # Printed with few digits, a count may stand still for a while, but does not go back.
    sound = (found["tokens"] >= 0) & (found["spent"] > 0) & (known > 0)
    return found.where(sound).reindex(seconds.index)


def reported_devices(rows: pd.DataFrame) -> int | None:
    """The number of devices that the log's own throughput was divided by; None where no whole number fits."""
    ratio = (rows["tokens_per_s"] / rows["reported"]).replace([np.inf, -np.inf], np.nan).median()
    if np.isnan(ratio) or round(ratio) < 1 or abs(ratio / round(ratio) - 1) > IDENTITY_SLACK:
        return None
    return round(ratio)
