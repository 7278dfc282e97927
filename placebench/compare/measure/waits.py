"""What each device waited for inside its phases, from the one traced step of a placement.

A rank that is early waits inside the collective for the others, and the one that is last waits least. So of the time c
that a phase has collectives alone on a device, the least of all ranks is what collectives take, and what a device has
more is its waiting for slower ranks. (Where ranks are last in turn each of them waits: then it is more than this.) n is
the time with nothing on the device, which waits for the host, k that with kernels that compute or copies, and l the
phase's length there, c + n + k; all are of the traced step. Tracing holds up the host and leaves kernels as they are.
So where a phase was longer when it was traced, measured steps have its k and of its waiting the rest; else they have
their share of each:

    busy(p)        (step − idle) · time of p / time of all phases, on the device
    w(p)           busy(p) / l(p), or where that is below 1, max(0, busy(p) − k(p)) / (c(p) + n(p))
    slower ranks   Σ w(p) · (c(p) − min over r of c(p))
    collectives    Σ w(p) · min over r of c(p)
    host           Σ w(p) · n(p)
    not traced     Σ busy(p), of the phases that the trace lacks

Ranks are the devices of a pool; in `gen`, those that share an engine where several do. What a device waits for outside
its phases: see `steps`.
"""

from collections.abc import Mapping, Sequence

import pandas as pd

from placebench.compare.measure.attribution import IDLE
from placebench.compare.metrics import STEP_TIME
from placebench.compare.read.run import KERNEL_TIMES, Launch
from placebench.spec.bound import RunPlacement
from placebench.spec.phases import GEN, STEP


def first_trace(launches: Sequence[Launch]) -> pd.DataFrame:
    """What was traced in the first of a placement's launches that has a trace, columns as in `Launch.kernels`."""
    frames = [launch.kernels for launch in launches]
    return next((frame for frame in frames if len(frame)), pd.DataFrame(columns=["phase", "device", *KERNEL_TIMES]))


def traced_waits(
    kernels: pd.DataFrame,
    attributed: pd.DataFrame,
    numbers: Mapping[str, float],
    placement: RunPlacement,
    shared_by: int,
) -> dict[str, float]:
    """Seconds a step that each traced device waited inside its phases, in a launch whether it was traced or not.

    Args:
        kernels: of the traced step, columns as in `Launch.kernels`.
        attributed: the time of each phase on each device, columns as of `attribution.attribute`.
        numbers: of the launch; used are `step_time` and `idle/<device>`.
        placement: its placement.
        shared_by: devices that share one engine.

    Returns:
        `wait_slower_ranks_inside/<device>`, `wait_collectives/<device>`, `wait_host/<device>` and
        `not_traced/<device>`; nothing of a device that was not traced, CPU devices among them.
    """
    if kernels.empty or STEP_TIME.key not in numbers:
        return {}
    summed = kernels[kernels["span_s"] > 0].groupby(["phase", "device"])[list(KERNEL_TIMES)].sum()
    traced = {key: dict(zip(KERNEL_TIMES, map(float, row), strict=True)) for key, *row in summed.itertuples()}
    phases = attributed[~attributed["phase"].isin((IDLE, STEP)) & (attributed["span_s"] > 0)]
    waits: dict[str, float] = {}
    for device, spans in phases.groupby("device")[["phase", "span_s"]]:
        device = str(device)
        if not any((phase, device) in traced for phase in spans["phase"]):
            continue
        slower = collectives = host = rest = 0.0
        busy = numbers[STEP_TIME.key] - numbers[f"idle/{device}"]
        for phase, seconds in zip(spans["phase"], busy * spans["span_s"] / spans["span_s"].sum(), strict=True):
            if (phase, device) not in traced:
                rest += seconds
                continue
            own = traced[phase, device]
            ranks = [(phase, rank) for rank in _ranks(phase, device, placement, shared_by)]
            least = min(traced[rank]["collective_s"] for rank in ranks if rank in traced)
            of_traced = waited(seconds, own)
            slower += of_traced * (own["collective_s"] - least)
            collectives += of_traced * least
            host += of_traced * own["no_kernel_s"]
        waits |= {
            f"wait_slower_ranks_inside/{device}": slower,
            f"wait_collectives/{device}": collectives,
            f"wait_host/{device}": host,
            f"not_traced/{device}": rest,
        }
    return waits


def waited(seconds: float, traced: Mapping[str, float]) -> float:
    """What is to be multiplied with the waiting of a traced phase for that of a measured one: w in the module's words.

    Args:
        seconds: of the measured phase.
        traced: what the traced one's time went into, as of `Launch.kernels`; its `span_s` is above 0.
    """
    if seconds >= traced["span_s"]:
        return seconds / traced["span_s"]
    waits = traced["collective_s"] + traced["no_kernel_s"]
    return max(0.0, seconds - traced["kernel_s"] - traced["copy_s"]) / waits if waits else 0.0


def _ranks(phase: str, device: str, placement: RunPlacement, shared_by: int) -> tuple[str, ...]:
    """The devices that share collectives with a device in a phase, itself among them."""
    pool = placement.pools[str(placement.pool_of(device))]
    if phase != GEN or shared_by == 1:
        return pool
    first = pool.index(device) // shared_by * shared_by
    return pool[first : first + shared_by]
