"""`run.json`: what a run is, on what it ran and how its launches went. Nothing else knows its keys."""

from collections.abc import Mapping
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from placebench.errors import UsageError
from placebench.record.folder import SCHEMA_VERSION, RunFolder, Status
from placebench.record.job_record import JobRecord
from placebench.record.parts import (
    Bytes,
    ClusterRecord,
    DeviceRecord,
    LauncherName,
    PlacementRecord,
    Record,
    RecordFile,
    Seconds,
    Steps,
    Time,
)
from placebench.record.writing import write_json
from placebench.spec.auto_rounds import LEAST_PRECISION, MOST_ROUNDS, MOST_STEPS, AutoRounds, steps_in_round
from placebench.spec.bound import RunPlacement
from placebench.spec.launchers import RAY
from placebench.spec.legible import shown
from placebench.spec.reading import parse_json, refuse_pipe
from placebench.spec.shapes import PRESETS, JobShapes
from placebench.spec.text import slug
from placebench.spec.workload import MOST
from placebench.spec.workload_reading import wrong_values

Rounds = Annotated[int, Field(ge=1, le=MOST_ROUNDS)]


class Resumption(Record):
    """One start of a run after its first."""

    started: Time
    """When it was started."""
    command: tuple[str, ...]


class PlannedPlacement(PlacementRecord):
    """A placement, and what it was expected to need."""

    memory_estimate_bytes: dict[str, Bytes] = Field(default_factory=dict)
    """The most memory that a device of each pool was expected to use, for pools where that is known."""


class LaunchWall(Record):
    """Where the wall time of a launch went, in seconds; None where it did not come that far."""

    total_s: Seconds
    """Time from the first process to the last one gone."""
    before_steps_s: float | None = None
    """Time up to the start of the first step: imports, Ray, models."""
    steps_s: float | None = None
    """Time from the start of the first step to the end of the last finished one."""
    after_steps_s: float | None = None
    """Time from there to the end of the job."""
    cleanup_s: Seconds
    """Time from there to the end of its sampler and of whatever the job has left."""


class LaunchRecord(Record):
    """How a launch went."""

    round: Rounds
    placement: str
    trial: str
    """Its folder, relative to the run's."""
    status: Status
    wall: LaunchWall
    other_runs: Annotated[int, Field(ge=0)] = 0
    """Other runs of the user's that were seen on this host when it started or ended; early versions did not look."""


class RunWall(Record):
    """Where the wall time of a run went, in seconds, earlier starts of it included."""

    total_s: Seconds = 0.0
    launches_s: Seconds = 0.0
    outside_launches_s: float = 0.0


class StartCheckpoint(Record):
    """The checkpoint that every launch of the run went on from."""

    checkpoint: str
    """The folder of the checkpoint."""
    step: Steps
    """The last step that is in it."""


def _a_list(entries: object) -> object:
    if not isinstance(entries, list | tuple):
        raise ValueError(f"resumptions: {shown(entries)} is not a list")
    return entries


def _a_shape(shapes: JobShapes) -> JobShapes:
    for shape in filter(None, (shapes.actor, shapes.critic, shapes.reward)):
        numbers = [value for value in asdict(shape).values() if type(value) is int or type(value) is float]
        if not all(0 < number <= MOST for number in numbers):
            raise ValueError("models: a size that no model has")
    return shapes


def _a_precision(auto: AutoRounds) -> AutoRounds:
    if not (LEAST_PRECISION <= auto.precision < 1 and 2 <= auto.max_rounds <= MOST_ROUNDS):
        raise ValueError(f"auto: neither a precision of {auto.precision:g} nor {auto.max_rounds:.3g} rounds can be")
    if auto.choice and not 1 <= auto.choice.measured <= MOST_STEPS:
        raise ValueError(f"auto: {auto.choice.measured:.3g} measured steps cannot be")
    return auto


def _a_host(content: object) -> object:
    _Host.model_validate(content)
    return content


class _Gpu(Record):
    index: Steps
    name: str | None = None
    uuid: str | None = None
    pci: str | None = None
    memory_bytes: Bytes | None = None


