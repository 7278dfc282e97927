"""The nodes of a launch of a job of the user's: what starts on those beside this one, and how their clocks go."""

import os
import time
from collections.abc import Mapping
from typing import Any

from placebench.record.folder import Trial
from placebench.record.job_record import JobLaunch
from placebench.record.launch_file import LaunchFile
from placebench.sessions.ray_cluster.discovery import Cluster
from placebench.sessions.ray_cluster.session import SharedRay
from placebench.sessions.torchrun.commands import CommandsOnNodes
from placebench.sessions.torchrun.nodes import JobNodes
from placebench.spec.devices import device_to_dict
from placebench.telemetry.spans import SpanClock

# What `ray start` prints once its node is known to the head.
_RAY_IS_UP = "Ray runtime started"
# An agent is asked so often whether the command of its node goes on, seconds.
_ASK_EVERY_S = 1.0


class Nodes:
    """This host alone, where nothing of it is to be done.

    Attributes:
        clock: this host's.
    """

    def __init__(self) -> None:
        self.clock = SpanClock()

    def open(self) -> None:
        """Start an agent on each node.

        Raises:
            PlacebenchError: one does not start.
        """

    def start(self, job: JobLaunch, environment: Mapping[str, str], patience_s: float) -> None:
        """Start what the job has elsewhere.

        Args:
            job: the launch's.
            environment: variables that it has there besides its own.
            patience_s: seconds in which nodes of a Ray have to come up.

        Raises:
            LaunchError: it does not start.
        """

    def failed(self, *, now: bool = False) -> str | None:
        """Which part elsewhere has failed, in words; None while all go on.

        Args:
            now: whether to ask at once; else it is asked now and then.
        """
        return None

    def register(self, pid: int, device: str) -> None:
        """A process works on a device."""

    def place(self, head: Mapping[str, Any]) -> tuple[str | None, float]:
        """The node of a process by the first line of its spans, and the seconds from its clock to this host's."""
        return None, 0.0 if head["host"] == os.uname().nodename else head["wall_offset"] - self.clock.offset

    def is_here(self, node: str | None) -> bool:
        """Whether a node is this host."""
        return True

    def explain(self, error: Exception) -> Exception:
        """The error to report in place of one that ended the launch."""
        return error

    def close(self) -> None:
        """End what runs elsewhere."""


class NodesOfCluster(Nodes):
    """The nodes of a Ray cluster that was there: it starts the job's workers itself, and only agents are added."""

    def __init__(self, asked: LaunchFile, trial: Trial) -> None:
        super().__init__()
        assert asked.cluster is not None
        devices = {device.id: device_to_dict(device) for device in asked.devices}
        cluster = Cluster.model_validate(asked.cluster.model_dump())
        self._names = {node.ray_id: node.name for node in cluster.nodes}
        self._session: SharedRay | CommandsOnNodes = SharedRay(cluster, devices, trial, asked.sample_hz, self.clock)

    def open(self) -> None:
        """Start an agent on each node; see `Nodes.open`."""
        self._session.open()

    def register(self, pid: int, device: str) -> None:
        """Tell the agent of the device's node."""
        self._session.register(pid, device)

    def place(self, head: Mapping[str, Any]) -> tuple[str | None, float]:
        """By Ray's own name of the node, or SLURM's; the clock as it was measured."""
        node = self._node(head)
        if node is None or (offset := self._session.offset_s(node)) is None:
            return node, super().place(head)[1]
        return node, offset

    def _node(self, head: Mapping[str, Any]) -> str | None:
        return self._names.get(head.get("ray_node", ""), self._session.home)

    def is_here(self, node: str | None) -> bool:
        """Whether this process is there too."""
        return node == self._session.home

    def explain(self, error: Exception) -> Exception:
        """A node that is gone, where one is: whatever failed, failed for that."""
        return self._session.explain(error, "the launch")

    def close(self) -> None:
        """End the agents, and what they have started."""
        self._session.close()


class NodesOfSlurm(NodesOfCluster):
    """The nodes of a SLURM job: the first runs the command, on the others its parts start, or its Ray."""

    def __init__(self, asked: LaunchFile, trial: Trial) -> None:
        Nodes.__init__(self)
        assert asked.cluster is not None
        devices = {device.id: device_to_dict(device) for device in asked.devices}
        nodes = JobNodes.model_validate(asked.cluster.model_dump())
        self._trial, self._asked_at, self._parts_may_end = trial, 0.0, True
        self._session: CommandsOnNodes = CommandsOnNodes(
            nodes, asked.ray_temp_dir, devices, trial, asked.sample_hz, self.clock
        )

    def _node(self, head: Mapping[str, Any]) -> str | None:
        return str(head["environment"].get("SLURMD_NODENAME", self._session.home))

    def start(self, job: JobLaunch, environment: Mapping[str, str], patience_s: float) -> None:
        """Start them by the agents; of a Ray, wait until its nodes have joined."""
        for part in job.elsewhere:
            log = self._trial.path / f"node-{part.node}.log"
            variables = {"PYTHONUNBUFFERED": "1", **part.env, **environment}
            self._session.start(part.node, part.command, variables, job.cwd, str(log))
        self._parts_may_end = job.ray_head is None
        if job.ray_head:
            self._session.wait_until_said(_RAY_IS_UP, patience_s)

    def failed(self, *, now: bool = False) -> str | None:
        """By the exit codes that the agents have."""
        if not now and time.monotonic() - self._asked_at < _ASK_EVERY_S:
            return None
        self._asked_at = time.monotonic()
        node, code = self._session.ended() or ("", 0)
        if not node or (code == 0 and self._parts_may_end):
            return None
        return f"node {node}: what was started there ended with exit code {code}: see node-{node}.log"


def nodes_of(asked: LaunchFile, trial: Trial) -> Nodes:
    """The nodes of a launch."""
    if asked.cluster is None or asked.job is None:
        return Nodes()
    return NodesOfSlurm(asked, trial) if asked.job.ray in ("none", "own") else NodesOfCluster(asked, trial)
