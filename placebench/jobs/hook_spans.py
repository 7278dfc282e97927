"""What a job's hooks leave in `spans/`, one file a process (see `attach`), read while it is written.

From it come the rows of `spans.jsonl`, with the step that each belongs to by its time and the device that its process
works on, and those of `processes.jsonl`. A process says the device itself, by the UUID of its GPU; on CPU devices,
which nothing but their cores makes one, the rank does, and the process is bound to them.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from placebench.jobs.nested import Timing, exclusive
from placebench.record.folder import JsonlTail
from placebench.record.launch_file import LaunchFile
from placebench.spec.devices import Device
from placebench.spec.phases import GEN, PHASE
from placebench.spec.placement import Role
from placebench.telemetry.spans import CONTROLLER, Span

STEP = "step"
# What the hooks say of a span's source; see `attach/on-path/placebench_attach/spans.py`.
_TIMER, _ENGINE = "timer", "engine"
# New files are looked for so often, seconds.
_LOOK_EVERY_S = 0.5


@dataclass(frozen=True)
class Window:
    """A step's time, seconds of this host's monotonic clock."""

    step: int
    """Its number, counted from 1."""
    start: float
    end: float


@dataclass
class _Process:
    """A process of the job, and what it has left."""

    tail: JsonlTail
    head: Mapping[str, Any] = field(default_factory=dict)
    """Its first line."""
    shift_s: float = 0.0
    """Added to its times they are of this host's clock."""
    gpu: str | None = None
    """UUID of the GPU that torch uses in it."""
    device: str | None = None
    """The device that it works on, once it is known."""
    spans: dict[str, list[Timing]] = field(default_factory=dict)
    """By source, in the order in which they ended; those that are not handed out yet."""
    times_steps: bool = False
    """Whether it says when whole steps ran."""

    @property
    def is_first(self) -> bool:
        """Whether it is the first rank, or none of several."""
        return bool(self.head["environment"].get("RANK", "0") == "0")

    @property
    def is_worker(self) -> bool:
        """Whether it has done work of a worker or an engine, or is a rank of several."""
        return "RANK" in self.head["environment"] or any(source != _TIMER for source in self.spans)