class _Host(Record):
    """The facts of a host that readers look into; what else there is is shown as it is."""

    hostname: str | None = None
    usable_cores: tuple[Steps, ...] = ()
    memory_bytes: Bytes | None = None
    gpus: tuple[_Gpu, ...] = ()
    gpu_links: tuple[tuple[str | None, ...], ...] | None = None
    unreadable_gpus: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _links_are_of_gpus(self) -> Self:
        if self.gpu_links and {len(self.gpu_links), *map(len, self.gpu_links)} != {len(self.gpus)}:
            raise ValueError("gpu_links does not have a row and a column for each of the gpus")
        return self


HostRecord = Annotated[dict[str, Any], AfterValidator(_a_host)]


def _a_workload(content: dict[str, Any]) -> dict[str, Any]:
    if wrong := next(iter(wrong_values(content)), None):
        raise ValueError(f"workload.{wrong}")
    return content


WorkloadRecord = Annotated[dict[str, Any], AfterValidator(_a_workload)]


class RunFile(RecordFile):
    """The content of `run.json`."""

    name: str
    status: Status
    command: tuple[str, ...]
    """The command line that started it."""
    resumptions: Annotated[tuple[Resumption, ...], BeforeValidator(_a_list)] = ()
    started: Time
    """When the run was started."""
    ended: Time | None
    rounds: Rounds
    calibrates: bool = False
    """Whether it compares its only placement with itself."""
    steps: Annotated[Steps, Field(ge=1)]
    """The number of a launch's last step, but of rounds for which `auto` has another."""
    warmup_steps: Steps
    sample_hz: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Device samples a second; 0 for none."""
    launcher: LauncherName = RAY
    checkpoint_every: Annotated[Steps, Field(ge=1)] | None = None
    """Steps from one checkpoint of a launch to the next; None for none."""
    resumed_from: StartCheckpoint | None = None
    workload: WorkloadRecord = Field(default_factory=dict)
    """The workload as the version that wrote it understood it: see `workload_reading`; none of a job of the user's."""
    job: JobRecord | None = None
    """The job of the user's that was run; None for placebench's own."""
    models: Annotated[JobShapes, AfterValidator(_a_shape)] | None = None
    """Shapes of the job's models, so that a report needs neither folder nor hub; None where they are not known."""
    hub_models: tuple[str, ...] = ()
    """Models of the workload that the hub has; early versions did not record which they are."""
    placements: Annotated[tuple[PlannedPlacement, ...], Field(min_length=1)]
    """The placements in the order in which they were given."""
    devices: tuple[DeviceRecord, ...]
    host: HostRecord
    """What the host is: see `devices.host_record`."""
    cluster: ClusterRecord | None = None
    """The Ray cluster, or the nodes of a SLURM job, that the devices belong to; None for one host."""
    versions: dict[str, str | None]
    """Versions of what decides over timings; None for a package that was not installed."""
    git: dict[str, Any] | None
    """Commit of the source tree that placebench ran from and whether files differed; None when it was none."""
    order: tuple[tuple[str, ...], ...]
    """Names of the placements by round."""
    launches: tuple[LaunchRecord, ...]
    """Launches that have come to an end."""
    wall: RunWall
    auto: Annotated[AutoRounds, AfterValidator(_a_precision)] | None = None
    """When rounds are added and when that ends; None for a fixed number."""
    min_effect: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Smallest effect of interest, as a fraction; None for the comparison's default."""

    @model_validator(mode="before")
    @classmethod
    def _with_shapes(cls, content: object) -> object:
        """What an older version wrote, with the shapes of presets, which it did not record."""
        if not isinstance(content, dict) or "models" in content or not isinstance(content.get("workload"), dict):
            return content
        workload = content["workload"]
        actor = PRESETS.get(workload.get("model"))
        critic = PRESETS.get(workload.get("critic_model") or workload.get("model"))
        return content | {"models": JobShapes(actor, critic) if actor and critic else None}

    @model_validator(mode="after")
    def _says_what_was_run(self) -> Self:
        if self.job is None and "workload" not in self.model_fields_set:
            raise KeyError("workload")
        return self

    @model_validator(mode="after")
    def _places_known_devices(self) -> Self:
        known = {device.id for device in self.devices}
        for name in (name for one in self.placements for names in one.pools.values() for name in names):
            if name not in known:
                raise ValueError(f"device {shown(name)} of a placement is none of the run's")
        if len(known) < len(self.devices):
            raise ValueError("two of the devices have one id")
        return self

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        names = [placement.name for placement in self.placements]
        if len({slug(name) for name in names}) < len(names):
            raise ValueError("two of the placements have one name")
        if strange := {*chain(*self.order), *(one.placement for one in self.launches)} - {*names}:
            raise ValueError(f"order and launches name {shown(sorted(strange)[0])}, which is none of the placements")
        if self.warmup_steps + self.steps_before >= self.steps:
            raise ValueError(f"{self.warmup_steps} warm-up steps leave none of {self.steps} steps")
        return self

    @property
    def run_placements(self) -> tuple[RunPlacement, ...]:
        """The placements on their devices."""
        return tuple(placement.bound_to(self.devices) for placement in self.placements)

    @property
    def work(self) -> dict[str, Any]:
        """What a launch did, all that must be equal for times to be comparable: its workload, or the user's job."""
        return self.workload or {"job": self.job.spec if self.job else {}}

    def steps_in(self, number: int) -> int:
        """The number of the last step of the launches of a round."""
        return steps_in_round(self.auto, number, self.steps, self.warmup_steps + self.steps_before)

    @property
    def steps_before(self) -> int:
        """Number of the last step that is in the checkpoint which the launches went on from; else 0."""
        return self.resumed_from.step if self.resumed_from else 0

    @property
    def launches_s(self) -> float:
        """Seconds of all launches so far."""
        return sum(launch.wall.total_s for launch in self.launches)

    def launches_but(self, round_number: int, placement: str) -> tuple[LaunchRecord, ...]:
        """All launches but one."""
        return tuple(one for one in self.launches if (one.round, one.placement) != (round_number, placement))

    def memory_estimates(self, placement: str) -> Mapping[str, int]:
        """The most memory that a device of each pool of a placement was expected to use, bytes; of those known."""
        return next((one.memory_estimate_bytes for one in self.placements if one.name == placement), {})


