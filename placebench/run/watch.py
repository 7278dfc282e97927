"""What a launch is doing, read from the files that its job and its sampler write."""

import time
from dataclasses import dataclass
from typing import Any

from placebench.errors import LaunchError
from placebench.record.folder import JsonlTail, Trial, append_jsonl, append_to
from placebench.spec.text import format_seconds

# What reading a file raises that something else has written.
NOT_AS_WRITTEN = (KeyError, TypeError, ValueError, AttributeError)


class DamagedFilesError(LaunchError):
    """A launch cannot be followed any more."""


@dataclass(frozen=True)
class DeviceLoad:
    """A device's last sample."""

    device: str
    """The device's id."""
    util: float | None
    """Busy share, 0 to 1; None when the source does not know."""
    memory_bytes: int | None
    """Memory in use; None when the source does not know."""


@dataclass(frozen=True)
class LaunchState:
    """A launch as it stands now."""

    stage: str
    """What the job is doing: `step`, or a stage of starting and stopping; empty before it has said so."""
    step: int
    """The step it works on, counted from 1; 0 before the first."""
    running: tuple[str, ...]
    """Phases that run now."""
    step_times: tuple[float, ...]
    """Seconds of every finished step."""
    loads: tuple[DeviceLoad, ...]
    """The last sample of every device."""
    elapsed_s: float
    """Seconds since the launch began."""
    silent_s: float
    """Seconds since the job last showed progress."""


@dataclass(frozen=True)
class Pause:
    """A time for which a launch was stopped, on the host's monotonic clock."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.end - self.start


class TrialWatch:
    """Follows the files of a launch that runs.

    Attributes:
        pauses: a line on each time for which the launch was stopped.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._steps = JsonlTail(trial.steps)
        self._samples = JsonlTail(trial.device_samples)
        self._step_times: list[float] = []
        self._loads: dict[str, DeviceLoad] = {}
        self._progress: dict[str, Any] = {}
        self._begun = self._changed = time.monotonic()
        self.pauses: tuple[str, ...] = ()

    def leave_out(self, pause: Pause, doing: str) -> None:
        """Let a time for which the launch was stopped count as no part of it, and record it for those who compare.

        Args:
            pause: the time.
            doing: what the launch did when it was stopped.
        """
        self._begun += pause.seconds
        self._changed += pause.seconds
        with append_to(self._trial.pauses) as stream:
            append_jsonl(stream, {"start_mono": pause.start, "end_mono": pause.end})
        stopped = f"stopped for {format_seconds(pause.seconds)} by Ctrl-Z in {doing}"
        self.pauses += (f"{stopped}: steps of which that was a part are not compared",)

    def read(self) -> LaunchState:
        """The launch's state; finished steps and changes of phase count as progress, printed text does not.

        Raises:
            FileNotFoundError: the launch's folder is not there any more.
            DamagedFilesError: a file cannot be read, or holds what no job or sampler writes.
        """
        self._trial.path.stat()
        try:
            return self._read()
        except OSError as error:
            raise DamagedFilesError(f"{error.filename}: {error.strerror}: look at what the job does to it") from None
        except NOT_AS_WRITTEN as error:
            raise DamagedFilesError(
                f"a file of the launch holds what no job writes ({type(error).__name__}: {error}): look at what else"
                " writes into its folder"
            ) from None

    def _read(self) -> LaunchState:
        progress = self._trial.read_progress()
        steps = self._steps.read()
        now = time.monotonic()
        if steps or progress != self._progress:
            self._changed = now
        self._progress = progress
        self._step_times += [float(step["metrics"]["timing_s/step"]) for step in steps]
        for sample in self._samples.read():
            if sample["kind"] == "sample":
                device = str(sample["device"])
                self._loads[device] = DeviceLoad(device, sample["util"], sample["memory_bytes"])
        return LaunchState(
            stage=str(progress.get("stage", "")),
            step=int(progress.get("step", 0)),
            running=tuple(progress.get("running", ())),
            step_times=tuple(self._step_times),
            loads=tuple(self._loads.values()),
            elapsed_s=now - self._begun,
            silent_s=now - self._changed,
        )