class HookSpans:
    """The spans of a launch under way.

    Args:
        folder: where the processes write them.
        asked: what the launch runs.
        timers: phases by the names of the framework's timers, see `nested.exclusive`; `STEP` for a whole step.
        register: is told the process id of a worker and its device, once these are known.
    """

    def __init__(
        self, folder: Path, asked: LaunchFile, timers: Mapping[str, str], register: Callable[[int, str], None]
    ) -> None:
        self._folder, self._timers, self._register = folder, timers, register
        self._devices = asked.devices
        self._placement = asked.run_placement
        self._wall_offset = time.time() - time.monotonic()
        self._processes: dict[Path, _Process] = {}
        self._looked = 0.0
        self._steps: list[Window] = []
        self._has_begun = False
        self.notes: list[str] = []
        """What the hooks could not record, a sentence each."""

    def read(self, *, all_files: bool = False) -> None:
        """Take in what the processes have written since the last call.

        Args:
            all_files: whether to look for files of new processes now, which is done twice a second else.
        """
        now = time.monotonic()
        if all_files or now - self._looked >= _LOOK_EVERY_S:
            self._looked = now
            for path in sorted(self._folder.glob("*.jsonl")):
                self._processes.setdefault(path, _Process(JsonlTail(path)))
        for process in self._processes.values():
            for line in process.tail.read():
                self._take(process, line)

    def window(self, number: int, otherwise: Window) -> Window:
        """The time of a step as the framework's own timer of whole steps has it, where there is one."""
        return self._steps[number - 1] if number <= len(self._steps) else otherwise

    def whole(self, step: Window) -> Span:
        """The span of a whole step."""
        return self._span(step.step, _Piece(CONTROLLER, Timing(STEP, step.start, step.end), _TIMER))

    def hand_out(self, steps: Sequence[Window], until: float) -> list[Span]:
        """The spans of some steps that have ended, each once; those from before the first step are lost.

        Args:
            steps: in order.
            until: the end of the time that belongs to the last of them, with what is done between two steps.
        """
        self.read(all_files=True)
        found: dict[int, list[_Piece]] = {step.step: [] for step in steps}
        for piece in self._pieces(until) if steps else ():
            middle = (piece.timing.start + piece.timing.end) / 2
            before = steps[0].step if self._has_begun else None
            step = next((one.step for one in reversed(steps) if one.start <= middle), before)
            if step is not None:
                found[step].append(piece)
        self._has_begun |= bool(steps)
        return [self._span(step.step, piece) for step in steps for piece in self._completed(found[step.step])]

    def _take(self, process: _Process, line: Mapping[str, Any]) -> None:
        kind = line["kind"]
        if kind == "process":  # also one whose number is another's now
            process.head, process.gpu, process.device, process.spans = line, None, None, {}
            process.shift_s = 0.0 if line["host"] == os.uname().nodename else line["wall_offset"] - self._wall_offset
        elif kind == "device":
            process.gpu = line["device"]
        elif kind == "note":
            self.notes.append(line["text"])
        elif kind == "span":
            timing = Timing(line["name"], line["start"] + process.shift_s, line["end"] + process.shift_s)
            if line["source"] == _TIMER and self._timers.get(timing.name) == STEP:
                process.times_steps = True
                if process.is_first:
                    self._steps.append(Window(len(self._steps) + 1, timing.start, timing.end))
            else:
                process.spans.setdefault(line["source"], []).append(timing)
        if process.device is None and kind in ("device", "span"):
            self._find_device(process)

    def _find_device(self, process: _Process) -> None:
        device = self._device_of(process)
        if device is not None:
            process.device = device.id
            if device.cores:
                _bind(process.head["pid"], device.cores)
            if len(self._devices) > 1:  # a single one has the command and its children
                self._register(process.head["pid"], device.id)

    def _device_of(self, process: _Process) -> Device | None:
        """The device that a process works on; None for the controller, and where it is not known yet."""
        if process.gpu is not None:
            # On a cluster the node's name stands before the UUID.
            return next((device for device in self._devices if device.id.endswith(process.gpu)), None)
        if any(device.kind == "gpu" for device in self._devices):
            return None
        if len(self._devices) == 1:
            return self._devices[0]
        if not process.is_worker:
            return None
        names = (timing.name for source, timings in process.spans.items() if source != _TIMER for timing in timings)
        role = next((PHASE[name].role for name in names if name in PHASE), Role.ACTOR)
        pool = self._placement.roles.get(role or Role.ACTOR)
        members = self._placement.members[pool] if pool is not None else self._devices
        return members[int(process.head["environment"].get("RANK", 0)) % len(members)]

    def _pieces(self, until: float) -> Iterator["_Piece"]:
        """What has ended by a time, for each device and the controller; it is not there any more."""
        for process in self._processes.values():
            for source, timings in process.spans.items():
                ready = [timing for timing in timings if timing.end <= until]
                process.spans[source] = [timing for timing in timings if timing.end > until]
                if source == _TIMER:
                    ready = self._timed(ready, stands_within=process.device is not None)
                yield from (_Piece(device, one, source) for device in self._places(process, source) for one in ready)

    def _timed(self, timings: Sequence[Timing], *, stands_within: bool) -> list[Timing]:
        """The phases of timers: a worker's stand within each other, the controller's are its view and may overlap."""
        if stands_within:
            return exclusive(timings, self._timers)
        named = ((self._timers.get(one.name), one) for one in timings)
        return [Timing(phase, one.start, one.end) for phase, one in named if phase]

    def _places(self, process: _Process, source: str) -> Iterator[str]:
        """For whom a process's spans count: its device, and the controller where they are its own view."""
        if process.device is not None:
            yield process.device
        has_controller = any(one.times_steps and one.device is None for one in self._processes.values())
        if source == _TIMER and (process.device is None or (process.is_first and not has_controller)):
            yield CONTROLLER

    def _completed(self, pieces: Sequence["_Piece"]) -> list["_Piece"]:
        """The pieces of a step in order of their ends, with generation on the devices that generate.

        Where an engine says when it worked, nobody else is asked. Where nobody says it, the devices of the rollout's
        pool generate while the controller waits.
        """
        engines = {piece.device for piece in pieces if piece.source == _ENGINE}
        kept = [
            piece
            for piece in pieces
            if piece.timing.name != GEN or piece.source == _ENGINE or piece.device not in engines
        ]
        generates = [piece for piece in kept if piece.timing.name == GEN]
        if all(piece.device == CONTROLLER for piece in generates):
            pool = self._placement.roles.get(Role.ROLLOUT)
            devices = self._placement.pools[pool] if pool is not None else ()
            kept += [_Piece(device, piece.timing, piece.source) for piece in generates for device in devices]
        return sorted(kept, key=lambda piece: piece.timing.end)

    def _span(self, step: int, piece: "_Piece") -> Span:
        phase, start, end = piece.timing.name, piece.timing.start, piece.timing.end
        role = PHASE[phase].role if phase in PHASE else None
        pool = self._placement.roles.get(role) if role is not None else None
        wall = self._wall_offset
        return Span(step, phase, role, pool, piece.device, start + wall, end + wall, start, end)


@dataclass(frozen=True)
class _Piece:
    """A phase at one place."""

    device: str
    """Id of a device, or `CONTROLLER`."""
    timing: Timing
    """The phase and its time."""
    source: str
    """Who says so."""


def _bind(pid: int, cores: Iterable[int]) -> None:
    """Let a process and its threads run on the cores of its device alone, if it is still there."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), cores)
