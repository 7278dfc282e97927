"""The critical path of a step: the chain of phases, and of gaps between them, that made the step as long as it was.

A phase starts when the results it needs are there and its devices are free; which of these came last is what it
waited for. So the path is found backwards: from the phase that ended the step to the one that ended last before it
could start, and on until the step's start. What lies between the two is a gap, in which the controller collects
results and submits the next phase. Every moment of the step belongs to exactly one segment of the path.
What is no part of training, validation and checkpoints, is on the path like a phase and taken out of the numbers.

Work counts for the step in whose time it is done. Where engines generate ahead of their step, the path leads through
generation while training waits for sequences, and through training while generation waits for weights.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import pandas as pd

from placebench.compare.metrics import BESIDE, END, GAP, IMBALANCE, OFF_PATH, PATH
from placebench.compare.read.run import APART, Launch, is_whole_step
from placebench.spec.bound import RunPlacement
from placebench.spec.intervals import covered, length, subtract, union
from placebench.spec.phases import GEN, PHASES, STEP, UPDATE_WEIGHTS
from placebench.spec.placement import Overlap
from placebench.spec.stepgraph import graph_among
from placebench.telemetry.spans import CONTROLLER

# Phases that engines do one by one: each generates its parts, and may take weights in the middle of one.
OF_ENGINES = (GEN, UPDATE_WEIGHTS)
UPDATES = tuple(phase.name for phase in PHASES if phase.trains)


@dataclass(frozen=True)
class Segment:
    """A part of the path."""

    phase: str
    """The phase; of a gap the one that it precedes, or `END`."""
    is_gap: bool
    """Whether no phase of the path is under way in it."""
    step: int
    """The step that the phase belongs to."""
    start: float
    """Seconds of the monotonic clock."""
    end: float
    """Seconds of the monotonic clock; the next segment's start."""
    device: str | None = None
    """The device that ended the phase last; None for a gap."""
    imbalance: float = 0.0
    """Seconds that the phase's devices do not work on it, their mean: what equal ranks would save."""

    @property
    def seconds(self) -> float:
        """Length of the segment."""
        return self.end - self.start


@dataclass(frozen=True, eq=False)
class PhaseWork:
    """A phase of one step on all devices that work on it; of engines apart from the trainer, what one device does."""

    step: int
    """The step it belongs to."""
    phase: str
    """Its name."""
    times: tuple[tuple[str, float, float], ...]
    """Start and end on each device, one entry a span."""

    @cached_property
    def start(self) -> float:
        """When the first device began."""
        return min(start for _, start, _ in self.times)

    @cached_property
    def end(self) -> float:
        """When the last device ended."""
        return max(end for *_, end in self.times)

    @cached_property
    def devices(self) -> frozenset[str]:
        """The devices, or `CONTROLLER` for its own work."""
        return frozenset(device for device, *_ in self.times)

    def idle(self, start: float, end: float) -> float:
        """Seconds between two times that a device does not work on the phase, mean of its devices."""
        worked = sum(max(0.0, min(stop, end) - max(begin, start)) for _, begin, stop in self.times)
        return max(0.0, end - start - worked / len(self.devices))


