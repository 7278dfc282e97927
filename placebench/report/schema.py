"""`summary.json`: every number of the report with its unit, its interval and its n, under a versioned schema.

The terminal, Markdown and HTML reports are rendered from the same object, so they show nothing that is not in the file.
The models below are the schema; `Summary.model_json_schema()` gives it as JSON Schema. A missing number is null. Each
bears the name of what it sums up with `Summary` behind it, and is made of that by its attributes where they are alike.
"""

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from placebench.compare.statistics.verdicts import Better, Verdict
from placebench.record.folder import Status


def _null_if_missing(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


Number = Annotated[float | None, BeforeValidator(_null_if_missing)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True)


class FactorSummary(_Model):
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
        description="how many ratios are looked at together, where its interval decides and only that leaves it"
        " undecided",
    )
    verdict: Verdict


class QuantitySummary(_Model):
    """One number of a placement over its launches."""

    key: str
    label: str
    unit: Literal["s", "tokens/s", "tokens/J", "1", "B", "B/s", "J", "W", "sequences", "updates"] = Field(
        description="1 is a share"
    )
    better: Better
    value: Number = Field(description="mean of the launches: geometric, of parts of the step their mean share of it")
    low: Number = Field(description="lower end of the interval; null with fewer than two launches")
    high: Number = Field(description="upper end of the interval")
    n: int = Field(description="launches that have the number")
    ratio: RatioSummary | None = Field(description="null for the first placement and where a ratio has no meaning")


class DeviceSummary(_Model):
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


class SampledSummary(_Model):
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


class RoleOnDeviceSummary(_Model):
    """A role as it was seen on one device."""

    role: str = Field(description="`unknown` of processes of which no role is known")
    device: str
    share: Number = Field(
        description="part of the measured steps in which a phase of the role ran there, mean of the launches; 0 where"
        " its processes only have memory there, null where no spans tell"
    )
    memory_bytes: Number = Field(
        description="highest reading of its processes' memory there, or of the device's where it is alone there, mean"
        " of the launches; null where it shares process or device with another role"
    )


class ArrangementSummary(_Model):
    """Launches of a placement in which every role worked on the same devices."""

    rounds: tuple[int, ...]
    roles: tuple[RoleOnDeviceSummary, ...]
    differences: tuple[str, ...] = Field(description="from what was asked for, in words")


class KernelSummary(_Model):
    """What one phase of the traced step spent its time on, mean of its devices."""

    phase: str
    span_s: float
    kernel_s: float = Field(description="a kernel that computes was running")
    collective_s: float = Field(description="only collectives were running")
    copy_s: float = Field(description="only copies were running")
    no_kernel_s: float = Field(description="nothing was running: the host had queued nothing")


class DifferenceSummary(_Model):
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


class PathPartSummary(_Model):
    """A phase, or the gap before one, in the step; the parts' time on the critical path adds up to the step time."""

    phase: str = Field(description="of a gap the phase that it precedes, or the end of the step")
    kind: Literal["phase", "gap"]
    on_path_s: float = Field(description="time on the critical path")
    off_path_s: float = Field(description="time of the phase hidden beside the path")
    imbalance_s: float = Field(description="of the time on the path: devices waiting for the slowest one, their mean")
    difference: DifferenceSummary | None = Field(description="null for the first placement")


class PlacementSummary(_Model):
    """One placement."""

    name: str
    pools: dict[str, tuple[str, ...]] = Field(
        description="device ids of each pool; of a job of the user's, those on which most launches had it"
    )
    roles: dict[str, str] = Field(description="the pool of each role")
    overlap: str
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


class FactSummary(_Model):
    """One thing that is known of compared runs besides their numbers."""

    name: str
    values: tuple[str | None, ...] = Field(description="one an arm, in their order; null where it is not known")
    differs: bool = Field(description="whether the arms that say it disagree")


class SourceSummary(_Model):
    """Where the numbers of one launch of an arm come from."""

    arm: str
    source: str = Field(description="its trial folder, or its files")
    format: str = Field(description="`run`, or the formats of its logs")
    steps: int = Field(description="steps on record")
    measured: int = Field(description="those in the numbers")


class ScalingSummary(_Model):
    """A placement of replicas against the one with the fewest."""

    placement: str
    base: str
    scaling: Literal["strong", "weak"] = Field(description="strong: the batch of a step stays; weak: that of a device")
    devices: int
    base_devices: int
    speedup: RatioSummary | None = Field(
        description="tokens/s over the base's; null where either has no finished launch"
    )
    efficiency: RatioSummary | None = Field(description="tokens/s/device over the base's, likewise")


class OverlapGainSummary(_Model):
    """A placement against one that differs from it in less overlap alone; step times, without a verdict."""

    placement: str
    base: str = Field(description="the same with less overlap; one of these a row")
    split: FactorSummary | None = Field(
        description="base over the first placement; null where they differ in more than how pools share the devices,"
        " where something overlaps in either, where no round has both and the placement, and where the first is of"
        " another run or a log"
    )
    overlap: FactorSummary = Field(description="placement over base")
    together: FactorSummary | None = Field(description="placement over the first placement; null where split is")


