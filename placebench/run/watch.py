"""What a launch is doing, read from the files that its job and its sampler write."""

import time
from dataclasses import dataclass

from placebench.errors import LaunchError
from placebench.record.folder import Trial
from placebench.record.progress import DeviceLoad, LaunchState, Progress
from placebench.record.tail import JsonlTail
from placebench.record.writing import append_jsonl, append_to
from placebench.spec.text import format_seconds

# What reading a file raises that something else has written.
NOT_AS_WRITTEN = (KeyError, TypeError, ValueError, AttributeError)
# Of the samples of a launch that has run for hours.
_RECENT_BYTES = 1 << 20


class DamagedFilesError(LaunchError):
    """A launch cannot be followed any more."""


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

    Args:
        trial: its folder.
        from_now: whether it has run for long, so that its first samples are of no interest.

    Attributes:
        pauses: a line on each time for which the launch was stopped.
    """

    def __init__(self, trial: Trial, *, from_now: bool = False) -> None:
        self._trial = trial
        self._steps = JsonlTail(trial.steps)
        self._samples = JsonlTail(trial.device_samples)
        if from_now:
            self._samples.skip_to_last(_RECENT_BYTES)
        self._step_times: list[float] = []
        self._loads: dict[str, DeviceLoad] = {}
        self._progress = Progress()
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
        self.pauses += (f"{stopped}: steps during which it was stopped are not compared",)

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
        progress = Progress.read(self._trial)
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
            stage=progress.stage,
            step=progress.step,
            running=progress.running,
            step_times=tuple(self._step_times),
            loads=tuple(self._loads.values()),
            elapsed_s=now - self._begun,
            silent_s=now - self._changed,
        )
