"""Samples of GPUs by NVML and, where the device has it, GPM."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pynvml

from placebench.errors import PlacebenchError
from placebench.telemetry import gpm
from placebench.telemetry.samples import Line, device_line, keys_of
from placebench.telemetry.spans import SpanClock

LOST_CODES = (
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    pynvml.NVML_ERROR_UNKNOWN,
)
"""Errors after which a device's readings mean nothing any more."""

_SLOW_EVERY_S = 1.0
"""How often what changes slowly is read and the power buffer is emptied, of which the driver keeps 2.4 s."""

_OLDEST_S = 5.0
"""Readings of the buffer that seem older have been made before the wall clock, by which they are stamped, was set."""

_ENERGY_EVERY_S = 30.0
"""How often the energy counter is read: on an H200 that takes 3 to 16 ms, for which another process's allocations wait,
where all else takes under 0.6 ms. Power says how the joules between lie in time."""


def _memory(handle: Any) -> dict[str, float]:
    # Version 2: what version 1 calls used contains the driver's reserve.
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    return {"memory_bytes": memory.used, "memory_reserved_bytes": memory.reserved}


def _temperature(handle: Any) -> dict[str, float]:
    try:
        return {"temperature_c": pynvml.nvmlDeviceGetTemperatureV(handle, pynvml.NVML_TEMPERATURE_GPU)}
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
    return {"temperature_c": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)}  # older drivers


def _energy(handle: Any) -> dict[str, float]:
    return {"energy_j": pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000}


_Reading = Callable[[Any], dict[str, Any]]

_EVERY_TICK: dict[str, _Reading] = {
    "util": lambda handle: {"util": pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100},
    "memory_bytes": _memory,
    "power_w": lambda handle: {"power_w": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000},
    "clock_sm_mhz": lambda handle: {"clock_sm_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)},
    "event_reasons": lambda handle: {"event_reasons": pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)},
}
# What changes slowly: each question to the driver may hold up one that the job has.
_ONCE_A_SECOND: dict[str, _Reading] = {
    "temperature_c": _temperature,
    "clock_memory_mhz": lambda handle: {
        "clock_memory_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)
    },
}


