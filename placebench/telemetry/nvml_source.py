"""Samples of GPUs by NVML and, where the device has it, GPM."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pynvml

from placebench.errors import PlacebenchError
from placebench.telemetry import gpm
from placebench.telemetry.samples import Line, keys_of
from placebench.telemetry.spans import SpanClock

LOST_CODES = (
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    pynvml.NVML_ERROR_UNKNOWN,
)
"""Errors after which a device's readings mean nothing any more."""

_SLOW_EVERY_S = 1.0
"""How often a device is asked for what takes long, or changes rarely: its energy counter and its processes."""


def _utilization(handle: Any) -> dict[str, float]:
    return {"util": pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100}


def _memory(handle: Any) -> dict[str, float]:
    # Version 2: what version 1 calls used contains the driver's reserve.
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    return {"memory_bytes": memory.used, "memory_reserved_bytes": memory.reserved}


def _power(handle: Any) -> dict[str, float]:
    return {"power_w": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000}


def _instant_power(handle: Any) -> dict[str, float]:
    (field,) = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_POWER_INSTANT])
    if field.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(field.nvmlReturn)
    return {"power_instant_w": field.value.uiVal / 1000}


def _temperature(handle: Any) -> dict[str, float]:
    try:
        return {"temperature_c": pynvml.nvmlDeviceGetTemperatureV(handle, pynvml.NVML_TEMPERATURE_GPU)}
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
    return {"temperature_c": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)}  # older drivers


def _sm_clock(handle: Any) -> dict[str, float]:
    return {"clock_sm_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)}


def _memory_clock(handle: Any) -> dict[str, float]:
    return {"clock_memory_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)}


def _event_reasons(handle: Any) -> dict[str, float]:
    return {"event_reasons": pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)}


def _energy(handle: Any) -> dict[str, float]:
    return {"energy_j": pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000}


def _process_ids(handle: Any) -> frozenset[int]:
    return frozenset(process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle))


_Reading = Callable[[Any], dict[str, float]]

_EVERY_TICK: tuple[tuple[str, _Reading], ...] = (
    ("util", _utilization),
    ("memory_bytes", _memory),
    ("power_w", _power),
    ("power_instant_w", _instant_power),
    ("temperature_c", _temperature),
    ("clock_sm_mhz", _sm_clock),
    ("clock_memory_mhz", _memory_clock),
    ("event_reasons", _event_reasons),
)


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
                self._early.append(_error_line(clock, Line.DEVICE_ERROR, device, error))
        self._readers, self._gpm_absent = gpm.probe(handles.items(), clock)
        self._series = [
            _Series(device, handle, self._readers.get(device), clock, position / len(handles))
            for position, (device, handle) in enumerate(handles.items())
        ]

    def header(self) -> dict[str, Any]:
        """What the header says of this source."""
        notes = [
            "util: share of the driver's sampling period in which any kernel ran, also one that only waits",
            "memory_bytes: allocated by all processes, without memory_reserved_bytes",
            f"energy_j and the processes are read every {_SLOW_EVERY_S:g} s, just before the sample's clock",
            "earlier_processes: by NVML's process ids, which a container may not see, and then it is 0 or null",
        ]
        if self._gpm_absent:
            notes.append("no GPM on some devices: their activity of SMs, tensor cores, memory and links is not known")
        return {
            "driver": self._driver,
            "gpm": bool(self._readers) and not self._gpm_absent,
            "gpm_absent": self._gpm_absent,
            "notes": notes,
        }

    def read(self) -> Iterator[dict[str, Any]]:
        """A sample of every device that still answers, and a line for each error met for the first time."""
        yield from self._early
        self._early = []
        for series in list(self._series):
            try:
                yield series.sample()
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


class _Series:
    """One GPU. `offset` (0 to 1) spreads the slow readings of several GPUs over the second."""

    def __init__(self, device: str, handle: Any, reader: gpm.GpmReader | None, clock: SpanClock, offset: float) -> None:
        self.device = device
        self._handle = handle
        self._clock = clock
        self._gpm = reader
        self._slow_due = clock.mono()
        self._slow_next = self._slow_due + offset * _SLOW_EVERY_S
        self._earlier: frozenset[int] | None = None
        self._seen: set[tuple[str, int]] = set()
        self._errors: list[dict[str, Any]] = []

    def sample(self) -> dict[str, Any]:
        """Read everything that is due; a quantity that cannot be read is None.

        Raises:
            DeviceLostError: the device is lost.
        """
        values: dict[str, float | None] = dict.fromkeys(keys_of("nvml"))
        if self._slow_is_due():  # first: energy takes milliseconds, and the sample's clock is read after
            self._try("energy_j", _energy, values)
            self._try("compute_processes", self._processes, values)
        for key, reading in _EVERY_TICK:
            self._try(key, reading, values)
        if self._gpm is not None:
            reader = self._gpm
            self._try("gpm", lambda _: reader.read(), values)
        mono = self._clock.mono()
        return {"kind": Line.SAMPLE, "wall": self._clock.wall(mono), "mono": mono, "device": self.device, **values}

    def drain_errors(self) -> list[dict[str, Any]]:
        """Lines of the errors met for the first time since the last call."""
        drained, self._errors = self._errors, []
        return drained

    def _processes(self, handle: Any) -> dict[str, float]:
        """Count the device's processes, and those of its first reading: the sampler starts before the job."""
        found = _process_ids(handle)
        if self._earlier is None:
            self._earlier = found
        return {"compute_processes": len(found), "earlier_processes": len(found & self._earlier)}

    def _slow_is_due(self) -> bool:
        now = self._clock.mono()
        if now < self._slow_due:
            return False
        while self._slow_next <= now:
            self._slow_next += _SLOW_EVERY_S
        self._slow_due = self._slow_next
        return True

    def _try(self, key: str, reading: Callable[[Any], Any], values: dict[str, float | None]) -> None:
        try:
            values.update(reading(self._handle))
        except pynvml.NVMLError as error:
            # `==` between an NVMLError and a number raises, so codes are compared.
            if error.value in LOST_CODES:
                raise DeviceLostError(_error_line(self._clock, Line.DEVICE_ERROR, self.device, error)) from None
            known = error.value == pynvml.NVML_ERROR_NOT_SUPPORTED or (key, error.value) in self._seen
            if not known:
                self._seen.add((key, error.value))
                self._errors.append(
                    _error_line(self._clock, Line.READING_ERROR, self.device, error) | {"quantity": key}
                )


def _error_line(clock: SpanClock, kind: Line, device: str, error: Any) -> dict[str, Any]:
    mono = clock.mono()
    return {
        "kind": kind,
        "wall": clock.wall(mono),
        "mono": mono,
        "device": device,
        "code": error.value,
        "message": str(error),
    }