class SpanGraph:
    """The phases of a launch, and what each of them waited for.

    Args:
        spans: of one launch, columns as in `Launch.spans`.
        placement: its placement.
        joins_updates: whether weights wait for every update that has ended before they go on their way, as under the
            controllers of jobs of the user's; else for the actor's alone.
    """

    def __init__(self, spans: pd.DataFrame, placement: RunPlacement, *, joins_updates: bool = False) -> None:
        self._joins_updates = joins_updates
        self._blocking = placement.overlap != Overlap.ALL
        self._has_engines = placement.has_engines
        self._works = _works(spans, alone=OF_ENGINES if self._has_engines else ())
        self._starts = [work.start for work in self._works]
        self._latest_ends = list(accumulate((work.end for work in self._works), max))
        names = {work.phase for work in self._works}
        graph = graph_among(names, placement.staleness, has_engines=placement.has_engines)
        self._graph = {phase.name: phase for phase in graph}
        whole = spans[is_whole_step(spans)]
        ends = zip(whole["start"].tolist(), whole["end"].tolist(), strict=True)
        self._windows: dict[int, tuple[float, float]] = dict(zip(whole["step"].tolist(), ends, strict=True))

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that are on record, in order."""
        return tuple(sorted(self._windows))

    def critical_path(self, step: int) -> tuple[Segment, ...]:
        """The path of a step in order of time, from its start to its end without a hole; empty for an unknown step."""
        if step not in self._windows:
            return ()
        start, end = self._windows[step]
        segments = list(self._backwards(step, start, end))
        return tuple(segment for segment in reversed(segments) if segment.end > segment.start)

    def during(self, step: int) -> Iterator[tuple[PhaseWork, float, float]]:
        """All work done in the time of a step, with its first start and last end within it."""
        start, end = self._windows[step]
        for work in self._works[bisect_right(self._latest_ends, start) : bisect_left(self._starts, end)]:
            if work.end > start:
                yield work, max(work.start, start), min(work.end, end)

    def _backwards(self, step: int, start: float, end: float) -> Iterator[Segment]:
        works = [work for work, *_ in self.during(step)]
        # A phase that outlasts its step does not end it.
        ending = (one for one in works if one.step == step and (one.end <= end or not self._outlasts(one)))
        work = max(ending, key=lambda one: one.end, default=None)
        now, seen = end, set()
        if work is None or work.end < end:
            before = start if work is None else work.end
            yield Segment(END, True, step, before, now)
            now = before
        while work is not None and now > start:
            seen.add(work)
            released, cause = self._release(work, [one for one in works if one not in seen])
            released = min(max(released, start), now)
            begin = min(max(work.start, released), now)
            last = max(work.times, key=lambda time: time[2])[0]
            yield Segment(work.phase, False, work.step, begin, now, last, work.idle(begin, now))
            yield Segment(work.phase, True, work.step, released, begin)
            work, now = cause, released

    def _outlasts(self, work: PhaseWork) -> bool:
        return work.phase in self._graph and self._graph[work.phase].outlasts

    def _release(self, work: PhaseWork, others: list[PhaseWork]) -> tuple[float, PhaseWork | None]:
        """When a phase could start, and which of the others it had to wait for until then."""
        released, cause = float("-inf"), None
        for other in others:
            if self._is_input(other, work):
                at = min(other.end, work.end)
            elif other.start < work.start and self._holds_up(other, work):
                at = min(other.end, work.start)
            else:
                continue
            if at > released:
                released, cause = at, other
        return released, cause

    def _is_input(self, other: PhaseWork, work: PhaseWork) -> bool:
        """Whether a phase needs the other's results: of its own step, or of another one."""
        phase = self._graph.get(work.phase)
        if phase is None:
            return False
        if self._has_engines and other.phase == GEN and GEN in phase.after:
            # A step takes what is ready, so that it may be another step's; the last before its start let it start.
            return other.end <= work.start
        if other.step == work.step:
            is_joined = self._joins_updates and work.phase == UPDATE_WEIGHTS and other.end <= work.start
            return other.phase in phase.after or (is_joined and other.phase in UPDATES)
        return (other.phase, work.step - other.step) in phase.across

    def _holds_up(self, other: PhaseWork, work: PhaseWork) -> bool:
        """Whether work that began before holds a phase up: by its devices, or as nothing may overlap.

        So it is with all that came before a phase that is none of the graph's, for what it waits for is not known.
        """
        return self._blocking or work.phase not in self._graph or not other.devices.isdisjoint(work.devices)


