"""Spans of a job of the user's from the files that its own processes write (see `attach`), as rows of `spans.jsonl`.

A span belongs to the step in whose time its middle lies, of a rank that times its steps to its own, and to the device
on which its process works: the GPU that the process names; on CPU devices, which name themselves to nobody, the one
that its rank has in the pool of its phase's role, to whose cores it is then held. An engine whose workers are processes
of their own works on the devices of these. What the framework times by itself is the controller's view, unless the
process that times it works on a device too, as a rank of a trainer does.
"""

import time
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from placebench.jobs.adapter import LOGGED, TRAINER_STEP
from placebench.jobs.nested import WITHIN, Timing, crossing, exclusive
from placebench.jobs.nodes import Nodes
from placebench.jobs.pieces import ENGINE, Piece, joined, seen_whole
from placebench.jobs.process_devices import ProcessDevices
from placebench.jobs.span_writer import TIMER, SpanWriter
from placebench.record.progress import MOST_TIMES, PhaseTime
from placebench.record.tail import JsonlTail
from placebench.spec.bound import RunPlacement
from placebench.spec.devices import Device
from placebench.spec.legible import shown
from placebench.spec.phases import GEN, PHASE
from placebench.spec.placement import Role
from placebench.spec.reading import parse_json
from placebench.spec.text import listing, plural
from placebench.telemetry.spans import CONTROLLER, Span

STEP = "step"
# New files are looked for so often, seconds.
_LOOK_EVERY_S = 0.5
_SET_RANK = "let each process set RANK in its environment before its first span, 0 in the first"


@dataclass(frozen=True)
class Window:
    """A step's time, seconds of this host's monotonic clock."""

    step: int
    """Its number, counted from 1."""
    start: float
    end: float


