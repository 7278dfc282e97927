"""A run folder and its launches, finished or not, whose files are read into frames; see `run_reading`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from placebench.compare.read.logged import logged_phases
from placebench.compare.read.warmup import find_warmup
from placebench.record.end_file import EndFile
from placebench.record.folder import RunFolder, Status, Trial
from placebench.record.job_record import LogRecord
from placebench.record.launch_lines import (
    EnergyLine,
    ErrorLine,
    FooterLine,
    HeaderLine,
    LaunchLines,
    PowerLine,
    ProcessesLine,
    SampleLine,
)
from placebench.record.run_file import LaunchRecord, LaunchWall, RunFile
from placebench.spec.bound import RunPlacement
from placebench.spec.devices import Device, device_labels
from placebench.spec.phases import STEP
from placebench.spec.text import plural
from placebench.telemetry.spans import CONTROLLER, TRACED_STEP

SPAN_COLUMNS = ("step", "phase", "role", "pool", "device", "start", "end", "allocated_bytes", "reserved_bytes", "pid")
# What the controller does within a step that is no part of training it; it is taken out of the step's time.
APART = ("testing", "save_checkpoint")
KERNEL_TIMES = ("kernel_s", "collective_s", "copy_s", "no_kernel_s", "span_s")
SAMPLE_COLUMNS = ("mono", "device", "util", "memory_bytes", "power_w")
POWER_COLUMNS = ("mono", "device", "power_w")
ENERGY_COLUMNS = ("mono", "device", "energy_j")
PROCESS_COLUMNS = ("mono", "device", "pid", "memory_bytes")
LineT = TypeVar("LineT")

# Frames of a run have few rows, where strings of Python are several times as fast as those of pyarrow.
pd.set_option("mode.string_storage", "python")


@dataclass(frozen=True)
class Sampling:
    """What the samplers said of themselves, one on every node."""

    source: str | None
    """`nvml` or `cpu`; None when no sampler wrote."""
    gpm_absent: Mapping[str, str]
    """Why SM, tensor and memory activity (GPM) were not read, by device."""
    ticks: int | None
    """Samples taken, those due less the missed ones; None when a sampler did not end cleanly."""
    missed: int | None
    """How many of them were missed; None as above."""
    errors: tuple[str, ...]
    """What it reported of devices."""


@dataclass(frozen=True)
class Launch:
    """One launch, whether or not it has started; its frames are made when first used."""

    trial: Trial
    """Its folder, which need not exist."""
    round: int
    """Its round, counted from 1."""
    placement: str
    """The placement's name."""
    status: Status
    """How far it came."""
    least_warmup: int
    """First steps that are left out of the numbers in any case."""
    error: str | None = None
    """What went wrong, in one line without the status; None when nothing is on record."""
    lines: LaunchLines = field(default_factory=LaunchLines, repr=False)
    """What its files say; nothing unless it is done."""
    steps_done: int = 0
    """How many steps are on record."""

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"round {self.round} {self.placement}"

    @property
    def fate(self) -> str:
        """What became of it where it is not done, and after how many steps where no error says that."""
        if self.error:
            return f"{self.status.words}: {self.error}"
        if self.status is Status.INTERRUPTED and self.steps_done:
            return f"{self.status.words} after {plural(self.steps_done, 'step')}"
        return self.status.words

    @cached_property
    def steps(self) -> pd.DataFrame:
        """Metrics by step: one row a step, indexed by `step`, one column a metric."""
        rows = [{"step": line.step, **line.metrics} for line in self.lines.steps]
        return pd.DataFrame(rows, columns=None if rows else ["step"]).set_index("step")

    @cached_property
    def bad_end(self) -> str | None:
        """What went wrong at the end of a job of the user's whose steps count all the same; None where nothing did."""
        end = EndFile.read(self.trial) if self.status is Status.DONE and self.is_of_job else None
        if end is None:
            return None
        return "; ".join(filter(None, (end.message, end.after))) or None

    @cached_property
    def pauses(self) -> Sequence[tuple[float, float]]:
        """When it was stopped by Ctrl-Z: start and end, seconds of the monotonic clock."""
        return [(line.start_mono, line.end_mono) for line in self.lines.pauses]

    @cached_property
    def paused_steps(self) -> tuple[int, ...]:
        """Steps of which a pause was a part; GPUs work on in it, so that nobody knows what they would have taken."""
        whole = self._all_spans[is_whole_step(self._all_spans)]
        return tuple(sorted(int(step) for step in whole.loc[_meets(whole, self.pauses), "step"]))

    @cached_property
    def spans(self) -> pd.DataFrame:
        """Phase spans of all steps but `paused_steps`, columns `SPAN_COLUMNS`.

        Start and end are in seconds of the monotonic clock, `allocated_bytes` is the most that tensors took at a time,
        `reserved_bytes` that with what their allocator kept in reserve, `pid` the process; NaN where it is not known.
        """
        spans = self._all_spans
        return spans[~spans["step"].isin(self.paused_steps)] if self.pauses else spans

    @cached_property
    def _all_spans(self) -> pd.DataFrame:
        columns = zip(*(vars(line).values() for line in self.lines.spans), strict=True)
        frame = pd.DataFrame(dict(zip(SPAN_COLUMNS, columns, strict=False)), columns=list(SPAN_COLUMNS))
        return frame.astype({"allocated_bytes": float, "reserved_bytes": float, "pid": float})

    @cached_property
    def whole_steps(self) -> pd.DataFrame:
        """The spans of whole steps, columns as in `spans`."""
        return self.spans[is_whole_step(self.spans)]

    @cached_property
    def measured_steps(self) -> pd.DataFrame:
        """Those of `whole_steps` that come after the warm-up."""
        return self.whole_steps[self.whole_steps["step"] > self.last_warmup_step]

    @property
    def is_of_job(self) -> bool:
        """Whether it is one of a job of the user's."""
        return self.log is not None

    @property
    def log(self) -> LogRecord | None:
        """How the log of a job of the user's is to be read; None of placebench's own job."""
        return self.lines.log

    @cached_property
    def has_phases(self) -> bool:
        """Whether spans say when phases ran."""
        return len(self.whole_steps) < len(self.spans)

    @cached_property
    def has_path(self) -> bool:
        """Whether a phase comes but once in a step, as the critical path through the step graph has it."""
        return self.has_phases and not (self.log and self.log.is_one_step)

    @cached_property
    def logged_phases(self) -> pd.DataFrame:
        """Seconds of the phases of which the log alone tells: see `logged.logged_phases`; empty where spans do."""
        return pd.DataFrame() if self.has_phases or self.log is None else logged_phases(self.steps, self.log)

    @cached_property
    def step_seconds(self) -> "pd.Series[float]":
        """Time of each step without what is `APART`, indexed by step, in order."""
        phase, device = (self.spans[name].to_numpy(dtype=object) for name in ("phase", "device"))
        step, start, end = (self.spans[name].to_numpy() for name in ("step", "start", "end"))
        of_controller = device == CONTROLLER
        whole, apart = of_controller & (phase == STEP), of_controller & np.isin(phase, APART)
        steps, place = np.unique(step[whole], return_inverse=True)
        seconds = np.bincount(place, weights=(end - start)[whole], minlength=len(steps))
        apart &= np.isin(step, steps)
        lost = np.bincount(np.searchsorted(steps, step[apart]), weights=(end - start)[apart], minlength=len(steps))
        return pd.Series(seconds - lost, pd.Index(steps, name="step"))

    @cached_property
    def warmup_steps(self) -> int:
        """How many of the first of `step_seconds` are its warm-up: at least what there is of `least_warmup`."""
        lost = sum(step <= self._steps_before + self.least_warmup for step in self.paused_steps)
        return find_warmup(np.asarray(self.step_seconds, dtype=np.float64), max(0, self.least_warmup - lost))

    @cached_property
    def last_warmup_step(self) -> int:
        """Number of the last step of its warm-up."""
        steps, least = self.step_seconds.index, self._steps_before + self.least_warmup
        return max(least, int(steps[self.warmup_steps - 1])) if 0 < self.warmup_steps <= len(steps) else least

    @cached_property
    def _steps_before(self) -> int:
        """Steps before its first one: they are numbered on where it went on from a checkpoint."""
        whole = self._all_spans.loc[is_whole_step(self._all_spans), "step"]
        return int(whole.min()) - 1 if len(whole) else 0

    @cached_property
    def kernels(self) -> pd.DataFrame:
        """What ran on each GPU in the traced step: columns `phase`, `device` and `KERNEL_TIMES`, seconds.

        Nothing where a pause was a part of it.
        """
        rows = list(map(vars, self.lines.kernels))
        if rows and self.pauses and _meets(self.spans[self.spans["phase"] == TRACED_STEP], self.pauses).any():
            rows = []
        return pd.DataFrame(rows, columns=["phase", "device", *KERNEL_TIMES])

    @cached_property
    def samples(self) -> pd.DataFrame:
        """Device samples in order of time, columns `SAMPLE_COLUMNS` and what else the source has; missing is NaN."""
        rows = [{"mono": line.mono, "device": line.device, **line.quantities} for line in self._lines(SampleLine)]
        frame = pd.DataFrame(rows, columns=None if rows else list(SAMPLE_COLUMNS))
        frame = frame.astype(dict.fromkeys(frame.columns.difference(["device"]), float))
        return frame.sort_values("mono", kind="stable", ignore_index=True)

    @cached_property
    def measured_samples(self) -> pd.DataFrame:
        """Those of `samples` that were taken during the measured steps."""
        steps, mono = self.measured_steps, self.samples["mono"]
        chosen: pd.DataFrame = self.samples[(mono >= steps["start"].min()) & (mono <= steps["end"].max())]
        return chosen

    @cached_property
    def power(self) -> pd.DataFrame:
        """Readings of power from the devices' buffers in order of time, columns `POWER_COLUMNS`, W; none on CPUs."""
        rows: list[tuple[float, str, float | None]] = []
        for line in self._lines(PowerLine):
            pairs = zip(line.ago_s, line.power_w, strict=True)
            rows += [(line.mono - ago, line.device, watts) for ago, watts in pairs]
        # Early versions had one reading of the sensor in every sample. As these lie far apart, each speaks for the time
        # that is nearest to it, not for that since the one before.
        half = 0.5 / next((line.hz for line in self._lines(HeaderLine)), 5.0)
        rows += [
            (line.mono + half, line.device, watts)
            for line in self._lines(SampleLine)
            if (watts := line.quantities.get("power_instant_w")) is not None
        ]
        return _in_order(rows, POWER_COLUMNS)

    @cached_property
    def energy(self) -> pd.DataFrame:
        """Readings of the devices' energy counters in order of time, columns `ENERGY_COLUMNS`, J; none on CPUs."""
        rows = [(line.mono, line.device, line.energy_j) for line in self._lines(EnergyLine)]
        # Early versions had the counter in a sample every second.
        rows += [
            (line.mono, line.device, joules)
            for line in self._lines(SampleLine)
            if (joules := line.quantities.get("energy_j")) is not None
        ]
        return _in_order(rows, ENERGY_COLUMNS)

    @cached_property
    def device_processes(self) -> pd.DataFrame:
        """Processes that compute on the GPUs, whoever started them: columns `PROCESS_COLUMNS`; none on CPUs."""
        rows = [
            (line.mono, line.device, process.pid, process.memory_bytes)
            for line in self._lines(ProcessesLine)
            for process in line.processes
        ]
        return pd.DataFrame(rows, columns=list(PROCESS_COLUMNS)).astype({"memory_bytes": float})

    @cached_property
    def sampling(self) -> Sampling:
        """How the device samples came about."""
        headers, footers = list(self._lines(HeaderLine)), list(self._lines(FooterLine))
        in_order = 0 < len(headers) <= len(footers)
        return Sampling(
            headers[0].source if headers else None,
            {device: reason for header in headers for device, reason in (header.gpm_absent or {}).items()},
            sum(footer.ticks for footer in footers) if in_order else None,
            sum(footer.missed for footer in footers) if in_order else None,
            tuple(f"{line.device}: {line.message}" for line in self._lines(ErrorLine) if line.kind == "device_error"),
        )

    def _lines(self, kind: type[LineT]) -> Iterator[LineT]:
        return (line for line in self.lines.devices if isinstance(line, kind))


