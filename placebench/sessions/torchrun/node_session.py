"""A launch whose workers are the ranks of torchrun on the nodes of a SLURM job."""

import secrets
from typing import Any

from placebench.sessions.ray_cluster.on_nodes import OnNodes
from placebench.sessions.torchrun.agents import SlurmAgents
from placebench.sessions.torchrun.calls import Link
from placebench.sessions.torchrun.node import TorchrunNode
from placebench.sessions.torchrun.session import Doorway, Torchrun


class TorchrunOnNodes(SlurmAgents, Torchrun):
    """Ranks of torchrun, one a device, on several nodes: a torchrun and an agent on each, in one step of the job."""

    step = "placebench-torchrun"
    agent = TorchrunNode

    def __init__(self, *arguments: Any) -> None:
        SlurmAgents.__init__(self, *arguments)
        self._ranks = {}

    def open(self) -> None:
        """Start an agent and the ranks on each node.

        Raises:
            NodeLostError: an agent does not start.
            LaunchError: torchrun has ended without its ranks.
        """
        doorway = Doorway(self._address, len(self._nodes) + len(self._devices))
        self._start_agents(doorway)
        self._start_ranks(doorway)
        self._follow()

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
        Torchrun.close(self)
