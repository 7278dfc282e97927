"""What ran on a GPU during a phase, from a trace of its kernels: computing, collectives, copies, or nothing.

Tracing slows a process down, also once it is over: what has hooked into its CUDA calls for it stays there
(github.com/pytorch/pytorch/issues/144455). So a step of its own is traced, after all that are measured.
"""

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from placebench.spec.intervals import length, subtract, union

COMPUTE, COLLECTIVE, COPY = "compute", "collective", "copy"
# How the kernels of collectives are named: NCCL's, and vLLM's own all-reduce.
_COLLECTIVES = ("nccl", "cross_device_reduce")
_COPIES = ("Memcpy", "Memset")
Event = tuple[str, int, int]
"""Something that ran on a device: its name, and start and length in nanoseconds."""


class KernelTrace:
    """Collects, phase by phase, how the time of one step was spent on the process's GPU."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._rows: list[dict[str, Any]] = []

    @contextmanager
    def phase(self, step: int, name: str) -> Iterator[None]:
        """Trace the body."""
        import torch

        with device_events() as events:
            start = time.perf_counter()
            yield
            torch.cuda.synchronize()
            seconds = time.perf_counter() - start
        self._rows.append({"step": step, "phase": name, "device": self._device, **shares(events, seconds)})

    def drain(self) -> list[dict[str, Any]]:
        """One object a phase since the last call, of `kernels.jsonl`."""
        rows, self._rows = self._rows, []
        return rows


@contextmanager
def device_events() -> Iterator[list[Event]]:
    """What runs on the process's GPU inside; the list is filled at the end."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    events: list[Event] = []
    torch.cuda.synchronize()
    # Not to be kept beyond it, for which each event would become an object of its own, in ten times the time.
    trace = profile(activities=[ProfilerActivity.CUDA], acc_events=False)
    with warnings.catch_warnings():
        # What torch says to that before 2.13 goes for several traces of one profiler.
        warnings.filterwarnings("ignore", "Warning: Profiler clears events", UserWarning)
        trace.start()
    try:
        yield events
    finally:
        trace.stop()
    assert trace.profiler
    assert trace.profiler.kineto_results
    events += [
        (event.name(), event.start_ns(), event.duration_ns())
        for event in trace.profiler.kineto_results.events()
        if event.device_type().name == "CUDA"
    ]


def shares(events: list[Event], seconds: float) -> dict[str, float]:
    """How the seconds of a phase were spent.

    Args:
        events: what ran on the device.
        seconds: length of the phase.

    Returns:
        `span_s`, and its parts: `kernel_s` with a kernel that computes, `collective_s` with collectives alone, `copy_s`
        with copies alone, `no_kernel_s` with nothing on the device, because the host had queued nothing.
    """
    times: dict[str, list[tuple[float, float]]] = {COMPUTE: [], COLLECTIVE: [], COPY: []}
    # Counted from the first, because seconds since the epoch leave no digits for nanoseconds.
    origin = min((start for _, start, _ in events), default=0)
    for name, start, duration in events:
        times[_kind(name)].append(((start - origin) / 1e9, (start - origin + duration) / 1e9))
    compute, collective, copy = (union(np.reshape(times[kind], (-1, 2))) for kind in (COMPUTE, COLLECTIVE, COPY))
    alone = subtract(collective, compute)
    copies = subtract(subtract(copy, compute), collective)
    parts = {"kernel_s": length(compute), "collective_s": length(alone), "copy_s": length(copies)}
    return {"span_s": seconds, **parts, "no_kernel_s": max(0.0, seconds - sum(parts.values()))}


def _kind(name: str) -> str:
    if any(word in name for word in _COLLECTIVES):
        return COLLECTIVE
    return COPY if name.startswith(_COPIES) else COMPUTE
