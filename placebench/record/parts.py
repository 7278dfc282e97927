"""What `run.json` and `launch.json` both hold: devices, placements, the cluster."""

from collections.abc import Sequence
from typing import Annotated, Any, Protocol, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, PlainValidator, ValidationError

from placebench.spec.bound import RunPlacement
from placebench.spec.devices import Device, device_from_dict, device_to_dict
from placebench.spec.launchers import LAUNCHERS
from placebench.spec.placement import Overlap, Placement, Pool, Role, Scaling


def _device(content: Any) -> Device:
    return content if isinstance(content, Device) else device_from_dict(content)


DeviceRecord = Annotated[Device, PlainValidator(_device), PlainSerializer(device_to_dict)]


def _known_launcher(name: object) -> object:
    if name not in LAUNCHERS:
        raise ValueError(f"launcher {name!r}")
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
        asked = placement.placement
        return cls(
            name=asked.name,
            roles=dict(asked.roles),
            overlap=asked.overlap,
            staleness=asked.staleness,
            inflight_updates=asked.inflight_updates,
            tensor_parallel=asked.tensor_parallel,
            scaling=asked.scaling,
            pools=dict(placement.pools),
            **more,
        )

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
        placement = Placement(
            self.name,
            pools,
            self.roles,
            self.overlap,
            self.staleness,
            self.inflight_updates,
            self.tensor_parallel,
            self.scaling,
        )
        return RunPlacement(placement, members)


class SupportsToDict(Protocol):
    """A description of a cluster by `sessions`."""

    def to_dict(self) -> dict[str, Any]:
        """As an object of JSON."""


class ClusterRecord(Record):
    """The Ray cluster, or the nodes of a SLURM job, as `sessions` describes it."""

    model_config = ConfigDict(extra="allow")

    address: str

    @classmethod
    def of(cls, cluster: SupportsToDict | None) -> Self | None:
        """The record of a cluster; None for none."""
        return None if cluster is None else cls(**cluster.to_dict())


def plain_error(error: ValidationError) -> KeyError | ValueError:
    """What is wrong with a record, as an error of one line: the key that is missing, or the first wrong value."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "missing":
        return KeyError(first["loc"][-1])
    if first["type"] == "value_error":
        return ValueError(str(first["ctx"]["error"]))
    where = ".".join(str(part) for part in first["loc"])
    return ValueError(f"{where}: {first['msg']}, not {first['input']!r:.100}")
