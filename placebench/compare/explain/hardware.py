"""States of devices and host that can decide a comparison in place of the placements: clocks, limits, others."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from placebench.compare.comparison import Comparison
from placebench.compare.explain.foreign import other_processes
from placebench.compare.explain.peers import slow_clocks, slow_devices
from placebench.compare.measure.attribution import IDLE
from placebench.compare.measure.cores import core_loops
from placebench.compare.measure.placements import RunSide
from placebench.spec.phases import STEP
from placebench.spec.text import number, quantity
from placebench.telemetry.samples import CLOCK_LIMITS

# Share of samples from which a limit is worth a word.
LIMITED_SHARE = 0.05
# Relative differences of SM clocks from which they are worth a word: between placements they bias the verdict directly.
CLOCK_DIFFERENCE = 0.02
# Share of the CPU time wanted from which it is worth a word that others got it.
STOLEN_SHARE = 0.02
# How much slower than at their best cores are on average, and in a tenth of the samples, from which it is worth a word.
# What counts as their best is the sample of this rank, for one alone may be off; fewer samples tell nothing.
SLOWER_CORES, SLOWEST_CORES = 1.15, 1.3
BEST_CORES = 0.05
LEAST_LOOPS = 20


def hardware_warnings(comparison: Comparison) -> Iterator[str]:
    """What the files show of limits, unequal clocks, slow devices, other guests and processes, one line each."""
    for side in comparison.placements:
        samples = [launch.measured_samples for launch in side.launches]
        joined = pd.concat(samples) if samples else pd.DataFrame()
        yield from _limits(side, joined)
        yield from _stolen(side, joined)
        yield from _slow_cores(side)
        yield from slow_clocks(side, joined)
        yield from slow_devices(side)
        for launch, measured in zip(side.launches, samples, strict=True):
            yield from other_processes(side, launch, measured)
    first, *others = comparison.placements
    for other in others:
        yield from _unequal_clocks(first, other)


def _limits(side: RunSide, samples: pd.DataFrame) -> Iterator[str]:
    if "event_reasons" not in samples:
        return
    reasons = samples["event_reasons"].dropna().astype(np.int64)
    for bit, words in CLOCK_LIMITS.items():
        share = float(((reasons & bit) != 0).mean()) if len(reasons) else 0.0
        if share >= LIMITED_SHARE:
            yield f"{side.name}: {words} lowered the clocks in {quantity(share, '1')} of the samples"


def _stolen(side: RunSide, samples: pd.DataFrame) -> Iterator[str]:
    share = float(samples["stolen"].mean()) if "stolen" in samples else np.nan
    if share >= STOLEN_SHARE:
        yield (
            f"{side.name}: the hypervisor gave other guests {quantity(share, '1')} of the CPU time that this host"
            " wanted, so the time that devices wait for the host varies"
        )


def _slow_cores(side: RunSide) -> Iterator[str]:
    """Cores that were slower than at their best."""
    loops = core_loops(side.run, side.launches)
    joined = pd.concat(loops) if loops else pd.Series(dtype=float)
    if len(joined) < LEAST_LOOPS:
        return
    best = float(joined.quantile(BEST_CORES))
    mean, worst = float(joined.mean()) / best, float(joined.quantile(0.9)) / best
    if mean >= SLOWER_CORES and worst >= SLOWEST_CORES:
        means = sorted(float(launch.mean()) / best for launch in loops)
        least, most = number(means[0], 2), number(means[-1], 2)
        by_launch = f" ({least} to {most} by launch)" if least != most else ""
        yield (
            f"{side.name}: the job's cores were {number(mean, 2)} times as slow as at their best{by_launch}, and at"
            f" least {number(worst, 2)} times in a tenth of the samples; others share them or their clocks change, so"
            " the time that devices wait for the host varies"
        )


def _unequal_clocks(first: RunSide, other: RunSide) -> Iterator[str]:
    """SM clocks that differ in the same phases; phases weigh by their time in the first placement.

    Phase by phase, because a device that waits has another clock, and placements differ in how much they wait.
    """
    if not first.launches or not other.launches:
        return
    before, now = (_phases_of_one_pool(side) for side in (first, other))
    working = before.index.intersection(now.index).difference([IDLE, STEP])
    before, now = before.loc[working], now.loc[working]
    before = before[before["clock_sm_mhz"].notna() & (before["seconds"] > 0)]
    now = now.reindex(before.index).dropna(subset="clock_sm_mhz")
    before = before.loc[now.index]
    if before.empty:
        return
    means = [float(np.average(side["clock_sm_mhz"], weights=before["seconds"])) for side in (before, now)]
    more = means[1] / means[0] - 1
    if abs(more) > CLOCK_DIFFERENCE:
        yield (
            f"GPUs ran at {number(means[1], 4)} MHz under {other.name} and at {number(means[0], 4)} MHz under"
            f" {first.name} in the same phases ({100 * more:+.1f} %): some of the difference may be the clocks'."
        )


def _phases_of_one_pool(side: RunSide) -> pd.DataFrame:
    """Samples by phase. Pools that take part in one phase, such as those that send and take weights, do other work."""
    table = side.phase_pools
    return table[~table["phase"].duplicated(keep=False)].set_index("phase")
