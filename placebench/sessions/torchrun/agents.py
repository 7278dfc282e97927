"""The agents of a launch on the nodes of a SLURM job: one on each, started by a step of the job."""

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from placebench.errors import NodeLostError
from placebench.record.folder import Trial
from placebench.sessions.ray_cluster.follower import Follower
from placebench.sessions.ray_cluster.on_nodes import OnNodes
from placebench.sessions.slurm_steps import step_command
from placebench.sessions.torchrun.calls import Link, RankCalls
from placebench.sessions.torchrun.command import start_bound
from placebench.sessions.torchrun.node import FOLDER_VARIABLE, StartingNode
from placebench.sessions.torchrun.nodes import JobNodes
from placebench.sessions.torchrun.serving import CREATE
from placebench.sessions.torchrun.session import Doorway
from placebench.telemetry.spans import CONTROLLER, SpanClock

_NODE = (sys.executable, "-m", "placebench.sessions.torchrun.node")
_POLL_S = 0.1


class SlurmAgents(OnNodes):
    """An agent on each node of a SLURM job that a launch uses; it ends with the step, and the step with the launch.

    Args:
        nodes: of the job.
        folder: where what is started there keeps what it writes, on each node.
        devices: objects of `launch.json` by the device's id.
        trial: the launch's folder.
        hz: device samples a second; 0 for none.
        clock: the controller's clock.
    """

    # The runner gives the whole job three seconds to end.
    answer_s, patience_s, poll_s = 0.5, 0.3, _POLL_S
    look_at = "sinfo"
    step = "placebench-job"
    """Name of the step."""
    agent: type[StartingNode]
    """What each agent is."""

    def __init__(
        self,
        nodes: JobNodes,
        folder: str,
        devices: Mapping[str, Mapping[str, Any]],
        trial: Trial,
        hz: float,
        clock: SpanClock,
    ) -> None:
        self.calls = RankCalls()
        self._folder, self._devices = folder, devices
        self._address, self._trial, self._hz, self._clock = nodes.address, trial, hz, clock
        self._on_node: dict[str, list[str]] = {}
        for device, content in devices.items():
            self._on_node.setdefault(content["node"], []).append(device)
        self._nodes = {node.name: node for node in nodes.nodes if node.name in self._on_node}
        self._agents: dict[str, Link] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._home = os.environ.get("SLURMD_NODENAME")
        self._follower: Follower | None = None

    def _start_agents(self, doorway: Doorway) -> None:
        """Start them.

        Raises:
            NodeLostError: one does not start.
        """
        variables = {**os.environ, **doorway.environment, FOLDER_VARIABLE: self._folder}
        self._process = start_bound([*step_command(self.step, tuple(self._nodes)), *_NODE], variables)
        while len(self._agents) < len(self._nodes):
            if come := doorway.next(_POLL_S):
                connection, greeting = come
                name = greeting["node"]
                self._agents[name] = Link(connection, f"the agent of node {name}", self.calls)
            elif (code := self._process.poll()) is not None:
                missing = " and ".join(name for name in self._nodes if name not in self._agents)
                raise NodeLostError(f"node {missing}: srun has started nothing there (exit code {code}): see train.log")
        for name, agent in self._agents.items():
            agent.ask(CREATE, (self.agent, [self._devices[device] for device in self._on_node[name]], self._hz))
        if self._home in self._agents:
            self._agents[self._home].register.remote(os.getpid(), CONTROLLER)

    def _follow(self) -> None:
        self._follower = Follower(self._trial, self._agents, self._home, self._clock, self.calls)
        self._follower.start()
