"""What the files of one launch tell: the steps of any, and all of the one that runs."""

import math
import time
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from placebench.compare.read.warmup import find_warmup
from placebench.record.folder import Trial
from placebench.record.launch_lines import (
    DEVICES,
    PROCESSES,
    SPANS,
    STEPS,
    ErrorLine,
    ProcessesLine,
    ProcessLine,
    SampleLine,
    SpanLine,
    StepLine,
    parse_lines,
)
from placebench.record.progress import Progress
from placebench.serve.files import PlainTail, is_plain, spread_lines
from placebench.serve.series import Series
from placebench.spec.bound import RunPlacement
from placebench.spec.legible import visible
from placebench.spec.phases import PHASE, STEP
from placebench.telemetry.samples import CLOCK_LIMITS
from placebench.telemetry.spans import CONTROLLER

STEP_COLUMNS = ("seconds", "tokens_s")
DEVICE_COLUMNS = ("load", "memory", "power", "clock")
QUEUE_COLUMNS = ("waiting", "most", "trainer_tokens_s", "engine_tokens_s", "lag", "dropped")
# Points that are kept of each series.
MOST_POINTS = 400
# A longer file is not read from its start: its history is taken from places all over it.
LONG_BYTES = 8 << 20
_PLACES, _PLACE_BYTES = 60, 1 << 16
_TAIL_BYTES = 1 << 20
MOST_SPANS = 6000
MOST_LOG_LINES = 1000
# Characters of a line of the log: one of a step of placebench's own has some 2,000.
_LOG_BYTES, _LOG_WIDTH = 1 << 16, 8000


class LaunchSteps:
    """The steps of a launch.

    Args:
        trial: its folder.
        round_number: its round.
        placement: its placement's name.
        most: points that are kept of its steps.
        begun: tells the launch from an earlier try in a folder of the same name.

    Attributes:
        seconds: of every step, until the launch is over.
        steps: how many there are.
        last: number of the last one.
        step_time: the median of its steps behind the warm-up, once it is over, seconds; NaN without one.
        warmup: how many first steps are its warm-up, likewise.
        metrics: of the last step.
        damaged: lines that could not be read.
    """

    def __init__(self, trial: Trial, round_number: int, placement: str, most: int, begun: object) -> None:
        self.trial, self.round, self.placement, self.begun = trial, round_number, placement, begun
        self.series = Series(STEP_COLUMNS, most)
        self.seconds = array("d")
        self.steps = self.last = self.damaged = 0
        self.step_time, self.warmup, self.is_over = math.nan, 0, False
        self.metrics: Mapping[str, float] = {}
        self._tail: PlainTail | None = PlainTail(trial.steps)

    @property
    def behind(self) -> int:
        """Bytes that are not read yet."""
        return self._tail.behind if self._tail else 0

    def read(self) -> list[StepLine]:
        """The next steps."""
        if self._tail is None:
            return []
        lines, damaged = parse_lines(self._tail.read_lines(), STEPS)
        self.damaged += damaged
        for line in lines:
            seconds = line.metrics.get(f"timing_s/{STEP}", math.nan)
            tokens = line.metrics.get("perf/total_num_tokens", math.nan)
            rate = tokens / seconds if seconds > 0 else math.nan
            self.series.append(line.step, {"seconds": seconds, "tokens_s": rate})
            self.seconds.append(seconds)
            self.last, self.metrics = line.step, line.metrics
        self.steps += len(lines)
        return lines

    def close(self, least_warmup: int) -> None:
        """Sum the launch up and let its files be: it is over, and all of them is read."""
        seconds = np.array(self.seconds, dtype=np.float64)
        self.warmup = find_warmup(seconds, least_warmup) if len(seconds) else 0
        known = seconds[self.warmup :]
        self.step_time = median(known[np.isfinite(known)].tolist() or [math.nan])
        self.seconds, self._tail, self.is_over = array("d"), None, True


