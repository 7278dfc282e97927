"""Spans of a job of the user's from the files that its own processes write (see `attach`), as rows of `spans.jsonl`.

A span belongs to the step in whose time its middle lies, and to the device on which its process works: the only one of
the launch, or the GPU that the process names; on CPU devices, which name themselves to nobody, the one that its rank
has in the pool of its phase's role, to whose cores it is then held. What the process times that times whole steps is
the controller's view.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from placebench.record.folder import JsonlTail
from placebench.spec.bound import RunPlacement
from placebench.spec.devices import Device
from placebench.spec.phases import GEN, PHASE
from placebench.spec.placement import Role
from placebench.telemetry.spans import CONTROLLER, Span

# As `attach` writes them.
_TIMER = "timer"
_STEP = "step"


@dataclass(frozen=True)
class _Worked:
    """A phase as one process saw it; seconds of the monotonic clock."""

    phase: str
    start: float
    end: float
    source: str


@dataclass(eq=False)
class _SpanWriter:
    """A process of the job that writes spans."""

    tail: JsonlTail
    about: Mapping[str, Any] = field(default_factory=dict)
    """What its first line says."""
    gpu: str | None = None
    """The UUID of the GPU that it uses."""
    device: Device | None = None
    """Where it works, once that is known."""


@dataclass(frozen=True)
class Window:
    """The time of a step, seconds of the monotonic clock."""

    step: int
    start: float
    end: float


class AttachedSpans:
    """Reads the span files of a launch while they grow.

    They tell what devices do in a step where the framework's own timers have its steps: then phases have them too, and
    no span means no work. Of other frameworks they are on record, and no more.

    Args:
        folder: where they lie.
        placement: the launch's placement.
        devices: its devices.
        names: phases by the names of the framework's timers, where these are others.

    Attributes:
        notes: what the processes say of their spans.
    """

    def __init__(
        self, folder: Path, placement: RunPlacement, devices: Sequence[Device], names: Mapping[str, str]
    ) -> None:
        self._folder, self._placement, self._names = folder, placement, names
        self._devices = {device.id: device for device in devices}
        self._processes: dict[Path, _SpanWriter] = {}
        self._waiting: list[tuple[_SpanWriter, _Worked]] = []
        self._steps: list[_Worked] = []
        self._controller: _SpanWriter | None = None
        self._windows: list[Window] = []
        self._bound: list[tuple[int, Device]] = []
        self.notes: dict[str, None] = {}

    def read(self) -> None:
        """Take in what has been written since the last call."""
        for path in sorted(self._folder.glob("*.jsonl")):
            process = self._processes.setdefault(path, _SpanWriter(JsonlTail(path)))
            for row in process.tail.read():
                self._take(process, row)

    def _take(self, process: _SpanWriter, row: Mapping[str, Any]) -> None:
        if row["kind"] == "process":
            process.about = row
        elif row["kind"] == "device":
            process.gpu = str(row["device"])
        elif row["kind"] == "note":
            self.notes[str(row["text"])] = None
        elif row["kind"] == "span":
            name = str(row["name"])
            phase = self._names.get(name) or self._names.get(name.rpartition(".")[2]) or name
            worked = _Worked(phase, float(row["start"]), float(row["end"]), str(row["source"]))
            if phase == _STEP and worked.source == _TIMER and self._controller in (None, process):
                self._controller = process
                self._steps.append(worked)
            elif phase in PHASE:
                self._find_device(process, worked)
                self._waiting.append((process, worked))

    def _find_device(self, process: _SpanWriter, worked: _Worked) -> None:
        """See where a process works, by what it says of itself."""
        if process.device is not None:
            return
        alone = next(iter(self._devices.values())) if len(self._devices) == 1 else None
        process.device = self._devices.get(process.gpu or "") or alone
        pool = self._placement.roles.get(PHASE[worked.phase].role or Role.ACTOR)
        rank = process.about.get("environment", {}).get("RANK", "")
        if process.device is None and pool and str(rank).isdigit() and int(rank) < len(self._placement.pools[pool]):
            device = self._devices[self._placement.pools[pool][int(rank)]]
            if device.kind == "cpu":
                process.device = device
                hold_to(int(process.about["pid"]), device.cores)
        if process.device is not None:
            self._bound.append((int(process.about["pid"]), process.device))

    def bound(self) -> list[tuple[int, Device]]:
        """Processes whose device has become known since the last call, by their pid."""
        found, self._bound = self._bound, []
        return found

    def step(self, number: int) -> Window | None:
        """The time of a step as the framework's own timer has it, counted from 1; None where it has none."""
        if number > len(self._steps):
            return None
        found = sorted(self._steps, key=lambda worked: worked.start)[number - 1]
        return Window(number, found.start, found.end)

    def rows(self, windows: Sequence[Window], wall_offset: float) -> Iterator[dict[str, Any]]:
        """Rows of the spans whose steps are known now.

        Args:
            windows: steps that have become whole since the last call.
            wall_offset: to be added to a time for seconds since the epoch.
        """
        self._windows += windows
        if not self._steps:
            return
        placed: dict[int, list[tuple[_SpanWriter, _Worked]]] = {}
        left = []
        for process, worked in self._waiting:
            window = self._window_of(worked)
            if window is None:
                left.append((process, worked))
            else:
                placed.setdefault(window.step, []).append((process, worked))
        self._waiting = left
        for step, found in sorted(placed.items()):
            for worked, device in self._on_devices(found):
                yield self._row(step, worked, device, wall_offset)

    def _window_of(self, worked: _Worked) -> Window | None:
        middle = (worked.start + worked.end) / 2
        return next((window for window in self._windows if window.start <= middle <= window.end), None)

    def _on_devices(self, found: Sequence[tuple[_SpanWriter, _Worked]]) -> Iterator[tuple[_Worked, str]]:
        """The spans of a step, each with its device or the controller; none where no device is known to work."""
        works = [(worked, process.device.id) for process, worked in found if process.device]
        timed = [worked for process, worked in found if worked.source == _TIMER and process is self._controller]
        if not works:
            return
        yield from works
        yield from ((worked, CONTROLLER) for worked in timed)
        # The engines of a framework may have no spans of their own: they generate while the controller waits for them.
        if GEN not in {worked.phase for worked, _ in works}:
            engines = self._placement.pools.get(self._placement.roles.get(Role.ROLLOUT, ""), ())
            yield from ((worked, device) for worked in timed if worked.phase == GEN for device in engines)

    def _row(self, step: int, worked: _Worked, device: str, wall_offset: float) -> dict[str, Any]:
        role = PHASE[worked.phase].role
        pool = self._placement.pool_of(device) or (self._placement.roles.get(role) if role else None)
        ends = (worked.start + wall_offset, worked.end + wall_offset, worked.start, worked.end)
        return Span(step, worked.phase, role.value if role else None, pool, device, *ends).to_dict()


def hold_to(pid: int, cores: Sequence[int]) -> None:
    """Let all threads of a process run on some cores alone; what ends meanwhile is left out."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), cores)
    except (FileNotFoundError, ProcessLookupError):
        return
