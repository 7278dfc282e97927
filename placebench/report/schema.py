"""`summary.json`: every number of the report with its unit, its interval and its n, under a versioned schema.

The terminal, Markdown and HTML reports are rendered from the same object, so they show nothing that is not in the file.
The models below are the schema; `Summary.model_json_schema()` gives it as JSON Schema. A missing number is null. Each
bears the name of what it sums up with `Summary` behind it, and is made of that by its attributes where they are alike.
"""

from typing import Any, Literal

from pydantic import Field

from placebench.record.folder import Status
from placebench.report.placement_schema import FactorSummary, Number, PlacementSummary, RatioSummary, SummaryModel
from placebench.spec.text import format_seconds, quantity


class FactSummary(SummaryModel):
    """One thing that is known of compared runs besides their numbers."""

    name: str
    values: tuple[str | None, ...] = Field(description="one an arm, in their order; null where it is not known")
    differs: bool = Field(description="whether the arms that say it disagree")


class SourceSummary(SummaryModel):
    """Where the numbers of one launch of an arm come from."""

    arm: str
    source: str = Field(description="its trial folder, or its files")
    format: str = Field(description="`run`, or the formats of its logs")
    steps: int = Field(description="steps on record")
    measured: int = Field(description="those in the numbers")


class ScalingSummary(SummaryModel):
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


class OverlapGainSummary(SummaryModel):
    """A placement against one that differs from it in less overlap alone; step times, without a verdict."""

    placement: str
    base: str = Field(description="the same with less overlap; one of these a row")
    split: FactorSummary | None = Field(
        description="base over the first placement; null where these two differ in more than how pools share the"
        " devices, where anything overlaps in either, where no round has all three placements, or where the first is of"
        " another run or a log"
    )
    overlap: FactorSummary = Field(description="placement over base")
    together: FactorSummary | None = Field(description="placement over the first placement; null where split is")


class ForecastSummary(SummaryModel):
    """What a placement's step is expected to take, from the phases measured under the placements of the run."""

    placement: str = Field(description="its word")
    expected_s: float
    measured_s: Number = Field(description="null where it was not run")
    left_out_s: Number = Field(
        default=None,
        description="forecast from the run's other placements alone, to show against `measured_s` how far forecasts are"
        " off; null where the others tell too little, or where it was not run",
    )


class SuggestionSummary(SummaryModel):
    """The placement most worth trying next."""

    placement: str | None = Field(description="its word; null where none is expected to be faster, or nothing is known")
    text: str = Field(description="the advice, or why there is none")
    forecasts: tuple[ForecastSummary, ...] = Field(
        description="the placements of the run, then the most promising others"
    )


class LaunchSummary(SummaryModel):
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


class RunTimesSummary(SummaryModel):
    """Where the wall time of a run went; all but the whole are of launches that are done."""

    total_s: float = Field(description="earlier starts of the run and launches that failed included")
    start_s: float = Field(description="from the first process of a launch to its first step")
    warmup_s: float = Field(description="in steps that are left out of the numbers")
    measured_s: float = Field(description="in steps that are in the numbers")
    trace_s: float = Field(description="in steps whose kernels were traced")
    end_s: float = Field(description="from the last step of a launch to its last process gone")

    @property
    def sentence(self) -> str:
        """Where it went, in one line."""
        parts = {"starts": self.start_s, "warm-up": self.warmup_s, "traced steps": self.trace_s, "ends": self.end_s}
        parts["all else"] = self.total_s - self.measured_s - sum(parts.values())
        rest = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in parts.items() if seconds >= 0.05)
        share = f"{format_seconds(self.measured_s)} ({quantity(self.measured_s / self.total_s, '1')})"
        return f"Of {format_seconds(self.total_s)}, measured steps took {share}, {rest}"


class NoiseSummary(SummaryModel):
    """How much a number of two launches of one placement differs; standard deviations of log ratios."""

    key: str
    label: str
    pair: float = Field(description="of two launches started one after the other: the noise floor")
    within: Number = Field(description="what their steps contribute; null for a number that a launch has one of")
    between: Number = Field(description="what launches vary by beyond that; null likewise")
    detectable: dict[int, float] = Field(
        description="smallest effect, a fraction, that so many rounds tell with a probability of 80 %"
    )


class CalibrationSummary(SummaryModel):
    """A placement against itself."""

    headline: str
    pairs: int = Field(description="pairs of launches")
    noise: tuple[NoiseSummary, ...]


class MethodSummary(SummaryModel):
    """How the numbers came about."""

    confidence: float
    min_effect: float = Field(description="smallest effect of interest, a fraction")
    warmup_steps: int = Field(description="first steps that are left out of every launch; a launch may have more")
    steps_before: int = Field(0, description="number of the last step in the checkpoint that launches went on from")
    load: str = Field(description="what device load means here")
    efficiency: tuple[str, ...] = Field(description="constants behind MFU and MBU, or why there are none")
    noise: str | None = Field(None, description="what a calibration of this host and workload has found")
    steps: str = Field(description="what a value says of the steps of a launch")
    chosen_steps: str | None = Field(
        None, description="how many steps later launches have, and why, if that was chosen"
    )
    interval: str = Field(description="how the intervals of ratios came about, by placement where they differ")


class ResumptionSummary(SummaryModel):
    """A command by which the run was gone on with."""

    started: str
    command: tuple[str, ...]


class Summary(SummaryModel):
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
    times: RunTimesSummary | None = Field(
        None, description="of a run; null where no launch is done, and of early versions"
    )
    suggestion: SuggestionSummary | None = Field(
        default=None, description="null where nothing was measured that tells of any"
    )
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
