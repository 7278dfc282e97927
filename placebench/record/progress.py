"""What a launch is doing, as `progress.json` says it; how far the run is, and how long it will still take."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Self

from pydantic import ValidationError

from placebench.errors import UsageError
from placebench.record.folder import IN_STEP, RunFolder, Status, Trial
from placebench.record.parts import Record, plain_error
from placebench.record.run_file import LaunchWall, RunFile
from placebench.record.writing import write_atomically
from placebench.spec.auto_rounds import MOST_STEPS
from placebench.spec.devices import device_labels
from placebench.spec.reading import parse_json, read_text

# More than a step has on many devices; engines that begin and end all the time have no limit.
MOST_TIMES = 1000
# Characters; no job writes so many.
_LONGEST = 1 << 20


class PhaseTime(Record):
    """When a phase ran in the step under way; seconds of the controller's monotonic clock."""

    phase: str
    start: float
    end: float | None = None
    """None while it goes on."""
    devices: tuple[str, ...] | None = None
    """Ids of the devices on which it was seen; None where those of its pool work on it."""


class Progress(Record):
    """The content of `progress.json`, which the job replaces at every change of phase."""

    stage: str = ""
    """What the job is doing: `step`, or a stage of starting and stopping; empty before it has said so."""
    step: int = 0
    """The step it works on, counted from 1; 0 before the first."""
    steps: int = 0
    """Number of the last step."""
    running: tuple[str, ...] = ()
    """Phases that run now."""
    phases: tuple[PhaseTime, ...] = ()
    """Those of the step so far, in the order in which they began."""
    wall: float | None = None
    """When it was written, seconds since the epoch."""
    mono: float | None = None
    """The same moment on the controller's monotonic clock."""

    @classmethod
    def read(cls, trial: Trial) -> Self:
        """What the job was doing last; nothing before it has said so, and of a file that holds no object.

        Raises:
            KeyError, ValueError: the object is none that a job writes; one line says why.
        """
        try:
            content = dict(parse_json(read_text(trial.progress, at_most=_LONGEST)))
        except (UsageError, ValueError, TypeError):
            return cls()
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise plain_error(error) from None

    def write(self, trial: Trial) -> None:
        """Replace the file, with the time of now."""
        now = {"wall": time.time(), "mono": time.monotonic()}
        write_atomically(trial.progress, json.dumps(self.model_dump(mode="json", exclude_none=True) | now))


class PhaseClock:
    """Notes when the phases of the step under way begin and end."""

    def __init__(self) -> None:
        self._step = 0
        self._times: list[PhaseTime] = []

    def times(self, step: int, running: Sequence[str]) -> tuple[PhaseTime, ...]:
        """The phases of a step so far, where some run from now on and no others."""
        now = time.monotonic()
        if step != self._step:
            self._step, self._times = step, [one for one in self._times if one.phase in running and one.end is None]
        for place, one in enumerate(self._times):
            if one.end is None and one.phase not in running:
                self._times[place] = one.model_copy(update={"end": now})
        going_on = {one.phase for one in self._times if one.end is None}
        self._times += [PhaseTime(phase=phase, start=now) for phase in running if phase not in going_on]
        self._times = self._times[-MOST_TIMES:]
        return tuple(self._times)


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
    step_times: Sequence[float]
    """Seconds of every finished step."""
    loads: tuple[DeviceLoad, ...]
    """The last sample of every device."""
    elapsed_s: float
    """Seconds since the launch began."""
    silent_s: float
    """Seconds since the job last showed progress."""


@dataclass(frozen=True)
class LaunchPosition:
    """Which launch of the run it is."""

    number: int
    """Number of the launch, counted from 1."""
    total: int
    """Launches of the run."""
    round: int
    """Number of the round, counted from 1."""
    rounds: int
    """Rounds of the run."""
    placement: str
    """The placement's name."""
    steps: int
    """Number of the last step."""
    labels: Mapping[str, str]
    """What people see of each of its devices, by id: see `device_labels`."""
    steps_before: int = 0
    """Number of the last step that is in the checkpoint it goes on from."""
    is_estimate: bool = False
    """Whether `total` and `rounds` are expected, as with `--rounds auto`."""

    @property
    def of_total(self) -> str:
        """The launches of the run, `about 14` where that is an estimate."""
        return f"about {self.total}" if self.is_estimate else str(self.total)


