"""Samples of CPU devices, and of the controller on any host: CPU time and resident memory of processes."""

import ctypes
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from placebench.telemetry.core_pace import CorePace
from placebench.telemetry.samples import Line, device_line, keys_of
from placebench.telemetry.spans import CONTROLLER, SpanClock

_CHILDREN_EVERY_S = 1.0
_CHILDREN_SHARE = 0.005

_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class JobProcess:
    """A process of the job and the device it works on (`controller` for the controller)."""

    pid: int
    device: str


class CpuSource:
    """Samples devices by the processes that work on them.

    A worker counts with its children, which are looked up once a second, more rarely where that would take over
    0.5 % of a core. The controller counts alone: Ray's daemons, and the workers through them, are its children.

    Args:
        cores: number of cores of each device to sample; the controller is sampled in any case.
        added: the processes of the launch that have come since its last call.
        clock: clock of the samples.
    """

    def __init__(self, cores: Mapping[str, int], added: Callable[[], Iterable[JobProcess]], clock: SpanClock) -> None:
        self._added = added
        self._clock = clock
        self._series = {device: _CpuSeries(device, count) for device, count in {**cores, CONTROLLER: 1}.items()}
        self._stolen = _StolenTime()
        self._pace = CorePace(clock)
        self._children_due = clock.mono()

    def header(self) -> dict[str, Any]:
        """What the header says of this source."""
        return {
            "notes": [
                "util of a CPU device: CPU time of its processes over wall time and pinned cores",
                "util of the controller: CPU time over wall time, of one core",
                "memory_bytes of a CPU device: sum of resident memory; pages shared by processes count in each",
                f"a worker's children are looked up every {_CHILDREN_EVERY_S:g} s, those of the controller not at all",
            ]
        }

    def read(self) -> Iterator[dict[str, Any]]:
        """One sample of every device; load and memory are null while none of its processes is there."""
        for entry in self._added():
            if entry.device in self._series:
                self._series[entry.device].add_worker(entry.pid)
            if entry.device != CONTROLLER:
                self._pace.add(entry.pid)
        self._find_children()
        for series in self._series.values():
            of_host = series.device == CONTROLLER
            values = {"stolen": self._stolen.share(), "core_loop_s": self._pace.loop_s()} if of_host else {}
            yield series.sample(self._clock) | values

    def keep_up(self) -> Iterator[dict[str, Any]]:
        """Nothing is kept that could be lost or would be left to report."""
        yield from ()

    finish = keep_up

    def close(self) -> None:
        """Nothing is held."""

    def _find_children(self) -> None:
        start = self._clock.mono()
        if start < self._children_due:
            return
        for series in self._series.values():
            if series.device != CONTROLLER:
                series.add_children()
        took = self._clock.mono() - start
        self._children_due = start + max(_CHILDREN_EVERY_S, took / _CHILDREN_SHARE)


class _StolenTime:
    """CPU time that the host's hypervisor gave to other guests while this one wanted it, as the kernel counts it."""

    def __init__(self) -> None:
        self._last = psutil.cpu_times()

    def share(self) -> float | None:
        """Its share of what was wanted since the last reading; None where nothing was wanted."""
        now, last = psutil.cpu_times(), self._last
        self._last = now
        wanted = sum(
            getattr(now, of) - getattr(last, of) for of in ("user", "nice", "system", "irq", "softirq", "steal")
        )
        # The counters of a core that goes offline fall.
        return min(1.0, max(0.0, now.steal - last.steal) / wanted) if wanted > 0 else None


class _CpuSeries:
    """One device and the processes that work on it."""

    def __init__(self, device: str, cores: int) -> None:
        self.device = device
        self._cores = cores
        self._processes: dict[int, _Process] = {}
        self._workers: list[int] = []

    def add_worker(self, pid: int) -> None:
        """Count a process of the job from now on, if it is still there."""
        self._workers.append(pid)
        self._add(pid)

    def add_children(self) -> None:
        """Count the children of the job's processes, and theirs."""
        workers = [self._processes[pid] for pid in self._workers if pid in self._processes]
        for child in [child for worker in workers for child in worker.children()]:
            if child not in self._processes:
                self._add(child)

    def _add(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            self._processes[pid] = _Process(pid)

    def sample(self, clock: SpanClock) -> dict[str, Any]:
        """Read every process; one that has ended leaves."""
        busy: list[float] = []
        memory: list[int] = []
        for pid, process in list(self._processes.items()):
            try:
                rate, resident = process.read()
            except ProcessLookupError:
                del self._processes[pid]
                continue
            memory.append(resident)
            if rate is not None:
                busy.append(rate)
        values = {
            "util": sum(busy) / self._cores if busy else None,
            "memory_bytes": sum(memory) if memory else None,
            "processes": len(memory),
        }
        return device_line(Line.SAMPLE, self.device, clock, dict.fromkeys(keys_of("cpu")) | values)


class _Process:
    """One process: the rate at which it uses CPU time, and its memory."""

    def __init__(self, pid: int) -> None:
        self._clock = _cpu_clock(pid)
        self._last: tuple[float, float] | None = None
        try:
            self._process = psutil.Process(pid)
        except psutil.NoSuchProcess as error:
            raise ProcessLookupError(str(error)) from None

    def read(self) -> tuple[float | None, int]:
        """Cores kept busy since the last reading (None at the first), and resident bytes.

        Raises:
            ProcessLookupError: the process has ended.
        """
        try:
            memory = int(self._process.memory_info().rss)
            cpu_s, mono = time.clock_gettime(self._clock), time.monotonic()
        except (psutil.Error, OSError) as error:
            raise ProcessLookupError(str(error)) from None
        if not memory:
            raise ProcessLookupError("it has ended, and its parent has not fetched its exit code")
        last, self._last = self._last, (cpu_s, mono)
        return (None if last is None else (cpu_s - last[0]) / (mono - last[1])), memory

    def children(self) -> list[int]:
        """PIDs of the children there are, and of theirs."""
        try:
            return [child.pid for child in self._process.children(recursive=True)]
        except psutil.Error:
            return []


def _cpu_clock(pid: int) -> int:
    """The clock of the CPU time of a process and all its threads, ended ones too: clock_getcpuclockid(3).

    `/proc` says the same in ticks of 10 ms, which at 5 Hz is 5 % of a core.

    Raises:
        ProcessLookupError: there is no such process.
    """
    clock = ctypes.c_int()
    code = _libc.clock_getcpuclockid(ctypes.c_int(pid), ctypes.byref(clock))
    if code:
        raise ProcessLookupError(code, os.strerror(code))
    return clock.value
