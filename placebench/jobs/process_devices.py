"""Which device each process of a job of the user's works on, as it becomes known."""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from placebench.jobs.nodes import Nodes
from placebench.jobs.span_writer import TIMER, SpanWriter
from placebench.spec.bound import RunPlacement
from placebench.spec.devices import Device
from placebench.spec.phases import PHASE
from placebench.spec.placement import Role


class ProcessDevices:
    """The devices of the processes of one launch.

    Args:
        placement: the launch's placement.
        devices: its devices.
        nodes: where its processes are.
    """

    def __init__(self, placement: RunPlacement, devices: Sequence[Device], nodes: Nodes) -> None:
        self._placement, self._devices, self._nodes = placement, devices, nodes
        self._bound: list[tuple[int, Device]] = []
        self._allotted: list[dict[str, Any]] = []

    def bound(self) -> list[tuple[int, Device]]:
        """Processes whose device has become known since the last call, by their pid."""
        found, self._bound = self._bound, []
        return found

    def allotted(self) -> list[dict[str, Any]]:
        """Rows of `ray.jsonl` of workers that have come since the last call."""
        found, self._allotted = self._allotted, []
        return found

    def find(self, process: SpanWriter) -> None:
        """Find the device of a process by what it has said so far, and hold it to that device's cores."""
        process.device = self._device_of(process)
        if process.device is not None:
            if process.device.cores and self._nodes.is_here(process.node):
                hold_to(process.head["pid"], process.device.cores)
            self._bound.append((process.head["pid"], process.device))

    def take_allotted(self, process: SpanWriter) -> list[str]:
        """Take which GPUs Ray has allotted to a worker; what it calls GPUs where there are none says nothing.

        Returns:
            A note for each that is none of the launch's.
        """
        here = [one for one in self._devices if process.node in (None, one.node) and one.kind == "gpu"]
        pid, actor = process.head["pid"], process.head.get("ray_actor")
        notes = []
        for gpu in process.head.get("ray_gpus", ()) if here else ():
            # By its index, or by its UUID where the visible devices are named so.
            device = next((one for one in here if gpu == str(one.index) or (gpu and one.id.endswith(gpu))), None)
            if device is not None:
                self._allotted.append({"pid": pid, "device": device.id, "actor": actor})
            else:
                name = f"gpu:{gpu}" if gpu.isdigit() else gpu
                notes.append(
                    f"Ray has allotted {name}, which is not a device of the placement, to {actor or 'a worker'}"
                )
        return notes

    def _device_of(self, process: SpanWriter) -> Device | None:
        """The device that a process works on; None for the controller, and where it is not known yet."""
        if process.gpu is not None:
            # On a cluster the node's name stands before the UUID.
            return next((device for device in self._devices if device.id.endswith(process.gpu)), None)
        if any(device.kind == "gpu" for device in self._devices):
            return None
        if len(self._devices) == 1:
            return self._devices[0]
        return self._device_by_rank(process) if process.is_worker else None

    def _device_by_rank(self, process: SpanWriter) -> Device | None:
        """The device that a worker's rank has in the pool of its work, on its node if any is there."""
        names = (timing.name for source, timings in process.spans.items() if source != TIMER for timing in timings)
        phases = [PHASE[name] for name in names if name in PHASE]
        own = [phase for phase in phases if phase.partner is None]  # of weights on their way it may be either end
        if phases and not own:
            return None
        pool = self._placement.roles.get((own[0].role if own else None) or Role.ACTOR)
        members = self._placement.members[pool] if pool is not None else self._devices
        if process.node is not None:
            there = [device for device in members if device.node == process.node]
            members = there or [device for device in self._devices if device.node == process.node]
        return members[process.rank % len(members)] if members else None


def hold_to(pid: int, cores: Iterable[int]) -> None:
    """Let all threads of a process run on some cores alone; what ends meanwhile is left out."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), cores)