@dataclass(frozen=True)
class Run:
    """A run folder."""

    folder: RunFolder
    """Where it lies."""
    record: RunFile
    """Its `run.json`."""
    placements: tuple[RunPlacement, ...]
    """In the order in which they were given; the others are compared with the first."""
    launches: tuple[Launch, ...]
    """All that the run was to have, by round and placement."""

    @property
    def name(self) -> str:
        """The run's name, or its folder's where it has none."""
        return self.record.name or self.folder.path.name

    @cached_property
    def devices(self) -> Mapping[str, Device]:
        """Every device by id."""
        return {device.id: device for device in self.record.devices}

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """What people see of each device, by its id: `cpu:0`, `gpu:0`; with the node in front if there are several."""
        return device_labels(self.record.devices)

    def wall(self, launch: Launch) -> LaunchWall | None:
        """Where the wall time of a launch went; None where none is on record."""
        found = self._recorded(launch)
        return found.wall if found else None

    def other_runs(self, launch: Launch) -> int:
        """How many other runs were seen to go on beside a launch."""
        found = self._recorded(launch)
        return found.other_runs if found else 0

    def _recorded(self, launch: Launch) -> LaunchRecord | None:
        key = (launch.round, launch.placement)
        return next((one for one in self.record.launches if (one.round, one.placement) == key), None)

    def done(self, placement: str) -> tuple[Launch, ...]:
        """The finished launches of a placement, by round: the ones in the numbers."""
        return tuple(
            launch for launch in self.launches if launch.placement == placement and launch.status is Status.DONE
        )

    def why_unreadable(self, placement: str | None = None) -> str | None:
        """Why the first launch that cannot be read is not, of a placement or of any; None where all can be."""
        damaged = (launch for launch in self.launches if launch.status is Status.DAMAGED)
        return next((one.error for one in damaged if placement in (None, one.placement)), None)

    @property
    def missing(self) -> tuple[Launch, ...]:
        """The launches that are not in the numbers."""
        return tuple(launch for launch in self.launches if launch.status is not Status.DONE)


def is_whole_step(spans: pd.DataFrame) -> NDArray[np.bool_]:
    """Which spans, columns as in `Launch.spans`, are of a whole step: the controller's from its start to its end."""
    device, phase = (spans[name].to_numpy(dtype=object) for name in ("device", "phase"))
    return np.asarray((device == CONTROLLER) & (phase == STEP))


def _meets(spans: pd.DataFrame, times: Iterable[tuple[float, float]]) -> "pd.Series[bool]":
    """Which spans any of some times has a part in."""
    met = pd.Series(data=False, index=spans.index)
    for start, end in times:
        met |= (spans["start"] < end) & (spans["end"] > start)
    return met


def _in_order(rows: Sequence[tuple[float, str, float | None]], columns: Sequence[str]) -> pd.DataFrame:
    """Readings by `mono`; the last column holds numbers."""
    mono, device, value = zip(*rows, strict=True) if rows else ((), (), ())
    times = np.array(mono, dtype=np.float64)
    order = np.argsort(times, kind="stable")
    read = (times, np.array(device, dtype=object), np.array(value, dtype=np.float64))
    return pd.DataFrame({name: values[order] for name, values in zip(columns, read, strict=True)})