class AttachedSpans:
    """The spans of a launch under way.

    Args:
        folder: where the processes write them.
        placement: the launch's placement.
        devices: its devices.
        timers: phases by the names of the framework's timers, see `nested.exclusive`; `STEP` for a whole step.
        nodes: where its processes are.
        is_users: whether all spans are the user's own, which no framework gives names to.
    """

    def __init__(
        self,
        folder: Path,
        placement: RunPlacement,
        devices: Sequence[Device],
        timers: Mapping[str, str],
        nodes: Nodes,
        *,
        is_users: bool = False,
    ) -> None:
        self._folder, self._placement, self._devices, self._timers = folder, placement, devices, timers
        self._nodes, self._wall_offset = nodes, nodes.clock.offset
        self._names = {name for key in timers for name in key.split(WITHIN)}
        self._processes: dict[Path, SpanWriter] = {}
        self._looked = 0.0
        self._steps: list[Window] = []
        self._counting: SpanWriter | None = None
        self._logged: list[float] = []
        self.counts_steps = False
        """Whether spans say which steps there are: a trainer tells which of them it logs, or none is logged."""
        self._waiting: list[Window] = []
        self._has_begun = self._has_phases = self._has_places = False
        self._is_users, self._unknown = is_users, dict[str, None]()
        self._process_devices = ProcessDevices(placement, devices, nodes)
        self.notes: dict[str, None] = {}
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
                self._processes.setdefault(path, SpanWriter(JsonlTail(path)))
        for process in self._processes.values():
            for line in process.tail.read_lines():
                self._take_line(process, line)

    def bound(self) -> list[tuple[int, Device]]:
        """Processes whose device has become known since the last call, by their pid."""
        return self._process_devices.bound()

    def allotted(self) -> list[dict[str, Any]]:
        """Rows of `ray.jsonl` of workers that have come since the last call."""
        return self._process_devices.allotted()

    def step(self, number: int) -> Window | None:
        """The time of a step, counted from 1, as the framework's own timer has it; None where it has none."""
        return self._steps[number - 1] if 1 <= number <= len(self._steps) else None

    @property
    def steps(self) -> int:
        """How many steps the framework's own timer has."""
        return len(self._steps)

    @property
    def logged_steps(self) -> list[int]:
        """Which of them a trainer that counts them has logged, a number for each line of its log."""
        ends = [window.end for window in self._steps]
        return [step for moment in self._logged if (step := bisect_right(ends, moment))]

    def all_time(self) -> list[Window]:
        """The steps that the framework's own timer has, else the time of all spans as one; none without any."""
        sources = (timings for process in self._processes.values() for timings in process.spans.values())
        if self._steps or not (timings := [timing for source in sources for timing in source]):
            return list(self._steps)
        return [Window(1, min(one.start for one in timings), max(one.end for one in timings))]

    def rows(self, windows: Sequence[Window], *, final: bool = False) -> list[dict[str, Any]]:
        """Rows of the spans of steps that have ended, each once; those from before the first step are lost.

        Spans of the last step may still be on their way: they come with those of the next one.

        Args:
            windows: steps that have become whole since the last call, in order.
            final: whether no more will be written.
        """
        self._waiting += windows
        ended = self._waiting if final else self._waiting[:-1]
        if not ended:
            return []
        self._waiting = self._waiting[len(ended) :]
        found: dict[int, list[Piece]] = {window.step: [] for window in ended}
        for piece in self._pieces(self._waiting[0].start if self._waiting else inf):
            step = self._step_of(piece, ended, final=final)
            if step is not None:
                found.setdefault(step, []).append(piece)
                self._has_phases = True
                self._has_places = self._has_places or piece.device != CONTROLLER
        self._has_begun = True
        if final and self._has_phases and not self._has_places:
            devices = plural(len(self._devices), "device")
            is_cpu = self._devices[0].kind == "cpu"
            remedy = f"; {_SET_RANK}, or give --devices cpu:1, one device for all of them" if is_cpu else ""
            said = f"processes do not say which of the {devices} they work on, so phases are left out{remedy}"
            self.notes[said] = None
        kept = ((step, seen_whole(self._completed(pieces))) for step, pieces in found.items())
        return [self._row(step, piece) for step, pieces in kept for piece in pieces]

    def _step_of(self, piece: Piece, ended: Sequence[Window], *, final: bool) -> int | None:
        """The step that a piece belongs to; None for one from before the first, or of a step that does not count.

        Args:
            piece: what a process did.
            ended: the steps that have ended since the last call of `rows`, in order.
            final: whether these are the last ones that count.
        """
        middle = (piece.timing.start + piece.timing.end) / 2
        before = ended[0].step if self._has_begun else None
        step = next((window.step for window in reversed(ended) if window.start <= middle), before)
        if step is None:
            return None
        if piece.own_step is not None:
            return piece.own_step if piece.own_step <= ended[-1].step else None
        return None if final and middle > ended[-1].end else step

    def since(self, start: float) -> tuple[PhaseTime, ...]:
        """What has ended of the phases that began after a time, in the order in which they began; they stay.

        On devices, where any is known to work, else in the controller's view.
        """
        found = [
            PhaseTime(phase=one.name, start=one.start, end=one.end, devices=(device,))
            for process in self._processes.values()
            for source, timings in process.spans.items()
            for device, _ in self._places(process, source)
            for one in self._named_phases(process, source, [one for one in timings if one.start >= start])
        ]
        on_devices = {one.phase for one in found if one.devices != (CONTROLLER,)}
        kept = (one for one in found if one.phase not in on_devices or one.devices != (CONTROLLER,))
        return tuple(sorted(kept, key=lambda one: one.start))[-MOST_TIMES:]

    def _named_phases(self, process: SpanWriter, source: str, timings: Sequence[Timing]) -> Sequence[Timing]:
        """The phases of a process's timings of one source."""
        return self._timed(timings, stands_within=process.device is not None) if source == TIMER else timings

    def _take_line(self, process: SpanWriter, text: bytes) -> None:
        try:
            line = parse_json(text)
            if not process.head and line["kind"] != "process":
                raise ValueError("nothing says whose it is")
            self._take(process, line)
        except (ValueError, KeyError, TypeError):  # the folder is open to the job, whatever it does there
            self.notes[f"{process.tail.path.name} has lines that the hooks did not write, which are left out"] = None

    def _take(self, process: SpanWriter, line: Mapping[str, Any]) -> None:
        kind = line["kind"]
        if kind == "process":  # also one whose number is another's now
            process.head, process.gpu, process.device, process.spans = line, None, None, {}
            process.node, process.shift_s = self._nodes.place(line)
            self.notes |= dict.fromkeys(self._process_devices.take_allotted(process))
        elif kind == "device":
            process.gpu = line["device"]
        elif kind == "note":
            self.notes[line["text"]] = None
        elif kind == "span":
            timing = Timing(self._named(line["name"]), line["start"] + process.shift_s, line["end"] + process.shift_s)
            if not -inf < timing.start <= timing.end < inf:
                raise ValueError("it ends before it begins")
            meaning = self._timers.get(timing.name) if line["source"] == TIMER else None
            if meaning in (STEP, TRAINER_STEP):
                process.step_ends.append(timing.end)
                self.counts_steps = self.counts_steps or meaning == TRAINER_STEP
                if process.is_first:
                    self._count(process, timing)
            elif meaning == LOGGED:
                if process.is_first:
                    self._logged.append(timing.end)
            else:
                process.spans.setdefault(line["source"], []).append(timing)
        if process.device is None and kind in ("device", "span"):
            self._process_devices.find(process)

    def _count(self, process: SpanWriter, timing: Timing) -> None:
        """Take a step of the process that is the first to say when its steps ran."""
        self._counting = self._counting or process
        if self._counting is process:
            self._steps.append(Window(len(self._steps) + 1, timing.start, timing.end))
        else:
            said = "several processes mark steps, and only the steps of one count: to choose it"
            self.notes[f"{said}, {_SET_RANK}"] = None

    def _named(self, name: str) -> str:
        """A timer's name, without that of the class which some frameworks put before it."""
        behind = name.partition(".")[2]
        return behind if name not in self._names and behind in self._names else name

    def _pieces(self, until: float) -> Iterator[Piece]:
        """What has ended by a time, for each device and the controller; it is not there any more."""
        for process in self._processes.values():
            for source, timings in process.spans.items():
                ready = [timing for timing in timings if timing.end <= until]
                process.spans[source] = [timing for timing in timings if timing.end > until]
                timed, ready = ready, list(self._named_phases(process, source, ready))
                if source == TIMER and self._is_users:
                    self._tell_unknown(timed, ready)
                own = {PHASE[one.name].role for one in ready if one.name in PHASE and not PHASE[one.name].partner}
                process.pools |= {pool for role, pool in self._placement.roles.items() if role in own}
                yield from (
                    Piece(device, one, source, self._role(one.name, process.pools), pid, process.own_step(one))
                    for device, pid in self._places(process, source)
                    for one in ready
                )

    def _role(self, name: str, pools: Collection[str]) -> Role | None:
        """Whose work a phase is in a process of some pools: of weights on their way, of the end that it is."""
        phase, roles = PHASE.get(name), self._placement.roles
        if phase and phase.partner and roles.get(phase.partner) in pools and roles.get(Role.ROLLOUT) not in pools:
            return phase.partner
        return phase.role if phase else None

    def _tell_unknown(self, timings: Sequence[Timing], phases: Sequence[Timing]) -> None:
        """Note the user's own spans that say no phase and are no part of one, as a framework's timers may well be."""
        unknown = [
            one.name
            for one in timings
            if one.name not in self._timers
            and not any(phase.start < one.end and one.start < phase.end for phase in phases)
        ]
        if not self._unknown.keys() >= set(unknown):
            self.notes.pop(self._unknown_note, None)
            self._unknown |= dict.fromkeys(unknown)
            self.notes[self._unknown_note] = None

    @property
    def _unknown_note(self) -> str:
        verb = "belongs to" if len(self._unknown) == 1 else "belong to"
        return (
            f"{_spans(*self._unknown)} {verb} no phase, so this time counts as waiting: use names of phases, or map"
            " yours under phases in a job file"
        )

    def _timed(self, timings: Sequence[Timing], *, stands_within: bool) -> list[Timing]:
        """The phases of timers: a worker's stand within each other, the controller's are its view and may overlap."""
        if stands_within:
            if self._is_users and (found := crossing(timings)):
                said = f"{_spans(*found)} of one process overlap in part"
                self.notes[f"{said}: each moment counts for the span that began last"] = None
            return exclusive(timings, self._timers)
        named = ((self._timers.get(one.name), one) for one in timings)
        return [Timing(phase, one.start, one.end) for phase, one in named if phase]

    def _places(self, process: SpanWriter, source: str) -> Iterator[tuple[str, int | None]]:
        """For whom a process's spans count: devices with who works there, the controller where they are its own view.

        Yields:
            A device's id or `CONTROLLER`, and the process that works on the device; None for the controller.
        """
        if process.device is not None:
            yield process.device.id, process.head["pid"]
        elif source == ENGINE:
            for worker in self._processes.values():
                is_child = worker.head.get("ppid") == process.head["pid"] and worker.node == process.node
                if is_child and worker.device is not None:
                    yield worker.device.id, worker.head["pid"]
        has_controller = any(one.step_ends and one.device is None for one in self._processes.values())
        if source == TIMER and (process.device is None or (process.is_first and not has_controller)):
            yield CONTROLLER, None

    def _completed(self, pieces: Sequence[Piece]) -> list[Piece]:
        """The pieces of a step in order of their ends, with generation on the devices that generate.

        Where an engine says when it worked, nobody else is asked. Where nobody says it, the devices of the rollout's
        pool generate while the controller waits. Where no device is known to work, there is nothing to say.
        """
        if all(piece.device == CONTROLLER for piece in pieces):
            return []
        engines = {piece.device for piece in pieces if piece.source == ENGINE}
        kept = [
            piece
            for piece in pieces
            if piece.timing.name != GEN or piece.source == ENGINE or piece.device not in engines
        ]
        generates = [piece for piece in kept if piece.timing.name == GEN]
        if all(piece.device == CONTROLLER for piece in generates):
            pool = self._placement.roles.get(Role.ROLLOUT)
            devices = self._placement.pools[pool] if pool is not None else ()
            kept += [replace(piece, device=device, pid=None) for piece in generates for device in devices]
        return joined(sorted(kept, key=lambda piece: piece.timing.end))

    def _row(self, step: int, piece: Piece) -> dict[str, Any]:
        phase, start, end = piece.timing.name, piece.timing.start, piece.timing.end
        role, wall = piece.role, self._wall_offset
        pool = self._placement.roles.get(role) if role is not None else None
        return Span(
            step, phase, role, pool, piece.device, start + wall, end + wall, start, end, pid=piece.pid
        ).to_dict()


def _spans(*names: str) -> str:
    return listing(f"span({shown(name)})" for name in names)
