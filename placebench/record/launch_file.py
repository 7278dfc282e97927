"""`launch.json`: what a launch has to run. Nothing else knows its keys."""

from typing import Any

from pydantic import ConfigDict, ValidationError

from placebench.errors import UsageError
from placebench.record.folder import Trial, write_json
from placebench.record.parts import ClusterRecord, DeviceRecord, LauncherName, PlacementRecord, Record, plain_error
from placebench.spec.bound import RunPlacement
from placebench.spec.devices import Device, device_from_dict
from placebench.spec.launchers import RAY
from placebench.spec.reading import parse_json


class LaunchFile(Record):
    """The content of `launch.json`."""

    model_config = ConfigDict(extra="allow")

    schema_version: int
    round: int
    """Counted from 1."""
    placement: PlacementRecord
    devices: tuple[DeviceRecord, ...]
    """Those of the placement, pool by pool."""
    workload: dict[str, Any]
    """As the placement runs it."""
    ray_temp_dir: str
    """The folder of the launch's own Ray, or of its sockets."""
    cluster: ClusterRecord | None = None
    """The Ray cluster, or the nodes of a SLURM job, that the devices belong to; None for one host."""
    launcher: LauncherName = RAY
    sample_hz: float = 0.0
    """Device samples a second; 0 for none."""
    step_timeout_s: float | None = None
    """Seconds without progress after which the launch is given up."""
    checkpoint_every: int | None = None
    """Steps from one checkpoint to the next; None for none."""
    resume_from: str | None = None
    """The checkpoint that it goes on from; None to begin."""

    @classmethod
    def read(cls, trial: Trial) -> "LaunchFile":
        """Read what a launch has to run.

        Raises:
            OSError, KeyError, TypeError, ValueError, UsageError: it cannot be read, or is not as placebench writes it.
        """
        try:
            return cls.model_validate(parse_json(trial.launch_file.read_text(encoding="utf-8")))
        except ValidationError as error:
            raise plain_error(error) from None

    def write(self, trial: Trial) -> None:
        """Write the file."""
        write_json(trial.launch_file, self.model_dump(mode="json"))

    @property
    def run_placement(self) -> RunPlacement:
        """The placement on its devices."""
        return self.placement.bound_to(self.devices)


def launch_devices(trial: Trial) -> tuple[Device, ...]:
    """The devices of a launch, whatever else its `launch.json` says.

    Raises:
        UsageError: `launch.json` cannot be read or names no devices.
    """
    path = trial.launch_file
    try:
        entries = parse_json(path.read_text(encoding="utf-8"))["devices"]
    except OSError as error:
        raise UsageError(f"{path}: cannot read it: {error.strerror}") from None
    except (KeyError, TypeError, ValueError):
        raise UsageError(f"{path}: not the description of a launch: no object with devices in it") from None
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(f"{path}: devices must be a list of at least one device")
    try:
        return tuple(device_from_dict(entry) for entry in entries)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
