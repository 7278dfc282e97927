"""What a finished launch has left in its JSONL files: typed, consistent, and all of it or nothing.

This is the one place that reads these files back. Whatever is wrong with one of them, down to a number that cannot be,
is a `DamagedLaunchError`, and what comes out of here needs no second look.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator, model_validator

from placebench.errors import DamagedLaunchError
from placebench.record.folder import Trial
from placebench.record.job_record import LogRecord
from placebench.spec.legible import shown
from placebench.spec.reading import encodable_json, regular

CONTROLLER = "controller"
"""What stands for a device where the controller works, and in its own view of the phases."""
WHOLE_STEP = "step"
"""The phase of the controller's span from the start of a step to its end."""

Reading = Annotated[float, Field(ge=-1e18, le=1e18, allow_inf_nan=False)]
# A century, which no monotonic clock has come to.
Mono = Annotated[float, Field(ge=-3.2e9, le=3.2e9, allow_inf_nan=False)]
# Since 1970, up to the year 2100 or so.
Wall = Annotated[float, Field(ge=0, le=4.2e9, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=3.2e9, allow_inf_nan=False)]
Step = Annotated[int, Field(ge=0, lt=2**31)]
Bytes = Annotated[float, Field(ge=0, le=2**60, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1)]
Pid = Annotated[int, Field(ge=0, lt=2**32)]


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)


def may_be_metric(name: str, value: float) -> bool:
    """Whether a metric of a step can have a value: losses may be infinite or NaN, times and counts may not."""
    return not name.startswith(("timing_s/", "perf/")) or abs(value) <= 1e18


class StepLine(_Line):
    """A line of `steps.jsonl`."""

    step: Step
    wall: Wall | None = None
    """When it ended; None in lines of other programs."""
    metrics: dict[str, float]
    """See `may_be_metric`."""

    @field_validator("metrics")
    @classmethod
    def _counts_are_finite(cls, metrics: dict[str, float]) -> dict[str, float]:
        for name, value in metrics.items():
            if not may_be_metric(name, value):
                raise ValueError(f"{name} is {value:g}")
        return metrics


class SpanLine(_Line):
    """A line of `spans.jsonl`: see `telemetry.spans.Span`."""

    step: Step
    phase: Name
    role: str | None
    pool: str | None
    device: Name
    start_mono: Mono
    end_mono: Mono
    memory_peak_bytes: Bytes | None = None
    memory_reserved_bytes: Bytes | None = None
    pid: Pid | None = None

    @model_validator(mode="after")
    def _ends_after_its_start(self) -> Self:
        if self.end_mono < self.start_mono or (self.phase == WHOLE_STEP and self.end_mono == self.start_mono):
            raise ValueError(f"{self.phase} of step {self.step} takes {self.end_mono - self.start_mono:g} s")
        return self


class KernelLine(_Line):
    """A line of `kernels.jsonl`, times in seconds."""

    phase: Name
    device: Name
    kernel_s: Seconds
    collective_s: Seconds
    copy_s: Seconds
    no_kernel_s: Seconds
    span_s: Seconds


class ProcessLine(_Line):
    """A line of `processes.jsonl`: a process of the job and the device that it works on."""

    pid: Pid
    device: Name


class RayLine(_Line):
    """A line of `ray.jsonl`: a worker of Ray's, and a GPU that Ray has allotted to it."""

    pid: Pid
    device: Name


class PauseLine(_Line):
    """A line of `pauses.jsonl`: when the launch was stopped."""

    start_mono: Mono
    end_mono: Mono


class HeaderLine(_Line):
    """The first line of a sampler in `devices.jsonl`: see `telemetry.samples`, also on those that follow."""

    kind: Literal["header"]
    hz: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
    source: str | None = None
    gpm_absent: dict[str, str] | None = None


