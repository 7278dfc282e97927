"""A launch whose workers are the ranks of torchrun on the nodes of a SLURM job."""

import os
import secrets
import sys
from collections.abc import Mapping
from typing import Any

from placebench.errors import NodeLostError
from placebench.record.folder import Trial
from placebench.sessions.ray_cluster.follower import Follower
from placebench.sessions.ray_cluster.on_nodes import OnNodes
from placebench.sessions.slurm_steps import step_command
from placebench.sessions.torchrun.calls import Link
from placebench.sessions.torchrun.command import start_bound
from placebench.sessions.torchrun.node import FOLDER_VARIABLE, TorchrunNode
from placebench.sessions.torchrun.nodes import JobNodes
from placebench.sessions.torchrun.serving import CREATE
from placebench.sessions.torchrun.session import Doorway, Torchrun
from placebench.telemetry.spans import CONTROLLER, SpanClock

_STEP = "placebench-torchrun"
_NODE = (sys.executable, "-m", "placebench.sessions.torchrun.node")
_POLL_S = 0.1


class TorchrunOnNodes(OnNodes, Torchrun):
    """Ranks of torchrun, one a device, on several nodes: a torchrun and an agent on each, in one step of the job.

    Args:
        nodes: of the job.
        folder: where torchrun keeps what it writes, on each node.
        devices: objects of `launch.json` by the device's id.
        trial: the launch's folder.
        hz: device samples a second; 0 for none.
        clock: the controller's clock.
    """

    # The runner gives the whole job three seconds to end.
    answer_s, patience_s, poll_s = 0.5, 0.3, _POLL_S
    look_at = "sinfo"

    def __init__(
        self,
        nodes: JobNodes,
        folder: str,
        devices: Mapping[str, Mapping[str, Any]],
        trial: Trial,
        hz: float,
        clock: SpanClock,
    ) -> None:
        super().__init__(folder, devices)
        self._address, self._trial, self._hz, self._clock = nodes.address, trial, hz, clock
        self._on_node: dict[str, list[str]] = {}
        for device, content in devices.items():
            self._on_node.setdefault(content["node"], []).append(device)
        self._nodes = {node.name: node for node in nodes.nodes if node.name in self._on_node}
        self._agents: dict[str, Link] = {}
        self._follower: Follower | None = None

    def open(self) -> None:
        """Start an agent and the ranks on each node.

        Raises:
            NodeLostError: an agent does not start.
            LaunchError: torchrun has ended without its ranks.
        """
        doorway = Doorway(self._address, len(self._nodes) + len(self._devices))
        variables = {**os.environ, **doorway.environment, FOLDER_VARIABLE: self._folder}
        self._process = start_bound([*step_command(_STEP, tuple(self._nodes)), *_NODE], variables)
        while len(self._agents) < len(self._nodes):
            if come := doorway.next(_POLL_S):
                connection, greeting = come
                name = greeting["node"]
                self._agents[name] = Link(connection, f"the agent of node {name}", self.calls)
            elif (code := self._exit_code()) is not None:
                missing = " and ".join(name for name in self._nodes if name not in self._agents)
                raise NodeLostError(f"node {missing}: srun has started nothing there (exit code {code}): see train.log")
        for name, agent in self._agents.items():
            agent.ask(CREATE, (TorchrunNode, [self._devices[device] for device in self._on_node[name]], self._hz))
        home = os.environ.get("SLURMD_NODENAME")
        if home in self._agents:
            self._agents[home].register.remote(os.getpid(), CONTROLLER)
        self._start_ranks(doorway)
        self._follower = Follower(self._trial, self._agents, home, self._clock, self.calls)
        self._follower.start()

    def _start_ranks(self, doorway: Doorway) -> None:
        first = next(iter(self._nodes))
        (port,) = self.calls.get([self._agents[first].free_port.remote()])
        meeting = [
            f"--nnodes={len(self._nodes)}",
            "--rdzv-backend=c10d",
            f"--rdzv-id={secrets.token_hex(8)}",
            f"--rdzv-endpoint={self._nodes[first].address}:{port}",
        ]
        self.calls.get(
            [
                self._agents[name].start_ranks.remote(
                    len(self._on_node[name]), [*meeting, f"--local-addr={node.address}"], doorway.environment
                )
                for name, node in self._nodes.items()
            ]
        )
        places = {
            (name, number): device for name, devices in self._on_node.items() for number, device in enumerate(devices)
        }
        self._let_in(doorway, places)

    def _exit_code(self) -> int | None:
        """The exit code of the step, or of a torchrun that has ended on a node; None while all go on."""
        if (code := super()._exit_code()) is not None or len(self._agents) < len(self._nodes):
            return code
        codes = self.calls.get([agent.exit_code.remote() for agent in self._agents.values()])
        return next((code for code in codes if code is not None), None)

    def explain(self, error: Exception, doing: str) -> Exception:
        """A node that is gone, where one is; else a rank that has ended: whatever failed, failed for that."""
        explained = OnNodes.explain(self, error, doing)
        return Torchrun.explain(self, error, doing) if explained is error else explained

    def close(self) -> None:
        """End the ranks, then the agents, and the step with them."""
        self._end_all(self._ranks.values(), Link.close)
        super().close()
