"""What runs on each node of a cluster: the look at its devices, and the agent that samples them for one launch."""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, TypeVar

import psutil

from placebench.errors import PlacebenchError, UsageError
from placebench.host.devices import discover, host_record
from placebench.host.gpus import list_gpus, visible_gpus
from placebench.spec.devices import device_from_dict, device_to_dict, parse_devices
from placebench.telemetry.cpu_source import JobProcess
from placebench.telemetry.spans import CONTROLLER

_T = TypeVar("_T")

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def look_here(name: str, spec: str | None) -> dict[str, Any]:
    """What Ray's own processes may see of this node: see `devices_here`."""
    # Ray hides every GPU from a task that asks for none; what counts is what its own processes here may see.
    visible = psutil.Process(os.getppid()).environ().get(_VISIBLE)
    os.environ.pop(_VISIBLE, None)
    if visible is not None:
        os.environ[_VISIBLE] = visible
    return devices_here(name, spec)


def devices_here(name: str, spec: str | None) -> dict[str, Any]:
    """The devices of this node, under its name, and the record of the host; or `error`.

    A CPU device's id begins with the node's name: ids are unique in a run.
    """
    try:
        devices = discover(None if spec is None else parse_devices(spec))
    except UsageError as error:
        return {"error": str(error)}
    ids = [device.id if device.kind == "gpu" else f"{name}/{device.id}" for device in devices]
    return {
        "devices": [
            device_to_dict(replace(device, node=name, id=id_)) for device, id_ in zip(devices, ids, strict=True)
        ],
        "host": host_record(),
    }


def allotted_gpus(actor: object) -> list[str]:
    """UUIDs of the GPUs that Ray has given to an actor; called in its process."""
    import ray

    ids = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    return [gpu.uuid for gpu in visible_gpus(list_gpus(), ",".join(ids))]


class NodeAgent:
    """One on each node of a launch, as an actor of the launch's Ray job: it ends with the launch, whatever ends that.

    Args:
        devices: the launch's devices on this node, as in `launch.json`.
        hz: samples a second; 0 for none.
    """

    def __init__(self, devices: Sequence[Mapping[str, Any]], hz: float) -> None:
        self._devices = tuple(device_from_dict(device) for device in devices)
        self._lines: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._processes: SimpleQueue[JobProcess] = SimpleQueue()
        self._workers: list[psutil.Process] = []
        self._ending: list[psutil.Process] = []
        self._stop = threading.Event()
        self._failed: str | None = None
        self._sampler = threading.Thread(target=self._sample, args=(hz,), daemon=True)
        if hz:
            self._sampler.start()

    def now(self) -> float:
        """The node's monotonic clock."""
        return time.monotonic()

    def register(self, pid: int, device: str) -> None:
        """A process of the launch works here from now on."""
        self._processes.put(JobProcess(pid, device))
        if device != CONTROLLER:
            self._workers.append(psutil.Process(pid))

    def drain(self) -> tuple[list[dict[str, Any]], str | None]:
        """Lines of `devices.jsonl` since the last call, in this node's time, and why sampling has ended early."""
        return _take_all(self._lines), self._failed

    def find_workers(self) -> None:
        """Find the workers here and all their descendants, before they are asked to end: then they lose each other."""
        self._ending = [process for worker in self._workers for process in _with_descendants(worker)]

    def finish(self, patience_s: float) -> list[dict[str, Any]]:
        """End the sampling, and see to it that what `find_workers` found is gone; returns the last lines.

        Args:
            patience_s: seconds the processes have for it before they are killed.
        """
        self._stop.set()
        there = [process for process in self._ending if process.is_running()]  # not another with the pid of one
        _, left = psutil.wait_procs(there, timeout=patience_s)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=patience_s)
        if self._sampler.is_alive():
            self._sampler.join(patience_s)
        return _take_all(self._lines)

    def _sample(self, hz: float) -> None:
        from placebench.telemetry.sampler import sample_devices

        try:
            sample_devices(self._devices, lambda: _take_all(self._processes), self._lines.put, hz, self._stop)
        except PlacebenchError as error:
            self._failed = str(error)


def _take_all(queue: SimpleQueue[_T]) -> list[_T]:
    """What is in a queue now."""
    return [queue.get() for _ in range(queue.qsize())]


def _with_descendants(process: psutil.Process) -> list[psutil.Process]:
    """A process and its descendants; none once it has ended."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
