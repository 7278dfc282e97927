"""`launch.json`: what a launch has to run. Nothing else knows its keys, but that `launch_devices` reads one of them."""

from typing import Any

from pydantic import Field

from placebench.record.job_record import JobLaunch
from placebench.record.parts import ClusterRecord, DeviceRecord, LauncherName, PlacementRecord, RecordFile
from placebench.spec.bound import RunPlacement
from placebench.spec.launchers import RAY


class LaunchFile(RecordFile):
    """The content of `launch.json`."""

    round: int
    """The round of the launch, counted from 1."""
    placement: PlacementRecord
    devices: tuple[DeviceRecord, ...]
    """Devices of the placement, pool by pool."""
    workload: dict[str, Any] = Field(default_factory=dict)
    """The workload as the placement runs it; empty for a job of the user's."""
    job: JobLaunch | None = None
    """What a job of the user's starts; None for placebench's own."""
    ray_temp_dir: str
    """The folder of the launch's own Ray, or of its sockets."""
    cluster: ClusterRecord | None = None
    """The Ray cluster, or the nodes of a SLURM job, that the devices belong to; None for one host."""
    launcher: LauncherName = RAY
    sample_hz: float = 0.0
    """Device samples a second; 0 for none."""
    fork_server: str | None = None
    """The word of the server that its workers are forked from; None where they start as new interpreters."""
    step_timeout_s: float | None = None
    """Seconds without progress after which the launch is given up."""
    checkpoint_every: int | None = None
    """Steps from one checkpoint to the next; None for none."""
    resume_from: str | None = None
    """The checkpoint that it goes on from; None to begin."""

    @property
    def run_placement(self) -> RunPlacement:
        """The placement on its devices."""
        return self.placement.bound_to(self.devices)