class ForecastSummary(_Model):
    """What a placement's step is expected to take, from the phases measured under the placements of the run."""

    placement: str = Field(description="its word")
    expected_s: float
    measured_s: Number = Field(description="null where it was not run")
    left_out_s: Number = Field(
        default=None,
        description="by the forecast from the run's other placements alone, which says how far it errs; null where they"
        " tell too little, or where it was not run",
    )


class SuggestionSummary(_Model):
    """The placement most worth trying next."""

    placement: str | None = Field(description="its word; null where none is expected to be faster, or nothing is known")
    text: str = Field(description="the advice, or why there is none")
    forecasts: tuple[ForecastSummary, ...] = Field(
        description="the placements of the run, then the most promising others"
    )


class LaunchSummary(_Model):
    """One launch; times are null unless it is done."""

    round: int
    placement: str
    status: Status
    error: str | None
    steps: int
    warmup_steps: int | None = Field(default=None, description="first steps that are left out of the numbers")
    startup_s: Number
    steps_s: Number
    trace_s: Number = Field(default=None, description="of the step after them whose kernels were traced; 0 for none")
    stop_s: Number
    values: dict[str, Number] = Field(
        default={},
        description="of a run: this launch's value of each number of its placement, by key; the unit stands with the"
        " key among the placement's quantities",
    )


class NoiseSummary(_Model):
    """How much a number of two launches of one placement differs; standard deviations of log ratios."""

    key: str
    label: str
    pair: float = Field(description="of two launches started one after the other: the noise floor")
    within: Number = Field(description="what their steps contribute; null for a number that a launch has one of")
    between: Number = Field(description="what launches vary by beyond that; null likewise")
    detectable: dict[int, float] = Field(
        description="smallest effect, a fraction, that so many rounds tell with a probability of 80 %"
    )


class CalibrationSummary(_Model):
    """A placement against itself."""

    headline: str
    pairs: int = Field(description="pairs of launches")
    noise: tuple[NoiseSummary, ...]


class MethodSummary(_Model):
    """How the numbers came about."""

    confidence: float
    min_effect: float = Field(description="smallest effect of interest, a fraction")
    warmup_steps: int = Field(description="first steps that are left out of every launch; a launch may have more")
    steps_before: int = Field(0, description="number of the last step in the checkpoint that launches went on from")
    load: str = Field(description="what device load means here")
    efficiency: tuple[str, ...] = Field(description="constants behind MFU and MBU, or why there are none")
    noise: str | None = Field(None, description="what a calibration of this host and workload has found")
    steps: str = Field(description="what a value says of the steps of a launch")
    interval: str = Field(description="how the intervals of ratios came about, by placement where they differ")


class ResumptionSummary(_Model):
    """A command by which the run was gone on with."""

    started: str
    command: tuple[str, ...]


class Summary(_Model):
    """The content of `summary.json`."""

    schema_version: Literal[1] = 1
    kind: Literal["run", "comparison"] = Field("run", description="of one run, or of arms of several runs and logs")
    placebench: str
    name: str
    status: str
    started: str | None
    ended: str | None
    command: tuple[str, ...]
    resumptions: tuple[ResumptionSummary, ...] = Field(
        (), description="commands by which the run was gone on with; early versions did not record them"
    )
    done: int = Field(description="launches that are done")
    planned: int = Field(description="launches that the run was to have")
    method: MethodSummary
    workload: dict[str, Any]
    job: dict[str, Any] = Field(default_factory=dict, description="a job of the user's, as its job file says it")
    host: dict[str, Any]
    versions: dict[str, Any]
    git: dict[str, Any] | None
    warnings: tuple[str, ...]
    calibration: CalibrationSummary | None = Field(None, description="of a run that compares a placement with itself")
    placements: tuple[PlacementSummary, ...]
    scaling: tuple[ScalingSummary, ...] = Field((), description="empty without replicas of several numbers")
    overlap_gains: tuple[OverlapGainSummary, ...] = Field(
        (),
        description="of placements of several pools that their run also has with less overlap, neither of them the"
        " first; else empty",
    )
    launches: tuple[LaunchSummary, ...]
    suggestion: SuggestionSummary | None = Field(default=None, description="null where no placement was measured")
    facts: tuple[FactSummary, ...] = Field(
        (), description="of a comparison: what is known of the runs, what differs first"
    )
    sources: tuple[SourceSummary, ...] = Field((), description="of a comparison: what its numbers come from")

    @property
    def coverage(self) -> str:
        """How much was measured, in one phrase."""
        if self.kind == "comparison":
            return f"{self.done} launch{'es' * (self.done != 1)} compared"
        return f"{self.done} of {self.planned} launches done{f', started {self.started}' if self.started else ''}"

    @property
    def verdicts(self) -> tuple[PlacementSummary, ...]:
        """The placements that have a headline: all but the first, or the only one."""
        return tuple(placement for placement in self.placements if placement.headline)
