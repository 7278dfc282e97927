"""What `summary.json` says of a placement; `schema` has the whole."""

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from placebench.compare.statistics.verdicts import Better, Verdict


def _null_if_missing(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


Number = Annotated[float | None, BeforeValidator(_null_if_missing)]
"""A number; null where it is missing."""


class SummaryModel(BaseModel):
    """A part of `summary.json`."""

    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True)


class FactorSummary(SummaryModel):
    """A number of a placement over the same number of another one."""

    value: float
    low: Number = Field(description="lower end of the interval; null with fewer than two pairs")
    high: Number = Field(description="upper end of the interval")
    pairs: int = Field(description="rounds that both placements finished")


class RatioSummary(FactorSummary):
    """A number over the same number of the first placement, and what that says."""

    p_value: Number = Field(
        default=None,
        description="of the test over launches whether the ratio is on this side of the smallest effect of interest,"
        " corrected for the number of ratios looked at together; null without an interval",
    )
    needed: int | None = Field(
        default=None, description="launches of each side that would decide it; null where decided or out of reach"
    )
    corrected_for: int | None = Field(
        default=None,
        description="how many ratios are looked at together, where the interval alone would decide and only the"
        " correction for their number leaves it undecided",
    )
    verdict: Verdict


class QuantitySummary(SummaryModel):
    """One number of a placement over its launches."""

    key: str
    label: str
    unit: Literal["s", "tokens/s", "tokens/J", "1", "B", "B/s", "J", "W", "sequences", "updates"] = Field(
        description="1 is a share"
    )
    better: Better
    value: Number = Field(
        description="mean of the launches: geometric, of parts of the step their share of it in all launches together"
    )
    low: Number = Field(description="lower end of the interval; null with fewer than two launches")
    high: Number = Field(description="upper end of the interval")
    n: int = Field(description="launches that have the number")
    ratio: RatioSummary | None = Field(description="null for the first placement and where a ratio has no meaning")


class DeviceSummary(SummaryModel):
    """One device in one placement."""

    id: str
    label: str
    pool: str
    estimated_memory_bytes: Number = Field(description="the plan's estimate of the highest sample, null where unknown")
    quantities: tuple[QuantitySummary, ...]
    waits: tuple[QuantitySummary, ...] = Field(
        (),
        description="what it waited for, per step: of its idle time `wait_nothing_to_do` and `wait_slower_ranks`, which"
        " add up to it; in its phases, where a step was traced, `wait_slower_ranks_inside`, `wait_collectives` and"
        " `wait_host`, and `not_traced`, the time of those not traced; early versions did not write them",
    )


class SampledSummary(SummaryModel):
    """What the samples say of one phase; besides the phases there are `idle` and `step`."""

    phase: str
    load: Number = Field(description="share, mean over the time sampled")
    sm_activity: Number = Field(description="share of the SMs with work (GPM), likewise")
    tensor_activity: Number = Field(description="share of the tensor cores' peak rate (GPM), likewise")
    dram_activity: Number = Field(description="share of the memory's peak rate (GPM), likewise")
    peak_memory_bytes: Number = Field(description="highest sample")
    allocated_bytes: Number = Field(description="most that tensors of the job took at a time, without the engine's")
    power_w: Number = Field(description="of one device, mean over the phase")
    clock_sm_mhz: Number = Field(description="clock of the SMs, mean of the readings in the phase")
    energy_j: Number = Field(
        description="per step; of a pool, all its devices together: the counter's, spread over time as power was"
    )
    seconds: float = Field(description="time of the phase that samples cover, all launches and devices")


class PhaseInPoolSummary(SampledSummary):
    """One phase on the devices of one pool."""

    pool: str
    devices: int


class PhaseOnDeviceSummary(SampledSummary):
    """One phase on one device."""

    device: str
    samples: int = Field(description="samples that share time with the phase")
    n: int = Field(description="launches that have samples of the phase")


class RoleOnDeviceSummary(SummaryModel):
    """A role as it was seen on one device."""

    role: str = Field(description="`unknown` of processes of which no role is known")
    device: str
    share: Number = Field(
        description="part of the measured steps in which a phase of the role ran there, mean of the launches; 0 where"
        " its processes only have memory there, null where no spans tell"
    )
    memory_bytes: Number = Field(
        description="highest reading of its processes' memory there, or of the device's where it is alone there, mean"
        " of the launches; null where it shares a device and no reading tells processes apart"
    )
    memory_with: tuple[str, ...] = Field(
        (),
        description="other roles whose processes some of these are, too; early versions did not write it, and had no"
        " `memory_bytes` then",
    )
    allotted: Number = Field(
        default=None,
        description="1 where Ray has allotted the device to a worker of the role, 0 where it has not, mean of the"
        " launches; null where none is a worker of Ray's; early versions did not write it",
    )