class SampleLine(_Line):
    """What a device was like at one moment; its quantities are further keys."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Reading | None] = Field(init=False)

    kind: Literal["sample"]
    mono: Mono
    device: Name

    @property
    def quantities(self) -> dict[str, float | None]:
        """Its quantities by key."""
        return self.__pydantic_extra__


class PowerLine(_Line):
    """Readings of a power sensor, each so many seconds before `mono`."""

    kind: Literal["power"]
    mono: Mono
    device: Name
    ago_s: tuple[Reading, ...]
    power_w: tuple[Reading | None, ...]

    @model_validator(mode="after")
    def _are_pairs(self) -> Self:
        if len(self.ago_s) != len(self.power_w):
            raise ValueError("ago_s and power_w must be of one length")
        return self


class EnergyLine(_Line):
    """A reading of an energy counter."""

    kind: Literal["energy"]
    mono: Mono
    device: Name
    energy_j: Reading


class DeviceProcess(_Line):
    """A process that computes on a GPU."""

    pid: Pid
    memory_bytes: Bytes | None = None


class ProcessesLine(_Line):
    """The processes that compute on a GPU at one moment, whoever started them."""

    kind: Literal["processes"]
    mono: Mono
    device: Name
    processes: tuple[DeviceProcess, ...]


class ErrorLine(_Line):
    """What a sampler could not read."""

    kind: Literal["device_error", "reading_error"]
    device: str | None = None
    message: str | None = None


class FooterLine(_Line):
    """The last line of a sampler that ended in order."""

    kind: Literal["footer"]
    ticks: Annotated[int, Field(ge=0, lt=2**53)]
    missed: Annotated[int, Field(ge=0, lt=2**53)]


DeviceLine = Annotated[
    HeaderLine | SampleLine | PowerLine | EnergyLine | ProcessesLine | ErrorLine | FooterLine,
    Field(discriminator="kind"),
]
STEPS, SPANS = TypeAdapter(StepLine), TypeAdapter(SpanLine)
_KERNELS, _PAUSES = TypeAdapter(KernelLine), TypeAdapter(PauseLine)
PROCESSES = TypeAdapter(ProcessLine)
_RAY = TypeAdapter(RayLine)
DEVICES: TypeAdapter[DeviceLine] = TypeAdapter(DeviceLine)
LineT = TypeVar("LineT")


@dataclass(frozen=True)
class LaunchLines:
    """The lines of a launch's files; none of a launch that is not done."""

    steps: tuple[StepLine, ...] = ()
    """By step, one each."""
    spans: tuple[SpanLine, ...] = ()
    kernels: tuple[KernelLine, ...] = ()
    pauses: tuple[PauseLine, ...] = ()
    processes: tuple[ProcessLine, ...] = ()
    ray: tuple[RayLine, ...] = ()
    devices: tuple[DeviceLine, ...] = ()
    log: LogRecord | None = None
    """How the log of a job of the user's is to be read; None of placebench's own job."""


def read_launch(
    trial: Trial, devices: Collection[str], *, of_own_job: bool = True, with_samples: bool = True
) -> LaunchLines:
    """Read what a finished launch has left.

    Args:
        trial: its folder.
        devices: the ids of its placement's devices.
        of_own_job: whether it is of placebench's own job; one of the user's has a record of its log.
        with_samples: whether to read the samples of the devices, which are most of it.

    Raises:
        DamagedLaunchError: a file is missing or damaged.
    """
    lines = LaunchLines(
        tuple(_read(trial.steps, STEPS)),
        tuple(_read(trial.spans, SPANS)),
        tuple(_read(trial.kernels, _KERNELS, is_optional=True)),
        tuple(_read(trial.pauses, _PAUSES, is_optional=True)),
        tuple(_read(trial.processes, PROCESSES, is_optional=True)),
        tuple(_read(trial.ray, _RAY, is_optional=True)),
        tuple(_read(trial.device_samples, DEVICES, is_optional=True)) if with_samples else (),
        None if of_own_job else LogRecord.read(trial),
    )
    steps = [line.step for line in lines.steps]
    whole = sorted(line.step for line in lines.spans if line.device == CONTROLLER and line.phase == WHOLE_STEP)
    if not steps or steps != sorted(set(steps)):
        raise DamagedLaunchError(f"{trial.steps}: it does not have every step once, in order")
    if whole != steps:
        raise DamagedLaunchError(
            f"{trial.path}: {trial.steps.name} and {trial.spans.name} do not have the same steps, each once"
        )
    _check_devices(trial.spans, [line.device for line in lines.spans], {*devices, CONTROLLER})
    _check_devices(trial.kernels, [line.device for line in lines.kernels], devices)
    return lines


def parse_lines(lines: Iterable[bytes], line_type: TypeAdapter[LineT]) -> tuple[list[LineT], int]:
    """The lines of a launch that goes on, and how many there are besides that cannot be read."""
    read: list[LineT] = []
    damaged = 0
    for line in lines:
        try:
            read.append(line_type.validate_json(encodable_json(line)))
        except ValidationError:
            damaged += 1
    return read, damaged


def count_steps(trial: Trial) -> int:
    """How many steps a launch has on record; 0 where their file is damaged."""
    try:
        return sum(1 for _ in _read(trial.steps, STEPS, is_optional=True))
    except DamagedLaunchError:
        return 0


def _read(path: Path, line_type: TypeAdapter[LineT], *, is_optional: bool = False) -> Iterator[LineT]:
    """The lines of a file; what the writer, when it was killed, has not finished of the last one is dropped."""
    try:
        with open(path, "rb", opener=regular) as stream:
            for number, line in enumerate(stream, start=1):
                if line.endswith(b"\n"):
                    try:
                        yield line_type.validate_json(encodable_json(line))
                    except ValidationError as error:
                        raise _damaged(path, number, _in_words(error)) from None
    except FileNotFoundError as error:
        if not is_optional:
            raise DamagedLaunchError(f"{path}: {error.strerror}") from None
    except OSError as error:
        raise DamagedLaunchError(f"{path}: {error.strerror}") from None


def _check_devices(path: Path, found: list[str], known: Collection[str]) -> None:
    for number, device in enumerate(found, start=1):
        if device not in known:
            raise _damaged(path, number, f"device {shown(device)} is none of the placement's")


def _damaged(path: Path, number: int, what: str) -> DamagedLaunchError:
    return DamagedLaunchError(f"{path}, line {number}: {what}")


def _in_words(error: ValidationError) -> str:
    """What is wrong with a line, first of all."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    text = first["msg"].removeprefix("Value error, ")
    return f"{where}: {text}" if where else text
