"""Processes of others on the job's GPUs: by NVML's process ids, by memory, and by load while the job has no work there.

In a container NVML may show no process ids. Memory and load are of the whole device all the same. CPU devices are left
out: only the job's own processes are sampled there, and the controller and Ray may use their cores.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from placebench.compare.measure.placements import RunSide
from placebench.compare.read.run import APART, Launch
from placebench.spec.bound import RunPlacement
from placebench.spec.intervals import contains, subtract, union
from placebench.spec.phases import HAND_OVER
from placebench.spec.placement import Role
from placebench.spec.text import plural, quantity

# Memory in use before the job has started anything, for the driver itself keeps less; and memory in use that the job's
# own processes cannot explain: between healthy devices and steps that differed by up to 0.5 GiB on H200s.
FOREIGN_BYTES = 1 << 30
# Readings in a phase of a step, from which the highest of them is taken for the phase's.
LEAST_READINGS = 5
# NVML's load covers up to a second (nvml.h, nvmlUtilization_t): what it says later than that after the job's last work
# is of idle time alone.
SETTLED_S = 1.0
FOREIGN_LOAD = 0.2

OTHER = "another process"


def other_processes(side: RunSide, launch: Launch, measured: pd.DataFrame) -> Iterator[str]:
    """Devices that the job did not have for itself, one line each and kind of evidence.

    The sampler starts before the job, so what uses a device at its first reading is another process. Process ids are
    compared with NVML's own alone, for they may be those of another namespace: one that was there before and still
    is, or others, for placebench's own job has one process on a device. What neither shows, memory that the job did
    not take does (`_unexplained`). In any case load is named: over `FOREIGN_LOAD` on the mean of at least
    `LEAST_READINGS` readings while no phase of the job was on the device.

    Args:
        side: the launch's placement.
        launch: a finished launch.
        measured: its samples during the measured steps.
    """
    if launch.sampling.source != "nvml":
        return
    first = launch.samples.drop_duplicates("device").set_index("device")["memory_bytes"]
    unexplained = _unexplained(launch, side.placement)
    for device in side.placement.devices:
        where = f"{launch.label}: {side.run.labels[device]}"
        mine = measured[measured["device"] == device]
        shown = list(_present(mine, first.get(device, np.nan), has_one=side.run.record.job is None))
        yield from (f"{where} {what}" for what in shown)
        if not shown and device in unexplained:
            yield f"{where} {unexplained[device]}"
        if (load := _idle_load(launch, device)) > FOREIGN_LOAD:
            # A framework also works between what it times, as verl does when it hands a batch out.
            what = OTHER if side.run.record.job is None else f"work between its phases, or {OTHER}"
            yield f"{where} was {quantity(load, '1')} busy while no phase of the job ran on it: {what}"


def _present(measured: pd.DataFrame, first_bytes: float, *, has_one: bool) -> Iterator[str]:
    """What the first reading of memory, and process ids in the measured steps say of a device.

    Args:
        measured: its samples in the measured steps.
        first_bytes: memory in use at its first sample.
        has_one: whether the job has one process on a device; of a job of the user's that is not known.
    """
    if first_bytes > FOREIGN_BYTES:
        yield f"had {quantity(float(first_bytes), 'B')} in use before the launch: {OTHER}"
    if "compute_processes" not in measured:
        return
    if (earlier := measured["earlier_processes"].max()) > 0:
        yield f"was shared with {plural(int(earlier), 'process', 'processes')} from before the launch"
    if has_one and (more := (measured["compute_processes"] - measured["earlier_processes"]).max() - 1) > 0:
        others = plural(int(more), "process", "processes")
        yield f"had {others} beside the job's own in the measured steps: another job"


def _idle_load(launch: Launch, device: str) -> float:
    """NVML's load while the device has no work of the job, in the measured steps; NaN with too few readings.

    Before the device's first span and after its last one nothing counts: a span that had not ended with the job is not
    on record.
    """
    spans = launch.spans
    mine = spans.loc[spans["device"] == device, ["start", "end"]].to_numpy(dtype=np.float64)
    if not len(mine) or "util" not in launch.samples:
        return np.nan
    steps = launch.measured_steps[["start", "end"]]
    apart = spans.loc[spans["phase"].isin(APART), ["start", "end"]].to_numpy(dtype=np.float64)
    idle = subtract(union(steps.to_numpy(dtype=np.float64)), union(np.concatenate([mine, apart])))
    settled = idle[(idle[:, 0] >= mine[:, 0].min()) & (idle[:, 1] <= mine[:, 1].max())] + [SETTLED_S, 0.0]
    samples = launch.samples[launch.samples["device"] == device]
    loads = samples.loc[contains(union(settled), samples["mono"].to_numpy()), "util"].dropna()
    return float(loads.mean()) if len(loads) >= LEAST_READINGS else np.nan


def _unexplained(launch: Launch, placement: RunPlacement) -> dict[str, str]:
    """Devices with memory in use that the job did not take.

    What a device has in use beyond what the job's allocator had reserved (the CUDA context, NCCL, an engine) is the
    same in a phase at every step, and on every device of the pool: within 0.01 GiB on H200s. So another process took
    memory where it is over `FOREIGN_BYTES` more: in steps, than in the one with least, in two phases or steps at least;
    or in all steps, in every phase that lasts, than on any other device of the pool. The first device of learners whose
    engines are apart has connections to all engines, and is not compared with the others.
    """
    tables = {device: _beyond_reserved(launch, device) for device in placement.devices}
    found: dict[str, str] = {}
    for pool, devices in placement.pools.items():
        sender = devices[0] if placement.has_engines and pool == placement.roles[Role.ACTOR] else None
        for device in devices:
            more, steps = _rise(tables[device])
            when = f"in {steps} of {plural(len(tables[device]), 'measured step')} than in others"
            if not more > FOREIGN_BYTES and device != sender:
                more = _above(tables[device], [tables[peer] for peer in devices if peer != device])
                when = "than the other devices of its pool"
            if more > FOREIGN_BYTES:
                found[device] = f"had {quantity(more, 'B')} more in use {when}, which the job did not take: {OTHER}"
    return found


def _beyond_reserved(launch: Launch, device: str) -> pd.DataFrame:
    """Bytes in use beyond those reserved at most: a row a measured step, a column a phase.

    The phases with `LEAST_READINGS` in every step, but not those in which an engine hands over its memory, nor those in
    which the memory in use changes: readings may miss the moment when most was reserved.
    """
    spans = launch.spans
    is_mine = (spans["device"] == device) & spans["reserved_bytes"].notna() & ~spans["phase"].isin(HAND_OVER)
    steps = launch.step_seconds.index
    spans = spans[is_mine & spans["step"].isin(steps[steps > launch.last_warmup_step])]
    samples = launch.samples[launch.samples["device"] == device].dropna(subset="memory_bytes")
    mono, used = samples["mono"].to_numpy(), samples["memory_bytes"].to_numpy(dtype=np.float64)
    first, last = (np.searchsorted(mono, spans[end].to_numpy()) for end in ("start", "end"))
    read = [used[begin:end] for begin, end in zip(first, last, strict=True)]
    highest = np.array([part.max(initial=-np.inf) for part in read], np.float64)
    changed = highest - np.array([part.min(initial=np.inf) for part in read], np.float64)
    beyond = np.where(changed <= FOREIGN_BYTES, highest - spans["reserved_bytes"].to_numpy(), np.nan)
    rows = spans.assign(beyond=beyond, readings=last - first)
    rows = rows.groupby(["step", "phase"]).agg({"beyond": "max", "readings": "sum"})
    return rows["beyond"].where(rows["readings"] >= LEAST_READINGS).unstack("phase").dropna(axis="columns")


def _rise(table: pd.DataFrame) -> tuple[float, int]:
    """How much more is in use at most than in the same phase of other steps, and in how many steps it is foreign."""
    more = table - table.min()
    foreign = more > FOREIGN_BYTES
    if foreign.to_numpy().sum() < 2:
        return np.nan, 0
    return float(more.to_numpy().max()), int(foreign.any(axis="columns").sum())


def _above(table: pd.DataFrame, peers: Sequence[pd.DataFrame]) -> float:
    """How much more a device has in every step than any of its peers had in any; NaN where they cannot be compared."""
    if not peers:
        return np.nan
    highest = pd.concat([peer.max() for peer in peers], axis="columns", join="inner").max(axis="columns")
    return _least((table.min() - highest).dropna())


def _least(values: "pd.Series[float]") -> float:
    return float(values.min()) if len(values) else np.nan
