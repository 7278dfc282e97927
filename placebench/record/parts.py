"""What `run.json` and `launch.json` have in common: how they are read and written, devices, placements, the cluster."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, PlainValidator, ValidationError

from placebench.errors import UsageError
from placebench.record.folder import write_json
from placebench.spec.bound import RunPlacement
from placebench.spec.devices import Device, device_from_dict, device_to_dict
from placebench.spec.launchers import LAUNCHERS
from placebench.spec.legible import shown
from placebench.spec.placement import Overlap, Placement, Pool, Role, Scaling
from placebench.spec.reading import parse_json


def _device(content: Any) -> Device:
    return content if isinstance(content, Device) else device_from_dict(content)


DeviceRecord = Annotated[Device, PlainValidator(_device), PlainSerializer(device_to_dict)]


def _known_launcher(name: object) -> object:
    if name not in LAUNCHERS:
        raise ValueError(f"launcher {shown(name)}")
    return name


LauncherName = Annotated[str, BeforeValidator(_known_launcher)]


class Record(BaseModel):
    """A part of a record; what a later version of the schema added has defaults, for files from before."""

    model_config = ConfigDict(frozen=True)


class PlacementRecord(Record):
    """A placement, its devices by id."""

    name: str
    roles: dict[Annotated[Role, BeforeValidator(Role)], str]
    overlap: Annotated[Overlap, BeforeValidator(Overlap)]
    staleness: int = 0
    inflight_updates: bool = False
    tensor_parallel: int | None = None
    scaling: Scaling | None = None
    pools: dict[str, tuple[str, ...]]

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
            raise _plain_error(error) from None
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


def _plain_error(error: ValidationError) -> KeyError | ValueError:
    """What is wrong with a record, as an error of one line: the key that is missing, or the first wrong value."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "missing":
        return KeyError(first["loc"][-1])
    if first["type"] == "value_error":
        return ValueError(str(first["ctx"]["error"]))
    where = ".".join(str(part) for part in first["loc"])
    return ValueError(f"{where}: {first['msg']}, not {shown(first['input'])}")
