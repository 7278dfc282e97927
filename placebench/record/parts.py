"""What `run.json` and `launch.json` have in common: how they are read and written, devices, placements, the cluster."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    model_validator,
)

from placebench.errors import UsageError
from placebench.record.writing import write_json
from placebench.spec.bound import RunPlacement
from placebench.spec.devices import Device, device_from_dict, device_to_dict
from placebench.spec.launchers import LAUNCHERS
from placebench.spec.legible import shown
from placebench.spec.placement import Overlap, Placement, Pool, Role, Scaling
from placebench.spec.reading import parse_json
from placebench.spec.workload import MOST


def _device(content: Any) -> Device:
    if isinstance(content, Device):
        return content
    if not isinstance(content, dict):
        raise ValueError(f"{shown(content)} is not a device")
    device = device_from_dict(content)
    if not (
        0 <= device.index <= MOST and 0 < device.memory_bytes <= 2**60 and all(0 <= c <= MOST for c in device.cores)
    ):
        raise ValueError(f"device {shown(device.id)} has an index, memory or cores that no device has")
    return device


DeviceRecord = Annotated[Device, PlainValidator(_device), PlainSerializer(device_to_dict)]


def _known_launcher(name: object) -> object:
    if name not in LAUNCHERS:
        raise ValueError(f"launcher {shown(name)}")
    return name


LauncherName = Annotated[str, BeforeValidator(_known_launcher)]


class Record(BaseModel):
    """A part of a record; what a later version of the schema added has defaults, for files from before."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


# A century of seconds, and more steps or bytes than anything has.
Seconds = Annotated[float, Field(ge=0, le=3.2e9)]
Steps = Annotated[int, Field(ge=0, le=MOST)]
Bytes = Annotated[int, Field(ge=0, le=2**60)]


def _in_a_year(text: str) -> str:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{shown(text)} is not a time in ISO 8601") from None
    if when.year < 1970:  # there is none after 9999 in ISO 8601
        raise ValueError(f"{shown(text)} is before 1970")
    return text


Time = Annotated[str, AfterValidator(_in_a_year)]
"""ISO 8601."""


class PlacementRecord(Record):
    """A placement, its devices by id."""

    name: Annotated[str, Field(min_length=1)]
    roles: dict[Annotated[Role, BeforeValidator(lambda name: Role(name))], str]
    overlap: Annotated[Overlap, BeforeValidator(lambda name: Overlap(name))]
    staleness: Steps = 0
    inflight_updates: bool = False
    tensor_parallel: Annotated[int, Field(ge=1, le=MOST)] | None = None
    scaling: Scaling | None = None
    pools: Annotated[dict[str, Annotated[tuple[str, ...], Field(min_length=1)]], Field(min_length=1)]

    @model_validator(mode="after")
    def _roles_live_in_pools(self) -> Self:
        for role, pool in self.roles.items():
            if pool not in self.pools:
                raise ValueError(f"placement {shown(self.name)}: the pool {shown(pool)} of {role} is none of its pools")
        # Without any role it is a job of the user's that says itself what it puts where.
        if self.roles and (missing := [role for role in (Role.ACTOR, Role.ROLLOUT) if role not in self.roles]):
            raise ValueError(f"placement {shown(self.name)}: {missing[0]} lives in no pool")
        devices = [device for names in self.pools.values() for device in names]
        if len(set(devices)) < len(devices):
            raise ValueError(f"placement {shown(self.name)}: a device of it is in two pools")
        return self

    @classmethod
    def of(cls, placement: RunPlacement, **more: Any) -> Self:
        """The record of a placement, with what a subclass has besides."""
        return cls(**asdict(placement.placement) | {"pools": placement.pools} | more)

    def bound_to(self, devices: Sequence[Device]) -> RunPlacement:
        """The placement, its pools counted by node.

        Args:
            devices: all that the run has.

        Raises:
            KeyError: a pool has a device that is none of them.
        """
        nodes = list(dict.fromkeys(device.node for device in devices))
        by_id = {device.id: device for device in devices}
        members = {pool: tuple(by_id[name] for name in names) for pool, names in self.pools.items()}
        pools = tuple(
            Pool(pool, tuple(sum(device.node == node for device in taken) for node in nodes))
            for pool, taken in members.items()
        )
        asked = {name: getattr(self, name) for name in PlacementRecord.model_fields} | {"pools": pools}
        return RunPlacement(Placement(**asked), members)


class ClusterRecord(Record):
    """The Ray cluster, or the nodes of a SLURM job, as `sessions` describes it."""

    model_config = ConfigDict(extra="allow")

    address: str


class RecordFile(Record):
    """A record that is a file of its own; what it does not know is kept as it is."""

    model_config = ConfigDict(extra="allow")

    schema_version: int

    @classmethod
    def parse(cls, content: object) -> Self:
        """The record of an object of JSON, of this version or an older one.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: it is not such an object; one line says why.
        """
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise plain_error(error) from None
        except UsageError as error:
            raise ValueError(str(error)) from None

    @classmethod
    def read(cls, path: Path) -> Self:
        """The record of a file; see `parse`.

        Raises:
            OSError: it cannot be read.
        """
        return cls.parse(parse_json(path.read_text(encoding="utf-8")))

    def write(self, path: Path) -> None:
        """Replace the file."""
        write_json(path, self.model_dump(mode="json"))


def plain_error(error: ValidationError) -> KeyError | ValueError:
    """What is wrong with a record, as an error of one line: the key that is missing, or the first wrong value."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "missing":
        return KeyError(first["loc"][-1])
    if first["type"] == "value_error":
        return ValueError(str(first["ctx"]["error"]))
    where = ".".join(str(part) for part in first["loc"])
    return ValueError(f"{where and f'{where}: '}{first['msg']}, not {shown(first['input'])}")
