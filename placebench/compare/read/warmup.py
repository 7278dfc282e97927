"""The warm-up of a launch: where its first, slower steps end.

Compilation, caches and allocators make the first steps of a launch slower, for as long as they do: the configured
number of steps is always left out, and as many more as a changepoint shows. A cut behind step c splits the rest of the
launch into a head and a tail whose means of log seconds differ by δ; the cut that explains most is the one with the
largest c·(n − c)/n·δ² (least squares). It counts when that exceeds `THRESHOLD` times the long-run variance of the tail,
σ²·(1 + φ)/(1 − φ) with φ the lag-1 autocorrelation, for autocorrelated steps wander without a change. The search goes
on behind each cut that counts, for a warm-up may fade in several steps. Never is more than half of a launch left out.
"""

import numpy as np
import pandas as pd

from placebench.compare.statistics.estimates import Floats

# Below this many steps a tail says too little about its own noise.
FEWEST_STEPS = 6
# By chance, a launch of 6 to 50 steps without a change has such a cut in 2 % of cases when its steps are independent,
# in 4 % at a lag-1 autocorrelation of 0.6 and in 8 % at 0.9.
THRESHOLD = 16.0
# A head less slower than this is left in: it does not move the numbers.
LEAST_SLOWER = 0.01
MOST_AUTOCORRELATION = 0.9


def find_warmup(seconds: Floats, least: int) -> int:
    """How many first steps of a launch are its warm-up.

    Args:
        seconds: of every step, in order, shape (steps,).
        least: that are warm-up in any case.
    """
    if (seconds <= 0).any():
        return least
    logs, found = np.log(seconds), least
    most = max(least, len(logs) // 2)
    while len(logs) - found >= FEWEST_STEPS and (cut := _cut(logs[found:], most - found)):
        found += cut
    return found


def _cut(logs: Floats, most: int) -> int:
    """Length of the head that is slower than what follows, at most `most`; 0 where there is none."""
    if most < 1:
        return 0
    count, cuts = len(logs), np.arange(1, most + 1)
    sums = logs.cumsum()
    slower = sums[cuts - 1] / cuts - (sums[-1] - sums[cuts - 1]) / (count - cuts)
    cuts = cuts[: 1 + np.flatnonzero(slower > LEAST_SLOWER).max(initial=-1)]
    if not len(cuts):
        return 0
    slower = slower[: len(cuts)]
    # One slow step among many is an outlier and makes no head: a head's median must be slower too.
    is_head = (slower > LEAST_SLOWER) & (
        medians_of_heads(logs[: len(cuts)]) - medians_of_tails(logs, len(cuts)) > slower / 2
    )
    explained = cuts * (count - cuts) / count * slower**2 * is_head
    best = int(explained.argmax())
    return int(cuts[best]) if explained[best] > THRESHOLD * _long_run_variance(logs[cuts[best] :]) else 0


def medians_of_heads(values: Floats) -> Floats:
    """The median of the first value, of the first two, and so on to that of all."""
    return pd.Series(values).expanding().median().to_numpy()


def medians_of_tails(values: Floats, most: int) -> Floats:
    """The medians of all but the first value, of all but the first two, and so on to all but the first `most`."""
    rest, added = np.sort(values[most:]), values[1:most][::-1]
    # A value added moves the median by one place at most, so the ends of the rest, alike on both sides, do not count.
    ends = max(len(rest) - len(added) - 1, 0) // 2
    core = rest[ends : len(rest) - ends]
    return medians_of_heads(np.concatenate([core, added]))[len(core) - 1 :][::-1]


def _long_run_variance(logs: Floats) -> float:
    """Variance of autocorrelated values that counts for their mean: n times the variance of the mean of n."""
    apart = logs - logs.mean()
    squares = float(apart @ apart)
    if squares == 0 or len(logs) < 2:
        return 0.0
    lag1 = min(max(float(apart[1:] @ apart[:-1]) / squares, 0.0), MOST_AUTOCORRELATION)
    return squares / (len(logs) - 1) * (1 + lag1) / (1 - lag1)
