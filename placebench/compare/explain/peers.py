"""Devices that are below the others of their pool, which do the same work: by clock, by time, by what they compute."""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from placebench.compare.measure.attribution import IDLE
from placebench.compare.measure.placements import RunSide
from placebench.compare.measure.waits import first_trace
from placebench.compare.read.run import APART
from placebench.compare.statistics.estimates import quantile
from placebench.spec.bound import RunPlacement
from placebench.spec.phases import STEP
from placebench.spec.placement import Role
from placebench.spec.text import number, quantity

BELOW_PEERS = 0.05
# A phase shorter than this share of the step does not tell a slow device.
NOTABLE_PHASE = 0.05
# What the steps of one launch must show: how many there are, the share of them in which the device is slower, and the
# chance, were they independent and normal, to find it slower where it is not.
LEAST_STEPS = 3
SLOWER_SHARE = 0.9
CHANCE = 0.01


def slow_clocks(side: RunSide, samples: pd.DataFrame) -> Iterator[str]:
    """Devices whose SM clock is below that of the other devices of their pool, which do the same work."""
    if "clock_sm_mhz" not in samples:
        return
    clocks = samples.groupby("device")["clock_sm_mhz"].mean()
    for devices in side.placement.pools.values():
        known = clocks.reindex(list(devices)).dropna()
        for device, clock in known.items():
            peers = known.drop(device)
            if len(peers) and clock < (1 - BELOW_PEERS) * peers.median():
                label = side.run.labels[str(device)]
                yield (
                    f"{side.name}: {label} ran at {number(float(clock), 4)} MHz, the other devices of its pool at"
                    f" {number(float(peers.median()), 4)}"
                )


def slow_devices(side: RunSide) -> Iterator[str]:
    """Devices that are slower for the same work than the others of their pool, of which the median counts.

    - By the time of a phase that is at least `NOTABLE_PHASE` of the step, over `BELOW_PEERS` longer. With several
      launches: in every one. With one launch: on the geometric mean of at least `LEAST_STEPS` measured steps, in
      `SLOWER_SHARE` of which it is slower at all, with the lower end of the mean's one-sided t interval (`CHANCE`)
      above 0; and only where the device itself is as much longer at work, if that is known (`_work`): steps of a launch
      are not independent, and a slow core of the host holds up one device of a healthy pool in all of them.
    - By the traced step. Where ranks wait for each other in collectives they all end together, and a slow one shows in
      what it does before: kernels that compute take over `BELOW_PEERS` longer, and so does all of the phase without
      the time in collectives alone. Both, for a trace may lose kernels of a device, whose peers then seem slow.

    Responses must be equally long. Where they are not, ranks have equal tokens at best, and with other lengths other
    attention and other micro-batches; by how much devices differ for that is not known.
    """
    if not _equal_work(side.run.record.workload):
        return
    one = len(side.launches) == 1
    labels = {device: side.run.labels[device] for device in side.placement.devices}
    found = set()
    for device, phase, more, where in _in_every_step(side) if one else _in_every_launch(side):
        found.add((device, phase))
        yield (
            f"{side.name}: {labels[device]} takes {quantity(more, '1')} longer for {phase} than the other devices of"
            f" its pool, in {where}"
        )
    traced: dict[str, list[str]] = {}
    for device, phase, more in _in_traced_step(side):
        if (device, phase) not in found:
            traced.setdefault(device, []).append(f"{quantity(more, '1')} longer for {phase}")
    for device, phases in traced.items():
        yield (
            f"{side.name}: {labels[device]} computes {', '.join(phases)} than the other devices of its pool"
            " (traced step)"
        )


def _equal_work(workload: Mapping[str, object]) -> bool:
    """Whether responses are equally long, so that devices of a pool have the same work in every phase."""
    rollout = workload.get("rollout")
    if not isinstance(rollout, Mapping):
        return False
    return bool(rollout.get("ignore_eos")) and rollout.get("response_lengths", "longest") == "longest"


def _in_every_launch(side: RunSide) -> Iterator[tuple[str, str, float, str]]:
    if not side.launches:
        return
    seconds = side.samples.pivot(index=["phase", "round"], columns="device", values="span_s")
    whole = float(seconds.loc[STEP].to_numpy(dtype=np.float64).mean())
    for device, peers in _with_peers(side.placement):
        for phase in dict.fromkeys(seconds.index.get_level_values("phase")):
            mine = seconds.loc[phase]
            if phase in (IDLE, STEP) or not mine[device].mean() > NOTABLE_PHASE * whole:
                continue
            slower = mine[device] / mine[peers].median(axis=1) - 1
            if (slower > BELOW_PEERS).all():
                yield device, phase, float(slower.mean()), "every launch"