def path_values(launch: Launch, placement: RunPlacement, steps: Iterable[int], step_s: float) -> dict[str, float]:
    """What the step of a launch consists of, in seconds, by key.

    - `path/<phase>`: the phase, as far as it lies on the path; with `gap/<phase>`, the gaps before it and before the
      step's end, these add up to the step;
    - `off_path/<phase>`: the phase as far as it does not, because other work took longer beside it: from its first
      device's start to its last one's end, less what lies on the path; of phases that run ahead of their step, what
      is done in the time of this one;
    - `imbalance/<phase>`: that part of `path/<phase>` in which devices of the phase did not work on it, their mean;
    - `beside/<phase>+<phase>`: time of a phase, the first, off the path beside one on it.

    Args:
        launch: the launch.
        placement: its placement.
        steps: the measured steps. Each counts alike, with the shares that these parts have in it, so that a single
            slow step does not decide what the launch's step is said to consist of.
        step_s: the launch's step time, which the mean of the shares divides.
    """
    graph = SpanGraph(launch.spans, placement, joins_updates=launch.is_of_job)
    shares = list(filter(None, (path_shares(graph, step) for step in steps)))
    totals: dict[str, float] = defaultdict(float)
    for key, share in (entry for step in shares for entry in step.items()):
        totals[key] += share
    return {key: step_s * total / len(shares) for key, total in totals.items()}


def path_shares(graph: SpanGraph, step: int) -> Mapping[str, float]:
    """The numbers of `path_values` for one step, as shares of its time."""
    path = graph.critical_path(step)
    if not path:
        return {}
    times = {phase: union(np.array(found)) for phase, found in _by_phase(graph, step).items()}
    apart = union(np.concatenate([np.empty((0, 2)), *(times.pop(phase) for phase in APART if phase in times)]))
    ends = np.array([(segment.start, segment.end) for segment in path])
    lengths = ends[:, 1] - ends[:, 0] - covered(ends, apart)
    seconds: dict[str, float] = defaultdict(float)
    for segment, part in zip(path, map(float, lengths), strict=True):
        if segment.is_gap:
            # Time that passes before a validation or a checkpoint does not belong to these, which are taken out.
            seconds[f"{GAP}{END if segment.phase in APART else segment.phase}"] += part
        elif segment.phase not in APART:
            seconds[f"{PATH}{segment.phase}"] += part
            seconds[f"{IMBALANCE}{segment.phase}"] += min(segment.imbalance, part)
    for phase, found in times.items():
        worked = subtract(found, apart)
        for segment, shared in zip(path, map(float, covered(ends, worked)), strict=True):
            if shared > 0 and not segment.is_gap and segment.phase != phase:
                seconds[f"{BESIDE}{phase}+{segment.phase}"] += shared
        seconds[f"{OFF_PATH}{phase}"] = max(0.0, length(worked) - seconds[f"{PATH}{phase}"])
    whole = sum(found for key, found in seconds.items() if key.startswith((PATH, GAP)))
    return {key: found / whole for key, found in seconds.items()} if whole > 0 else {}


def _by_phase(graph: SpanGraph, step: int) -> Mapping[str, list[tuple[float, float]]]:
    """When each phase was under way in the time of a step, whichever step it was for."""
    times: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for work, start, end in graph.during(step):
        times[work.phase].append((start, end))
    return times


def _works(spans: pd.DataFrame, alone: Collection[str]) -> tuple[PhaseWork, ...]:
    """The phases of all steps in order of their start; the controller's view only where no device works on one.

    Args:
        spans: of one launch.
        alone: phases in which devices work by themselves, each span for its own.
    """
    times: dict[tuple[int, str], list[tuple[str, float, float]]] = defaultdict(list)
    chosen = spans[(spans["step"] > 0) & (spans["phase"] != STEP)]
    columns = (chosen[name].tolist() for name in ("step", "phase", "device", "start", "end"))
    for step, phase, device, start, end in zip(*columns, strict=True):
        times[step, phase].append((device, start, end))
    works = []
    for (step, phase), found in times.items():
        remote = tuple(time for time in found if time[0] != CONTROLLER) or tuple(found)
        works += [
            PhaseWork(step, phase, group) for group in ([(time,) for time in remote] if phase in alone else [remote])
        ]
    return tuple(sorted(works, key=lambda work: (work.start, work.end)))