class NvmlSource:
    """Samples GPUs, each in a series of its own: one that is lost does not end the others.

    Args:
        devices: UUIDs of the GPUs.
        clock: clock of the samples.

    Raises:
        PlacebenchError: NVML does not answer at all.
    """

    def __init__(self, devices: Sequence[str], clock: SpanClock) -> None:
        try:
            pynvml.nvmlInit()
            self._driver = pynvml.nvmlSystemGetDriverVersion()
        except pynvml.NVMLError as error:
            raise PlacebenchError(f"cannot sample GPUs: NVML does not answer ({error}); is the driver there?") from None
        self._early: list[dict[str, Any]] = []
        handles: dict[str, Any] = {}
        for device in devices:
            try:
                handles[device] = pynvml.nvmlDeviceGetHandleByUUID(device)
            except pynvml.NVMLError as error:
                self._early.append(_error_line(Line.DEVICE_ERROR, device, clock, error))
        self._readers, self._gpm_absent = gpm.probe(handles.items(), clock)
        self._series = [
            _GpuSeries(device, handle, self._readers.get(device), clock, position / len(handles))
            for position, (device, handle) in enumerate(handles.items())
        ]

    def header(self) -> dict[str, Any]:
        """What the header says of this source."""
        notes = [
            "util: share of the driver's sampling period in which any kernel ran, also one that only waits",
            "memory_bytes: allocated by all processes, without memory_reserved_bytes",
            f"power: the driver's buffer, emptied every {_SLOW_EVERY_S:g} s",
            "power_w of samples: an average over 1 s on Ampere and newer, at the sample on GA100 (A100, A30) and older",
            f"energy_j: read at the start, every {_ENERGY_EVERY_S:g} s and at the end, just before the line's clock",
            "earlier_processes: by NVML's process ids, which a container may not see, and then it is 0 or null",
        ]
        if self._gpm_absent:
            notes.append(
                "some devices have no GPM: the activity of their SMs, tensor cores, memory and links is not known"
            )
        return {
            "driver": self._driver,
            "gpm": bool(self._readers) and not self._gpm_absent,
            "gpm_absent": self._gpm_absent,
            "notes": notes,
        }

    def read(self) -> Iterator[dict[str, Any]]:
        """A sample of every device that still answers, what else is due, and a line for each error not met before."""
        yield from self._early
        self._early = []
        yield from self._ask(lambda series: series.read())

    def keep_up(self) -> Iterator[dict[str, Any]]:
        """Lines of power when they are due, for a time without samples that is longer than the driver keeps them."""
        yield from self._ask(lambda series: series.keep_up())

    def finish(self) -> Iterator[dict[str, Any]]:
        """What power and energy still have to report after the last sample."""
        yield from self._ask(lambda series: series.finish())

    def _ask(self, lines: Callable[["_GpuSeries"], Iterator[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
        for series in list(self._series):
            try:
                yield from lines(series)
            except DeviceLostError as lost:
                self._series.remove(series)
                yield lost.line
            yield from series.drain_errors()

    def close(self) -> None:
        """Give everything back to NVML; a device that was lost cannot take it."""
        for reader in self._readers.values():
            with suppress(pynvml.NVMLError):
                reader.free()
        pynvml.nvmlShutdown()


class DeviceLostError(Exception):
    """A device has no readings any more; `line` says so in the file."""

    def __init__(self, line: dict[str, Any]) -> None:
        super().__init__(line)
        self.line = line


class _Every:
    """Due at the first asking, then once in every period.

    Args:
        period: seconds.
        offset: part of the period (0 to 1) by which the later times are shifted.
        clock: monotonic clock.
    """

    def __init__(self, period: float, offset: float, clock: SpanClock) -> None:
        self._period = period
        self._clock = clock
        self._due = clock.mono()
        self._next = self._due + offset * period

    def is_due(self) -> bool:
        """Whether it is due now; it is not again until its next time."""
        now = self._clock.mono()
        if now < self._due:
            return False
        while self._next <= now:
            self._next += self._period
        self._due = self._next
        return True


class _GpuSeries:
    """One GPU. `offset` (0 to 1) spreads the rarer readings of several GPUs over their period."""

    def __init__(self, device: str, handle: Any, reader: gpm.GpmReader | None, clock: SpanClock, offset: float) -> None:
        self.device = device
        self._handle = handle
        self._clock = clock
        self._gpm = reader
        self._slow, self._power = (_Every(_SLOW_EVERY_S, offset, clock) for _ in range(2))
        self._energy = _Every(_ENERGY_EVERY_S, offset, clock)
        self._power_stamp = 0
        self._earlier: frozenset[int] | None = None
        self._seen: set[tuple[str, int]] = set()
        self._errors: list[dict[str, Any]] = []

    def read(self) -> Iterator[dict[str, Any]]:
        """A sample, in which a quantity that cannot be read is None, and lines of power and energy when they are due.

        Raises:
            DeviceLostError: the device is lost.
        """
        values: dict[str, float | None] = dict.fromkeys(keys_of("nvml"))
        found: dict[str, Any] = {}
        if self._slow.is_due():
            self._try("compute_processes", self._processes, found)
            for key, reading in _ONCE_A_SECOND.items():
                self._try(key, reading, found)
        processes = found.pop("processes", None)
        values |= found
        for key, reading in _EVERY_TICK.items():
            self._try(key, reading, values)
        if self._gpm is not None:
            reader = self._gpm
            self._try("gpm", lambda _: reader.read(), values)
        yield device_line(Line.SAMPLE, self.device, self._clock, values)
        if processes:
            yield device_line(Line.PROCESSES, self.device, self._clock, {"processes": processes})
        yield from self.keep_up()
        if self._energy.is_due():
            yield from self._line(Line.ENERGY, "energy_j", _energy)

    def keep_up(self) -> Iterator[dict[str, Any]]:
        """A line of power when it is due."""
        if self._power.is_due():
            yield from self._line(Line.POWER, "power", self._drained_power)

    def finish(self) -> Iterator[dict[str, Any]]:
        """The last lines of power and energy.

        Raises:
            DeviceLostError: the device is lost.
        """
        yield from self._line(Line.POWER, "power", self._drained_power)
        yield from self._line(Line.ENERGY, "energy_j", _energy)

    def _line(self, kind: Line, key: str, reading: _Reading) -> Iterator[dict[str, Any]]:
        """A line of one reading; none where it says nothing."""
        values: dict[str, Any] = {}
        self._try(key, reading, values)
        if values:
            yield device_line(kind, self.device, self._clock, values)

    def drain_errors(self) -> list[dict[str, Any]]:
        """Lines of the errors met for the first time since the last call."""
        drained, self._errors = self._errors, []
        return drained

    def _processes(self, handle: Any) -> dict[str, Any]:
        """The device's processes, how many, and how many of its first reading: the sampler starts before the job."""
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        found = frozenset(process.pid for process in processes)
        if self._earlier is None:
            self._earlier = found
        return {
            "compute_processes": len(found),
            "earlier_processes": len(found & self._earlier),
            "processes": [{"pid": process.pid, "memory_bytes": process.usedGpuMemory} for process in processes],
        }

    def _drained_power(self, handle: Any) -> dict[str, Any]:
        """Readings of the driver's buffer since the last call; nothing when there are none."""
        now = int(time.time() * 1e6)
        if self._power_stamp > now + 1e6:  # the wall clock, by which the driver stamps, was set back
            self._power_stamp = int(now - _SLOW_EVERY_S * 1e6)
        try:
            _, readings = pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_TOTAL_POWER_SAMPLES, self._power_stamp)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:
                return {}
            raise
        oldest = max(self._power_stamp, now - _OLDEST_S * 1e6)
        new = [reading for reading in readings if oldest < reading.timeStamp <= now + 1e6]
        if not new:
            return {}
        self._power_stamp = new[-1].timeStamp
        # The wall clock may have been set since the sampler's start, so its time is taken anew.
        mono = self._clock.mono() - (time.time() - self._power_stamp * 1e-6)
        return {
            "mono": mono,
            "ago_s": [round((self._power_stamp - reading.timeStamp) * 1e-6, 6) for reading in new],
            "power_w": [reading.sampleValue.uiVal / 1000 for reading in new],
        }

    def _try(self, key: str, reading: _Reading, values: dict[str, Any]) -> None:
        try:
            values.update(reading(self._handle))
        except pynvml.NVMLError as error:
            # `==` between an NVMLError and a number raises, so codes are compared. A lost device fails in the other
            # readings too, and what the buffer alone fails in ends nothing else.
            if error.value in LOST_CODES and key != "power":
                raise DeviceLostError(_error_line(Line.DEVICE_ERROR, self.device, self._clock, error)) from None
            if error.value != pynvml.NVML_ERROR_NOT_SUPPORTED and (key, error.value) not in self._seen:
                self._seen.add((key, error.value))
                line = _error_line(Line.READING_ERROR, self.device, self._clock, error)
                self._errors.append(line | {"quantity": key})


def _error_line(kind: Line, device: str, clock: SpanClock, error: Any) -> dict[str, Any]:
    return device_line(kind, device, clock, {"code": error.value, "message": str(error)})
