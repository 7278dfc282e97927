"""GPM, the performance monitoring of Hopper and newer: activity of SMs, tensor cores, memory and links.

A metric is computed from two samples; each reading covers the time since the one before. With less than 100 ms
between them the driver returns zeros and NaN with a success code, so such readings are not made.
"""

import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

import pynvml

from placebench.telemetry.spans import SpanClock

MIN_GAP_S = 0.105
"""Shortest time between two samples, with a margin over the 100 ms that the driver needs."""

_PERCENT = 0.01
_MIB = float(2**20)

METRICS: tuple[tuple[str, int, float], ...] = (
    ("sm_activity", pynvml.NVML_GPM_METRIC_SM_UTIL, _PERCENT),
    ("tensor_activity", pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, _PERCENT),
    ("dram_activity", pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, _PERCENT),
    ("nvlink_rx_bytes_s", pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, _MIB),
    ("nvlink_tx_bytes_s", pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, _MIB),
    ("pcie_rx_bytes_s", pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, _MIB),
    ("pcie_tx_bytes_s", pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, _MIB),
)
"""Key of the sample, GPM metric, and factor from GPM's unit (percent, MiB/s) to the key's."""


class GpmReader:
    """Reads the metrics of one device.

    Args:
        handle: NVML's handle of the device.
        clock: monotonic clock by which the gap between samples is kept.

    Raises:
        pynvml.NVMLError: the first sample cannot be taken.
    """

    def __init__(self, handle: Any, clock: SpanClock) -> None:
        self._handle = handle
        self._clock = clock
        self._last = pynvml.nvmlGpmSampleAlloc()
        self._next = pynvml.nvmlGpmSampleAlloc()
        self._request = pynvml.c_nvmlGpmMetricsGet_t()
        self._request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(METRICS)
        for position, (_, metric, _) in enumerate(METRICS):
            self._request.metrics[position].metricId = metric
        try:
            pynvml.nvmlGpmSampleGet(handle, self._last)
        except pynvml.NVMLError:
            self.free()
            raise
        self._taken = clock.mono()

    def read(self) -> dict[str, float | None]:
        """Metrics since the reading before; empty when that is too short a time ago.

        Raises:
            pynvml.NVMLError: the driver has no answer for the whole reading; one metric without is None.
        """
        if self._clock.mono() - self._taken < MIN_GAP_S:
            return {}
        pynvml.nvmlGpmSampleGet(self._handle, self._next)
        self._taken = self._clock.mono()
        self._request.sample1, self._request.sample2 = self._last, self._next
        self._last, self._next = self._next, self._last
        pynvml.nvmlGpmMetricsGet(self._request)
        return decode(self._request.metrics)

    def free(self) -> None:
        """Give the samples back to the driver."""
        for sample in (self._last, self._next):
            pynvml.nvmlGpmSampleFree(sample)


def decode(metrics: Sequence[Any]) -> dict[str, float | None]:
    """Values in the units of the samples; None for one that the driver could not compute.

    Args:
        metrics: NVML's structs in the order of `METRICS`.
    """
    values: dict[str, float | None] = {}
    for (key, _, factor), metric in zip(METRICS, metrics, strict=False):
        valid = metric.nvmlReturn == pynvml.NVML_SUCCESS and math.isfinite(metric.value)
        values[key] = metric.value * factor if valid else None
    return values


def probe(handles: Iterable[tuple[str, Any]], clock: SpanClock) -> tuple[dict[str, GpmReader], dict[str, str]]:
    """Find out by two real samples which devices have GPM; virtual GPUs may claim it and fail.

    Args:
        handles: device ids and NVML handles.
        clock: clock for the readers.

    Returns:
        A reader of each device that has it, and for every other why not.
    """
    started: dict[str, GpmReader] = {}
    absent: dict[str, str] = {}
    for device, handle in handles:
        try:
            if pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                started[device] = GpmReader(handle, clock)
            else:
                absent[device] = "the device does not support it"
        except pynvml.NVMLError as error:
            absent[device] = str(error)
    if started:
        time.sleep(MIN_GAP_S + 0.01)
    readers: dict[str, GpmReader] = {}
    for device, reader in started.items():
        try:
            if reader.read()["sm_activity"] is None:
                absent[device] = "two samples gave no SM activity"
            else:
                readers[device] = reader
        except pynvml.NVMLError as error:
            absent[device] = str(error)
        if device in absent:
            reader.free()
    return readers, absent
