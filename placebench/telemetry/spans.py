"""Phase spans: when which device worked on which phase, as timed in the process that did the work.

A span's ends are read from the monotonic clock, which all processes of a node share, after the device has
finished what was queued on it. Wall time is derived from it by one offset per process, so that an interval
has the same length on both clocks even when the wall clock is set in between.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Protocol

CONTROLLER = "controller"
# The controller's span of the step whose kernels are traced, which belongs to no step that is kept.
TRACED_STEP = "trace_kernels"


class SpanClock:
    """The monotonic clock with wall time at a fixed offset.

    Attributes:
        offset: seconds to add to `time.monotonic()` to get `time.time()`, as of the clock's creation.
    """

    def __init__(self) -> None:
        before = time.monotonic()
        wall = time.time()
        self.offset = wall - (before + time.monotonic()) / 2

    def mono(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def wall(self, mono: float) -> float:
        """Wall time, seconds since the epoch, of a monotonic time."""
        return mono + self.offset


@dataclass(frozen=True)
class Span:
    """One phase on one device; times in seconds."""

    step: int
    """Step of the launch, counted from 1; 0 is start-up."""
    phase: str
    """The step graph's name of the phase."""
    role: str | None
    """The role that worked; None for work of no role."""
    pool: str | None
    """The pool it lives in; None for work of no pool."""
    device: str
    """The device's id, or `controller` for the controller's view from submission to result."""
    start_wall: float
    """Start, seconds since the epoch."""
    end_wall: float
    """End, seconds since the epoch."""
    start_mono: float
    """Start on the node's monotonic clock."""
    end_mono: float
    """End on the node's monotonic clock."""
    memory_peak_bytes: int | None = None
    """Most device memory that tensors took at a time in it, those of an engine aside; None where that is not counted.
    """
    memory_reserved_bytes: int | None = None
    """Most device memory that tensors took at a time, with what their allocator kept in reserve; None as above."""
    pid: int | None = None
    """The process that worked, of a job of the user's; None where its device has but one."""

    def to_dict(self) -> dict[str, Any]:
        """The span as one object of `spans.jsonl`; memory and process only where they are known."""
        optional = ("memory_peak_bytes", "memory_reserved_bytes", "pid")
        return {name: value for name, value in asdict(self).items() if value is not None or name not in optional}


class DeviceMeter(Protocol):
    """What a device that works asynchronously, with memory of its own, reports of a span."""

    def synchronize(self) -> None:
        """Wait until the device has done all work queued so far."""

    def reset_peaks(self) -> None:
        """Count memory peaks from here."""

    def peaks(self) -> tuple[int, int]:
        """Most bytes that tensors took since `reset_peaks`, and most that their allocator reserved."""

    def left_out(self) -> AbstractContextManager[None]:
        """Leave out of both what the body allocates and keeps."""


class SpanRecorder:
    """Collects the spans of one process.

    Args:
        device: the id of the device the process works on, or `CONTROLLER`.
        pool: the pool of the process; None where it has none.
        meter: the device; it is synchronized before each reading of the clock. None where work is done when its call
            returns, as on CPU devices.
        clock: the clock to read; one of its own when not given.
    """

    def __init__(
        self,
        device: str,
        pool: str | None = None,
        meter: DeviceMeter | None = None,
        clock: SpanClock | None = None,
    ) -> None:
        self.device = device
        self.pool = pool
        self.clock = clock or SpanClock()
        self._meter = meter
        self._spans: list[Span] = []
        self._open: list[_OpenSpan] = []

    def now(self) -> float:
        """Monotonic time at which the device has done all work queued so far."""
        if self._meter is not None:
            self._meter.synchronize()
        return self.clock.mono()

    def left_out(self) -> AbstractContextManager[None]:
        """Leave out of the memory of every span to come what the body allocates and keeps."""
        return nullcontext() if self._meter is None else self._meter.left_out()

    @contextmanager
    def span(self, step: int, phase: str, role: str | None = None, pool: str | None = None) -> Iterator[None]:
        """Record the body as one span; a body that raises leaves none.

        Args:
            step: step of the launch, 0 for start-up.
            phase: the step graph's name of the phase.
            role: the role that works.
            pool: the phase's pool where it is not the process's own, as in the controller.
        """
        one = _OpenSpan(step, phase, role, pool, self._begin())
        self._open.append(one)
        try:
            yield
            self._end(one)
        finally:
            self._open.pop()

    @contextmanager
    def interruption(self, step: int, phase: str, role: str | None = None) -> Iterator[None]:
        """Record the body as a span that cuts the span around it in two, so that no moment counts for both."""
        around = self._open[-1]
        self._end(around)
        with self.span(step, phase, role):
            yield
        around.start = self._begin()

    def _begin(self) -> float:
        start = self.now()
        if self._meter is not None:
            self._meter.reset_peaks()
        return start

    def _end(self, one: "_OpenSpan") -> None:
        end = self.now()
        peaks = self._meter.peaks() if self._meter is not None else (None, None)
        self.add(one.step, one.phase, one.start, end, one.role, one.pool, peaks)

    def add(
        self,
        step: int,
        phase: str,
        start: float,
        end: float,
        role: str | None = None,
        pool: str | None = None,
        peaks: tuple[int | None, int | None] = (None, None),
    ) -> None:
        """Record a span whose ends were read with `now`, for work that no one block of code encloses.

        Args:
            step: step of the launch, 0 for start-up.
            phase: the step graph's name of the phase.
            start: monotonic start, seconds.
            end: monotonic end, seconds.
            role: the role that works.
            pool: the phase's pool where it is not the process's own.
            peaks: its `memory_peak_bytes` and `memory_reserved_bytes`.
        """
        wall, pool = self.clock.wall, pool or self.pool
        self._spans.append(Span(step, phase, role, pool, self.device, wall(start), wall(end), start, end, *peaks))

    def drain(self) -> list[dict[str, Any]]:
        """The spans since the last call, in the order in which they ended, as objects of `spans.jsonl`."""
        drained, self._spans = self._spans, []
        return [span.to_dict() for span in drained]


@dataclass
class _OpenSpan:
    step: int
    phase: str
    role: str | None
    pool: str | None
    start: float