class PlaceSummary(SummaryModel):
    """The devices that a pool had in some launches, taken together."""

    pool: str
    devices: tuple[str, ...] = Field(description="their ids")
    quantities: tuple[QuantitySummary, ...] = Field(
        description="mean load and idle time, the highest memory, the energy of all; the keys end with the pool's name"
    )


class ArrangementSummary(SummaryModel):
    """Launches of a placement in which every role worked on the same devices."""

    rounds: tuple[int, ...]
    roles: tuple[RoleOnDeviceSummary, ...]
    pools: tuple[PlaceSummary, ...] = Field(
        (),
        description="where launches of a job of the user's differ in the devices of a pool: what the pool's devices did"
        " in these launches, whereas `devices` of the placement are means of all; early versions did not write it",
    )
    differences: tuple[str, ...] = Field(description="from what was asked for, in words")


class KernelSummary(SummaryModel):
    """What one phase of the traced step spent its time on, mean of its devices."""

    phase: str
    span_s: float
    kernel_s: float = Field(description="a kernel that computes was running")
    collective_s: float = Field(description="only collectives were running")
    copy_s: float = Field(description="only copies were running")
    no_kernel_s: float = Field(description="nothing was running: the host had queued nothing")


class DifferenceSummary(SummaryModel):
    """Seconds that a part of the critical path adds to the step and does not add to the first placement's.

    It is over the launches on which the ratio of the step times rests: where placements of a run have lost different
    rounds, those of the rounds that both have.
    """

    value: float = Field(description="those of all parts add up to the difference of the step times")
    low: Number = Field(description="lower end of the interval over rounds; null with fewer than two")
    high: Number = Field(description="upper end of the interval")
    rounds: int = Field(
        description="rounds that both placements finished; where launches are no pairs, launches of each"
    )
    first_on_path_s: float = Field(description="time on the critical path of the first placement in these launches")
    first_off_path_s: float = Field(description="time of the phase hidden beside it")
    other_on_path_s: float = Field(description="time on the critical path of this placement in these launches")
    other_off_path_s: float = Field(description="time of the phase hidden beside it")


class PathPartSummary(SummaryModel):
    """A phase, or the gap before one, in the step; the parts' time on the critical path adds up to the step time."""

    phase: str = Field(description="of a gap the phase that it precedes, or the end of the step")
    kind: Literal["phase", "gap"]
    on_path_s: float = Field(description="time on the critical path")
    off_path_s: float = Field(description="time of the phase hidden beside the path")
    imbalance_s: float = Field(description="of the time on the path: devices waiting for the slowest one, their mean")
    difference: DifferenceSummary | None = Field(description="null for the first placement")


class PlacementSummary(SummaryModel):
    """One placement."""

    name: str
    pools: dict[str, tuple[str, ...]] = Field(
        description="device ids of each pool; of a job of the user's, those on which most launches had it"
    )
    roles: dict[str, str] = Field(description="the pool of each role")
    overlap: str
    tensor_parallel: int | None = Field(
        None, description="devices that share an engine; null for the workload's, and of early versions"
    )
    launches: int = Field(description="finished launches: the ones in the numbers")
    headline: str | None = Field(description="the verdict; null for the first of several placements")
    reasons: tuple[str, ...]
    quantities: tuple[QuantitySummary, ...] = Field(description="phases are in their device view")
    controller_view: tuple[QuantitySummary, ...] = Field(description="phases from submission to result")
    overlaps: tuple[QuantitySummary, ...] = Field(description="time in which two phases ran side by side, per step")
    waits: tuple[QuantitySummary, ...] = Field(
        description="idle time per step by pool and cause, mean of the pool's devices"
    )
    critical_path: tuple[PathPartSummary, ...] = Field(
        description="phases in the step's order, then gaps; empty where no spans tell"
    )
    devices: tuple[DeviceSummary, ...]
    phases_in_pools: tuple[PhaseInPoolSummary, ...]
    phases_on_devices: tuple[PhaseOnDeviceSummary, ...]
    kernels: tuple[KernelSummary, ...] = Field(description="empty where no kernels were traced")
    observed: tuple[ArrangementSummary, ...] = Field(
        (),
        description="where its roles were seen, beside `pools` and `roles`, which were asked for; the arrangement of"
        " most launches first; early versions did not write it",
    )
    parts: tuple[QuantitySummary, ...] = Field(
        (), description="of logs: times that are part of a phase or lie outside the step, never added to anything"
    )
