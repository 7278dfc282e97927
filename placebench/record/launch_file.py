"""`launch.json`: what a launch has to run. Nothing else knows its keys, but that `launch_devices` reads one of them."""

from typing import Any

from pydantic import ConfigDict, ValidationError

from placebench.record.folder import Trial, write_json
from placebench.record.parts import ClusterRecord, DeviceRecord, LauncherName, PlacementRecord, Record, plain_error
from placebench.spec.bound import RunPlacement
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