def _in_every_step(side: RunSide) -> Iterator[tuple[str, str, float, str]]:
    (launch,) = side.launches
    steps = launch.step_seconds[launch.step_seconds.index > launch.last_warmup_step]
    spans = launch.spans[launch.spans["step"].isin(steps.index) & ~launch.spans["phase"].isin(APART)]
    lengths = spans["end"] - spans["start"]
    seconds = lengths.groupby([spans["phase"], spans["step"], spans["device"]]).sum().unstack("device")
    seconds = seconds.reindex(columns=list(side.placement.devices))
    for device, peers in _with_peers(side.placement):
        for phase in dict.fromkeys(spans.loc[spans["device"] == device, "phase"]):
            mine = seconds.loc[phase].dropna(subset=[device, *peers], how="any")
            if not mine[device].mean() > NOTABLE_PHASE * steps.mean():
                continue
            found = slower_in_steps(mine[device].to_numpy(np.float64), mine[peers].to_numpy(np.float64))
            if found and not _is_of_the_host(side, phase, device, peers):
                more, slower = found
                yield device, phase, more, f"{slower} of {len(mine)} measured steps"


def slower_in_steps(seconds: NDArray[np.float64], peers: NDArray[np.float64]) -> tuple[float, int] | None:
    """By how much a device is slower than its peers in the steps of one launch, if it is by `slow_devices`' criterion.

    Args:
        seconds: of the device, shape (steps,).
        peers: of the others of its pool, shape (steps, peers).

    Returns:
        How much longer it takes, as a fraction, and the number of steps in which it is slower at all; None if the
        steps do not show it.
    """
    logs = np.log(seconds / np.median(peers, axis=1))
    slower = int((logs > 0).sum())
    freedom = len(logs) - 1
    if freedom < LEAST_STEPS - 1 or slower < SLOWER_SHARE * len(logs) or np.expm1(logs.mean()) <= BELOW_PEERS:
        return None
    low = logs.mean() - quantile(freedom, 1 - CHANCE) * logs.std(ddof=1) / np.sqrt(len(logs))
    return (float(np.expm1(logs.mean())), slower) if low > 0 else None


def _is_of_the_host(side: RunSide, phase: str, device: str, peers: list[str]) -> bool:
    """Whether it is known that a device itself does not work longer on a phase than its peers."""
    work = _work(side, phase)
    return bool(work.get(device, np.nan) <= (1 + BELOW_PEERS) * work.reindex(peers).median())


def _work(side: RunSide, phase: str) -> "pd.Series[float]":
    """How long each device itself worked on a phase, without what the host took; only devices of one pool compare.

    Seconds of kernels that compute, where the phase was traced. Else GPM's activity times the seconds of the phase: on
    H200s that agreed within 5 % between devices whose times for `gen` differed by 20 %. Empty where neither is known.
    """
    kernels = first_trace(side.launches)
    if (kernels["phase"] == phase).any():
        traced: pd.Series[float] = kernels[kernels["phase"] == phase].groupby("device")["kernel_s"].sum()
        return traced
    samples = side.samples[side.samples["phase"] == phase]
    return (samples["sm_activity"] * samples["span_s"]).groupby(samples["device"]).sum(min_count=1).dropna()


def _in_traced_step(side: RunSide) -> Iterator[tuple[str, str, float]]:
    kernels = first_trace(side.launches)
    if kernels.empty:
        return
    kernels = kernels.assign(own_s=kernels["span_s"] - kernels["collective_s"])
    sums = kernels.groupby(["phase", "device"], sort=False)[["span_s", "kernel_s", "own_s"]].sum()
    whole = float(sums["span_s"].groupby("device").sum().mean())
    for device, peers in _with_peers(side.placement):
        for phase in dict.fromkeys(kernels["phase"]):
            found = sums.loc[phase].reindex([device, *peers])
            if found.isna().any(axis=None) or not found.at[device, "span_s"] > NOTABLE_PHASE * whole:
                continue
            if not found["kernel_s"].min() > NOTABLE_PHASE * found.at[device, "span_s"]:
                continue  # as good as nothing to compute, as in `sleep`
            more = found.loc[device] / found.loc[peers].median() - 1
            if more["kernel_s"] > BELOW_PEERS and more["own_s"] > BELOW_PEERS:
                yield device, phase, float(more["kernel_s"])


def _with_peers(placement: RunPlacement) -> Iterator[tuple[str, list[str]]]:
    """Every device that has others in its pool with the same work.

    Engines that generate ahead have not: each takes the next part as it is free, so that a slow one does less.
    """
    for pool, devices in placement.pools.items():
        if len(devices) > 1 and not (
            placement.has_engines and placement.staleness and pool == placement.roles[Role.ROLLOUT]
        ):
            for device in devices:
                yield device, [peer for peer in devices if peer != device]
