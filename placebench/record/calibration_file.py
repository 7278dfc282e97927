"""A calibration: what was measured on a host, by which other placements, sizes, models and devices are predicted.

It holds figures as they were measured, each phase with the work it did; what is fitted to them is fitted anew by
whoever predicts (`predict.phases`). `RunFolder.calibration_file` is another one: how much launches of a run vary.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from placebench.errors import UsageError
from placebench.record.parts import Bytes, Record, RecordFile, Seconds, Steps
from placebench.record.run_file import recorded_version
from placebench.spec.devices import Kind
from placebench.spec.legible import shown
from placebench.spec.phases import GEN
from placebench.spec.reading import parse_json, read_text
from placebench.spec.shapes import JobShapes

CALIBRATION_VERSION: Literal[1] = 1


class StepCounts(Record):
    """What the sequences of a step were, mean of the measured steps; see `ppo.metrics` for each."""

    tokens: Annotated[float, Field(gt=0, le=1e15)]
    """Of prompts and responses, over all devices."""
    attention_length: Annotated[float, Field(gt=0, le=1e9)]
    """Mean length of a sequence over its tokens."""
    decode_steps: Annotated[float, Field(gt=0, le=1e9)]
    """Tokens of the longest response."""
    context_tokens: Annotated[float, Field(gt=0, le=1e18)]
    """Tokens that a new one attended to, summed over all new ones."""


class MeasuredPhase(Record):
    """A phase of a step on the devices of its pool, seconds."""

    name: str
    devices: Steps
    """Of its pool; 0 for the controller's own phases."""
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """Devices that share an engine."""
    seconds: Seconds
    """From its first device's start to its last one's end, in steps that were not traced; mean of the launches."""
    kernel_s: Seconds | None = None
    """Of the traced step: a kernel that computes, or a copy, was running, mean of the devices; None without a trace."""
    collective_s: Seconds | None = None
    """Of the traced step: only collectives were running."""


class MeasuredCase(Record):
    """A placement of a run, or one point of a benchmark that has single phases alone."""

    name: str
    """The placement's word, or what the point is."""
    workload: dict[str, Any] = Field(default_factory=dict)
    """As it was run; empty for a job of the user's."""
    models: JobShapes | None = None
    """Shapes of the models; None where they are not known."""
    counts: StepCounts | None = None
    """What its sequences were; None where only the workload tells."""
    tokens: Annotated[float, Field(gt=0, le=1e15)] | None = None
    """Of a step; None where nobody counted, and in files of earlier versions, of which `counts` tells."""
    pools: Annotated[int, Field(ge=1)] = 1
    """Number of the placement's pools."""
    step_s: Seconds | None = None
    """Of a step; None for a point of a benchmark."""
    gap_s: Seconds | None = None
    """Of a step in which no phase on its critical path ran."""
    core_loop_s: Seconds | None = None
    """CPU time of the sampler's loop on the job's cores meanwhile (`telemetry.core_pace`), mean; None where it was not
    measured, or on several hosts."""
    launches: Annotated[int, Field(ge=1)] = 1
    launch_sd: Annotated[float, Field(ge=0, le=100)] | None = None
    """Standard deviation of the logarithm of the step time from launch to launch; None with fewer than two."""
    round_steps: dict[int, Seconds] = Field(default_factory=dict)
    """The step of each launch, by its round; empty where an older version wrote the file."""
    phases: tuple[MeasuredPhase, ...]

    @field_validator("workload")
    @classmethod
    def _has_sizes(cls, workload: dict[str, Any]) -> dict[str, Any]:
        batch = workload.get("batch", {})
        sizes = [batch.get(key, 1) for key in ("size", "mini_batch_size")] if isinstance(batch, dict) else [None]
        if not all(type(size) is int and size > 0 for size in sizes):
            raise ValueError("workload.batch: no sizes of a batch")
        return workload


class CalibrationFile(RecordFile):
    """The content of a calibration."""

    schema_version: Literal[1] = CALIBRATION_VERSION
    source: str
    """What was measured: a run's name, or a benchmark."""
    hostname: str | None = None
    cpu_model: str | None = None
    cores: Steps | None = None
    """Cores of the host that it could use."""
    kind: Kind
    device: str
    """Product name of its devices."""
    device_count: Annotated[int, Field(ge=1)]
    nodes: Annotated[int, Field(ge=1)] = 1
    device_bytes: Bytes
    """Memory of a device."""
    device_cores: Annotated[int, Field(ge=0)] = 0
    """Cores of a CPU device; 0 of a GPU."""
    driver: str | None = None
    versions: dict[str, str | None] = Field(default_factory=dict)
    """Of torch, vllm, placebench and what else decides over timings."""
    commit: str | None = None
    """Of the source tree of placebench."""
    workload: dict[str, Any] = Field(default_factory=dict)
    """The job as the run asked for it, before a placement made it replicas or engines of its own; empty of a job of the
    user's, of a benchmark, and in files of earlier versions."""
    command: tuple[str, ...] = ()
    """The command line of a run of a job of the user's, which alone says how the job is started; else empty."""
    cases: Annotated[tuple[MeasuredCase, ...], Field(min_length=1)]

    @property
    def is_traced(self) -> bool:
        """Whether kernels were traced, so that what the host takes is known apart from them."""
        return any(phase.kernel_s is not None for case in self.cases for phase in case.phases)


def read_calibration(path: Path) -> CalibrationFile:
    """Read a calibration that the user has named.

    Raises:
        UsageError: it cannot be read, is none, or is of a newer schema.
    """
    try:
        content = parse_json(read_text(path))
    except ValueError as error:
        raise UsageError(f"{path}: cannot read it as JSON: {error}") from None
    version = recorded_version(content)
    if version is not None and version > CALIBRATION_VERSION:
        raise UsageError(
            f"{path}: written by a newer placebench (schema {version}, this one reads {CALIBRATION_VERSION}): upgrade"
            " placebench"
        )
    if not isinstance(content, dict) or "cases" not in content:
        raise UsageError(
            f"{shown(str(path))}: not a calibration: make one with placebench predict --from RUN --out FILE"
        )
    try:
        found = CalibrationFile.parse(content)
    except (KeyError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"{path}: not a calibration as placebench writes it: {what}") from None
    for case in found.cases:
        # Placebench's own job, the only one whose workload is known, generates in each step.
        is_step = bool(case.workload) and case.step_s is not None
        if is_step and not any(one.name == GEN and one.seconds for one in case.phases):
            raise UsageError(f"{path}: the step of {shown(case.name)} has no time of {GEN}: make the calibration again")
    return found