@dataclass
class DeviceState:
    """A device of the launch that runs."""

    history: Series = field(default_factory=lambda: Series(DEVICE_COLUMNS, MOST_POINTS))
    last: SampleLine | None = None
    processes: ProcessesLine | None = None
    error: str | None = None


class LaunchFiles:
    """All files of the launch that runs, or ran last.

    Args:
        steps: the reader of its steps.
        placement: its placement on its devices.
    """

    def __init__(self, steps: LaunchSteps, placement: RunPlacement) -> None:
        self.steps, self.placement = steps, placement
        self.trial = trial = steps.trial
        self.progress = Progress()
        self.devices: dict[str, DeviceState] = {}
        self.spans: deque[SpanLine] = deque(maxlen=MOST_SPANS)
        self.processes: dict[tuple[int, str], ProcessLine] = {}
        self.queue = Series(QUEUE_COLUMNS, MOST_POINTS)
        self.log: deque[str] = deque(maxlen=MOST_LOG_LINES)
        self.log_lines = self.damaged = 0
        self._tails = {path: PlainTail(path) for path in (trial.spans, trial.device_samples, trial.processes)}
        self._tails[trial.spans].skip_to_last(4 * _TAIL_BYTES)
        self._log = PlainTail(trial.log)
        self._log.skip_to_last(_LOG_BYTES)
        self._begun = self._changed = time.time()
        self._zero: float | None = None
        self._looks = 0

    @property
    def behind(self) -> int:
        """Bytes that are not read yet."""
        waiting = 0 if self._looks > 1 else 1
        return waiting + sum(tail.behind for tail in (*self._tails.values(), self._log)) + self.steps.behind

    @property
    def zero(self) -> float:
        """When the launch began on its controller's monotonic clock, seconds."""
        return self._zero or 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the launch began."""
        return max(0.0, time.time() - self._begun)

    @property
    def silent_s(self) -> float:
        """Seconds since the job last said what it does."""
        return max(0.0, time.time() - self._changed)

    @property
    def now(self) -> float | None:
        """This moment on the controller's monotonic clock; None before that is known."""
        progress = self.progress
        if progress.mono is None or progress.wall is None:
            return None
        return progress.mono + max(0.0, time.time() - progress.wall)

    @property
    def last_step(self) -> int | None:
        """The last step whose spans are written, those of devices too where the launch has any; None without one.

        A job of the user's tells of a step first that it is over, and what its devices did in it a step later.
        """
        whole = (span.step for span in reversed(self.spans) if span.device == CONTROLLER and span.phase == STEP)
        on_devices = {span.step for span in self.spans if span.device != CONTROLLER}
        return next((step for step in whole if step in on_devices or not on_devices), None)

    def spans_of(self, step: int) -> list[SpanLine]:
        """The spans of a step."""
        return [span for span in self.spans if span.step == step]

    def read(self) -> None:
        """Take in what has been written since the last call, a part of each file at most; samples the next time."""
        self._read_progress()
        self._looks += 1
        for line in self.steps.read():
            self._queue_of(line)
        if self._looks > 1:  # who asks first waits for no history
            self._read_devices()
        spans, damaged = parse_lines(self._tails[self.trial.spans].read_lines(), SPANS)
        self.spans.extend(spans)
        processes, also = parse_lines(self._tails[self.trial.processes].read_lines(), PROCESSES)
        self.processes |= {(line.pid, line.device): line for line in processes}
        self.damaged += damaged + also
        for text in self._log.read_lines():
            said = text.decode(errors="replace")
            self.log.append(visible(said if len(said) <= _LOG_WIDTH else f"{said[:_LOG_WIDTH]}…"))
            self.log_lines += 1

    def devices_of(self, phase: str) -> Sequence[str]:
        """Ids of the devices that work on a phase of placebench's own job."""
        known = PHASE.get(phase)
        roles = [role for role in (known.role, known.partner) if role is not None] if known else []
        pools = dict.fromkeys(pool for role in roles if (pool := self.placement.roles.get(role)))
        return [device for pool in pools for device in self.placement.pools[pool]] or [CONTROLLER]

    def _read_progress(self) -> None:
        try:
            self._begun = self.trial.launch_file.lstat().st_mtime
            self._changed = max(self._begun, self.trial.progress.lstat().st_mtime)
            if is_plain(self.trial.progress):
                self.progress = Progress.read(self.trial)
        except (OSError, KeyError, ValueError):
            return  # it has not begun, or the file says nothing
        if self._zero is None and self.progress.mono is not None and self.progress.wall is not None:
            self._zero = self.progress.mono - (self.progress.wall - self._begun)

    def _read_devices(self) -> None:
        tail, path = self._tails[self.trial.device_samples], self.trial.device_samples
        if not self.devices and is_plain(path) and (size := path.lstat().st_size) > LONG_BYTES:
            for lines in spread_lines(path, size - _TAIL_BYTES, _PLACES, _PLACE_BYTES):
                self._take(lines[: len(self.placement.devices) + 2], once=True)
            tail.skip_to_last(_TAIL_BYTES)
        self._take(tail.read_lines())

    def _take(self, lines: Sequence[bytes], *, once: bool = False) -> None:
        """Take in lines on devices, or the first sample of each device among them."""
        found, damaged = parse_lines(lines, DEVICES)
        self.damaged += damaged
        taken = set()
        for line in found:
            match line:
                case SampleLine() if not (once and line.device in taken):
                    taken.add(line.device)
                    self._sample(line)
                case ProcessesLine():
                    self._state(line.device).processes = line
                case ErrorLine(kind="device_error", device=str(device)):
                    self._state(device).error = line.message or "lost"

    def _state(self, device: str) -> DeviceState:
        if device not in self.devices:
            self.devices[device] = DeviceState()
        return self.devices[device]

    def _sample(self, line: SampleLine) -> None:
        # Files that were copied tell too late when the launch began.
        self._zero = line.mono if self._zero is None else min(self._zero, line.mono)
        state, values = self._state(line.device), readings(line)
        state.last = line
        state.history.append(line.mono - self._zero, values)

    def _queue_of(self, line: StepLine) -> None:
        """Where engines are apart from learners: what waits, and how fast each side works."""
        metrics = line.metrics
        if "training/queue_mean" not in metrics:
            return
        busy = metrics.get(f"timing_s/{STEP}", 0.0) - metrics.get("training/trainer_wait_s", 0.0)
        generating = metrics.get("training/generating_s", 0.0)
        trained, generated = (
            metrics.get(name, math.nan) for name in ("perf/total_num_tokens", "training/generated_tokens")
        )
        found = {
            "waiting": metrics["training/queue_mean"],
            "most": metrics.get("training/queue_max"),
            "trainer_tokens_s": trained / busy if busy > 0 else None,
            "engine_tokens_s": generated / generating if generating > 0 else None,
            "lag": metrics.get("training/lag_mean"),
            "dropped": metrics.get("training/dropped_sequences"),
        }
        self.queue.append(line.step, found)


def readings(line: SampleLine) -> dict[str, float | None]:
    """What is drawn of a sample: load as the report has it, memory in bytes, power in W, SM clock in MHz."""
    values = line.quantities
    activity = values.get("sm_activity")
    return {
        "load": values.get("util") if activity is None else activity,
        "memory": values.get("memory_bytes"),
        "power": values.get("power_w"),
        "clock": values.get("clock_sm_mhz"),
    }


def limits(line: SampleLine) -> Iterator[str]:
    """What held the clocks of a device down at a sample, in words."""
    reasons = int(line.quantities.get("event_reasons") or 0)
    return (words for bit, words in CLOCK_LIMITS.items() if reasons & bit)


def as_json(value: Any) -> Any:
    """A number as JSON has it: null for what is none."""
    return None if value is None or (isinstance(value, float) and not math.isfinite(value)) else value