def time_left(
    finished: Mapping[str, Sequence[LaunchWall]],
    placement: str,
    state: LaunchState,
    steps: int,
    remaining: Sequence[str],
) -> float | None:
    """Seconds until the end of the run's launches, from what this run has measured so far.

    The launch that runs needs its remaining steps at the median of its own, and the mean time that finished
    launches took after their steps; before its first step, what a finished launch of its placement (else of any)
    took. A remaining launch takes the mean of its placement, else as long as the one that runs.

    Args:
        finished: every finished launch, by placement.
        placement: of the launch that runs.
        state: of that launch.
        steps: that a launch runs.
        remaining: placements of the launches after it.

    Returns:
        None while there is nothing to go by: no step and no launch has finished; and where steps have no end.
    """
    walls = [wall for of_placement in finished.values() for wall in of_placement]
    means = {name: fmean(wall.total_s for wall in walls) for name, walls in finished.items() if walls}
    typical = means.get(placement, fmean(means.values()) if means else None)
    if steps >= MOST_STEPS:
        return None
    if state.step_times:
        after = fmean((wall.after_steps_s or 0.0) + wall.cleanup_s for wall in walls) if walls else 0.0
        current = (steps - len(state.step_times)) * median(state.step_times) + after
    elif typical is not None:
        current = max(0.0, typical - state.elapsed_s)
    else:
        return None
    another = typical if typical is not None else state.elapsed_s + current
    return current + sum(means.get(name, another) for name in remaining)


def activity(state: LaunchState, steps: int) -> str:
    """What the launch is doing now, for people."""
    if state.stage != IN_STEP:
        return state.stage or "start"
    phases = " + ".join(state.running)
    return step_of(state.step, steps) + (f": {phases}" if phases else "")


def step_of(step: int, steps: int) -> str:
    """`step 4/8`, or `step 4` where a launch lasts until its command ends."""
    return f"step {step}" if steps >= MOST_STEPS else f"step {step}/{steps}"


def position_of(record: RunFile, round_number: int, placement: str) -> LaunchPosition:
    """Which launch of its run one is, by its round and placement."""
    order = launch_order(record)
    return LaunchPosition(
        number=order.index((round_number, placement)) + 1,
        total=len(order),
        round=round_number,
        rounds=record.rounds,
        placement=placement,
        steps=record.steps_in(round_number),
        labels=device_labels(record.devices),
        steps_before=record.steps_before,
        is_estimate=record.auto is not None,
    )


def launch_order(record: RunFile) -> list[tuple[int, str]]:
    """The launches of a run, as round and placement, in the order in which they start."""
    return [(number, name) for number, names in enumerate(record.order, start=1) for name in names]


def running_launch(folder: RunFolder, record: RunFile) -> tuple[int, str] | None:
    """The launch of a run that runs, as its `status` file says, as round and placement; None where none does."""
    running = [launch for launch in launch_order(record) if folder.trial(*launch).stands_at(Status.RUNNING)]
    return running[-1] if running else None


def run_left(record: RunFile, round_number: int, placement: str, state: LaunchState) -> float | None:
    """Seconds until the end of a run's launches, by its record and the launch that goes on; see `time_left`."""
    finished: dict[str, list[LaunchWall]] = {}
    for launch in record.launches:
        if launch.status is Status.DONE:
            finished.setdefault(launch.placement, []).append(launch.wall)
    order = launch_order(record)
    later = [name for _, name in order[order.index((round_number, placement)) + 1 :]]
    return time_left(finished, placement, state, record.steps_in(round_number) - record.steps_before, later)
