"""How fast the cores are that a job runs on, which the kernel does not say of a guest's: by a fixed loop on them."""

import os
import time
from collections import deque

import psutil

from placebench.telemetry.spans import SpanClock

_EVERY_S = 0.2
# Ticks of the sampler are not quite even.
_EARLY_S = 0.05
# The least of a few tells the core from caches that were cold; each takes some 15 microseconds.
_LOOPS = 3
_LENGTH = 600


class CorePace:
    """CPU time of a fixed loop, on the core that a process of the job last ran on: of one process after the other.

    A core is slower where something else is on its other hardware thread, on a virtual machine another guest too, and
    where its clock is lower. CPU time counts none of the time that the loop waits for a core which the job keeps busy.

    It runs five times a second, for 0.05 ms: what a core is like changes within a second.
    """

    def __init__(self, clock: SpanClock) -> None:
        self._clock = clock
        self._due = clock.mono()
        self._processes: deque[psutil.Process] = deque()

    def add(self, pid: int) -> None:
        """Go to the cores of a process too from now on, if it is still there."""
        try:
            self._processes.append(psutil.Process(pid))
        except psutil.Error:
            return

    def loop_s(self) -> float | None:
        """Seconds of CPU time, the least of three; None where it is not due, and where no process says its core."""
        now = self._clock.mono()
        if now < self._due - _EARLY_S:
            return None
        self._due = now + _EVERY_S
        while self._processes:
            try:
                core = self._processes[0].cpu_num()
            except psutil.Error:
                self._processes.popleft()
                continue
            self._processes.rotate(-1)
            return loop_on(core)
        return None


def loop_on(core: int) -> float | None:
    """Seconds of CPU time of the loop on a core, the least of three; None where this thread may not run on it."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {core})
    except OSError:
        return None
    try:
        return min(_loop() for _ in range(_LOOPS))
    finally:
        os.sched_setaffinity(0, before)


def _loop() -> float:
    begin, total = time.thread_time(), 0
    for number in range(_LENGTH):
        total += number * number
    return time.thread_time() - begin
