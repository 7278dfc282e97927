"""A stand-in for the driver's library where there is no GPU.

It takes the place of the shared library below the real binding, so names, structs and error classes are the
binding's own: a function receives the ctypes arguments that the driver would.
"""

# ruff: noqa: N802

import ctypes
import time
from dataclasses import dataclass, field
from typing import Any

import pynvml
import pytest


@dataclass
class FakeGpu:
    """What one GPU answers; `errors` maps the name of a C function to the code it returns.

    `power_buffer` holds a reading's time in microseconds since the epoch, and milliwatts.
    """

    uuid: str
    name: str = "NVIDIA H200"
    pci: str = "00000000:01:00.0"
    values: dict[str, int] = field(default_factory=dict)
    gpm: dict[int, float] = field(default_factory=dict)
    gpm_codes: dict[int, int] = field(default_factory=dict)
    gpm_supported: bool = True
    mig_mode: int | None = None
    nvlinks: int = 0
    processes: list[int] = field(default_factory=list)
    process_memory: dict[int, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    power_buffer: list[tuple[int, int]] = field(default_factory=list)


# NVML_VALUE_NOT_AVAILABLE of a c_ulonglong.
NOT_AVAILABLE = 2**64 - 1
DEFAULTS = {
    "util": 87,
    "memory_total": 150_754_820_096,
    "memory_used": 40 * 2**30,
    "memory_reserved": 645 * 2**20,
    "power_mw": 412_345,
    "temperature": 61,
    "clock_1": 1365,
    "clock_2": 3201,
    "event_reasons": 0x4,
    "energy_mj": 1_234_567_890,
}


class FakeLibrary:
    """The C functions; unknown ones are missing, as in an old driver."""

    def __init__(self, gpus: list[FakeGpu], driver: str = "580.159.03", init_code: int = 0) -> None:
        self.gpus = gpus
        self.driver = driver
        self.init_code = init_code
        self._targets = [pynvml.struct_c_nvmlDevice_t() for _ in gpus]
        self._samples: dict[int, tuple[Any, float]] = {}
        self.calls: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        """Functions of one device: the handle chooses it, an injected error comes before the answer."""
        answer = getattr(type(self), f"_{name}", None)
        if answer is None:
            raise AttributeError(name)

        def call(handle: Any, *arguments: Any) -> int:
            gpu = self._gpu(handle)
            self.calls.append((name, gpu.uuid))
            if code := gpu.errors.get(name, 0):
                return code
            return int(answer(self, gpu, *arguments) or 0)

        return call

    def _gpu(self, handle: Any) -> FakeGpu:
        address = ctypes.addressof(handle.contents)
        return next(
            gpu for gpu, target in zip(self.gpus, self._targets, strict=True) if ctypes.addressof(target) == address
        )

    def nvmlInitWithFlags(self, flags: int) -> int:
        return self.init_code

    def nvmlShutdown(self) -> int:
        return 0

    def nvmlSystemGetDriverVersion(self, buffer: Any, size: Any) -> int:
        buffer.value = self.driver.encode()
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.gpus)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> int:
        return self._handle(getattr(index, "value", index), device)

    def nvmlDeviceGetHandleByUUID(self, uuid: Any, device: Any) -> int:
        known = [gpu.uuid for gpu in self.gpus]
        text = uuid.value.decode()
        return self._handle(known.index(text), device) if text in known else int(pynvml.NVML_ERROR_NOT_FOUND)

    def _handle(self, index: int, device: Any) -> int:
        device._obj.contents = self._targets[index]
        return self.gpus[index].errors.get("handle", 0)

    def _value(self, gpu: FakeGpu, key: str) -> int:
        return gpu.values.get(key, DEFAULTS[key])

    def _nvmlDeviceGetUUID(self, gpu: FakeGpu, buffer: Any, size: Any) -> None:
        buffer.value = gpu.uuid.encode()

    def _nvmlDeviceGetName(self, gpu: FakeGpu, buffer: Any, size: Any) -> None:
        buffer.value = gpu.name.encode()

    def _nvmlDeviceGetPciInfo_v3(self, gpu: FakeGpu, info: Any) -> None:
        info._obj.busId = gpu.pci.encode()

    def _nvmlDeviceGetMigMode(self, gpu: FakeGpu, current: Any, pending: Any) -> int:
        if gpu.mig_mode is None:
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        current._obj.value = pending._obj.value = gpu.mig_mode
        return 0

    def _nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu, memory: Any) -> None:
        memory._obj.total = self._value(gpu, "memory_total")
        memory._obj.used = self._value(gpu, "memory_used") + self._value(gpu, "memory_reserved")

    def _nvmlDeviceGetMemoryInfo_v2(self, gpu: FakeGpu, memory: Any) -> int:
        if memory._obj.version != pynvml.nvmlMemory_v2:
            return int(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        memory._obj.total = self._value(gpu, "memory_total")
        memory._obj.used = self._value(gpu, "memory_used")
        memory._obj.reserved = self._value(gpu, "memory_reserved")
        return 0

    def _nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu, rates: Any) -> None:
        rates._obj.gpu = self._value(gpu, "util")

    def _nvmlDeviceGetPowerUsage(self, gpu: FakeGpu, power: Any) -> None:
        power._obj.value = self._value(gpu, "power_mw")

    def _nvmlDeviceGetSamples(
        self, gpu: FakeGpu, kind: Any, stamp: Any, value_type: Any, count: Any, samples: Any
    ) -> int:
        """Like the driver: without room for samples it tells their number."""
        assert kind.value == pynvml.NVML_TOTAL_POWER_SAMPLES
        new = [reading for reading in gpu.power_buffer if reading[0] > stamp.value]
        if not new:
            return int(pynvml.NVML_ERROR_NOT_FOUND)
        count._obj.value = len(new)
        for entry, (micros, milliwatts) in zip(samples or (), new, strict=False):
            entry.timeStamp, entry.sampleValue.uiVal = micros, milliwatts
        return 0

    def _nvmlDeviceGetTemperatureV(self, gpu: FakeGpu, reading: Any) -> None:
        reading._obj.temperature = self._value(gpu, "temperature")

    def _nvmlDeviceGetTemperature(self, gpu: FakeGpu, sensor: Any, temperature: Any) -> None:
        temperature._obj.value = self._value(gpu, "temperature")

    def _nvmlDeviceGetClockInfo(self, gpu: FakeGpu, kind: Any, clock: Any) -> None:
        clock._obj.value = self._value(gpu, f"clock_{kind.value}")

    def _nvmlDeviceGetCurrentClocksEventReasons(self, gpu: FakeGpu, reasons: Any) -> None:
        reasons._obj.value = self._value(gpu, "event_reasons")

    def _nvmlDeviceGetTotalEnergyConsumption(self, gpu: FakeGpu, energy: Any) -> None:
        energy._obj.value = self._value(gpu, "energy_mj")

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, gpu: FakeGpu, count: Any, processes: Any) -> int:
        room, count._obj.value = count._obj.value, len(gpu.processes)
        if len(gpu.processes) > room:
            return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        for entry, pid in zip(processes or (), gpu.processes, strict=False):
            entry.pid, entry.usedGpuMemory = pid, gpu.process_memory.get(pid, NOT_AVAILABLE)
        return 0

    def _nvmlDeviceGetNvLinkState(self, gpu: FakeGpu, link: int, active: Any) -> int:
        active._obj.value = 1
        return 0 if link < gpu.nvlinks else int(pynvml.NVML_ERROR_INVALID_ARGUMENT)

    def _nvmlDeviceGetNvLinkRemotePciInfo_v2(self, gpu: FakeGpu, link: int, info: Any) -> None:
        info._obj.busId = b"00000000:FF:00.0"  # a switch

    def _nvmlDeviceGetP2PStatus(self, gpu: FakeGpu, other: Any, index: int, status: Any) -> None:
        linked = gpu.nvlinks and self._gpu(other).nvlinks
        status._obj.value = pynvml.NVML_P2P_STATUS_OK if linked else pynvml.NVML_P2P_STATUS_NOT_SUPPORTED

    def _nvmlDeviceGetTopologyCommonAncestor(self, gpu: FakeGpu, other: Any, level: Any) -> None:
        level._obj.value = pynvml.NVML_TOPOLOGY_SYSTEM

    def _nvmlGpmQueryDeviceSupport(self, gpu: FakeGpu, support: Any) -> None:
        support._obj.isSupportedDevice = int(gpu.gpm_supported)

    def nvmlGpmSampleAlloc(self, sample: Any) -> int:
        target = pynvml.struct_c_nvmlGpmSample_t()
        self._samples[ctypes.addressof(target)] = (target, 0.0)
        sample._obj.contents = target
        return 0

    def nvmlGpmSampleFree(self, sample: Any) -> int:
        del self._samples[ctypes.addressof(sample.contents)]
        return 0

    def _nvmlGpmSampleGet(self, gpu: FakeGpu, sample: Any) -> None:
        target, _ = self._samples[ctypes.addressof(sample.contents)]
        target.gpu = gpu
        self._samples[ctypes.addressof(target)] = (target, time.monotonic())

    def nvmlGpmMetricsGet(self, request: Any) -> int:
        """Like the driver: NaN with a success code when the samples are too close."""
        content = request._obj
        first, second = (self._samples[ctypes.addressof(s.contents)] for s in (content.sample1, content.sample2))
        gpu = second[0].gpu
        for metric in content.metrics[: content.numMetrics]:
            metric.nvmlReturn = gpu.gpm_codes.get(metric.metricId, 0)
            metric.value = gpu.gpm.get(metric.metricId, 0.0) if second[1] - first[1] > 0.1 else float("nan")
        return int(gpu.errors.get("nvmlGpmMetricsGet", 0))

    @property
    def samples_held(self) -> int:
        """GPM samples that were not given back."""
        return len(self._samples)


def install(monkeypatch: pytest.MonkeyPatch, gpus: list[FakeGpu], init_code: int = 0) -> FakeLibrary:
    """Put a fake driver below the binding for the length of a test."""
    library = FakeLibrary(gpus, init_code=init_code)
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return library