def recorded_version(content: object) -> int | None:
    """The version of the schema of an object of JSON; None where it says none, as `run.json` always does."""
    version = content.get("schema_version") if isinstance(content, dict) else None
    return version if isinstance(version, int) else None


def read_run_file(folder: RunFolder) -> RunFile:
    """Read the `run.json` of a folder that the user has named.

    Raises:
        UsageError: there is no such folder, it is not a run's, its schema is newer, or `run.json` is damaged.
    """
    refuse_pipe(folder.run_file)
    try:
        content = parse_json(folder.run_file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if folder.lacks_raw_files:
            raise UsageError(
                f"{folder.path}: there is no run.json in it: it was shared without its raw files, and only show,"
                " report, compare, predict --from and search --from can use its summary.json"
            ) from None
        what = "there is no run.json in it" if folder.path.is_dir() else "there is no such folder"
        raise UsageError(f"{folder.path}: {what}; name the folder of a run, such as runs/<time>-<name>") from None
    except NotADirectoryError:
        raise UsageError(f"{folder.path} is a file; name the folder of a run, such as runs/<time>-<name>") from None
    except OSError as error:
        raise UsageError(f"{folder.run_file}: cannot read it: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{folder.run_file}: cannot read it as JSON: {error}") from None
    version = recorded_version(content)
    if version is None:
        raise UsageError(f"{folder.run_file}: it has no schema_version, so it is not a run of placebench")
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"{folder.run_file}: written by a newer placebench (schema {version}, this one reads {SCHEMA_VERSION}):"
            " upgrade placebench"
        )
    try:
        return RunFile.parse(content)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"{folder.run_file}: not as placebench writes it: {what}") from None


def replace_status(path: Path, old: Status, new: Status) -> None:
    """Write another status into a `run.json` that says the old one, and leave the rest as it is.

    Raises:
        OSError, ValueError, KeyError: it cannot be read or written, or is damaged.
    """
    content = parse_json(path.read_text(encoding="utf-8"))
    if content["status"] == old:
        write_json(path, content | {"status": str(new)})
