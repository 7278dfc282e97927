"""`python -m placebench.sessions.torchrun.node`: the task of a launch on one node of a SLURM job.

It samples the node's devices as the agent of any cluster, and starts torchrun for the ranks there.
"""

import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from placebench.host.network import free_port
from placebench.sessions.ray_cluster.node import NodeAgent
from placebench.sessions.torchrun.command import rank_environment, start_bound, torchrun_command
from placebench.sessions.torchrun.serving import NODE_VARIABLE, connect, serve

_NODE = "SLURMD_NODENAME"
FOLDER_VARIABLE = "PLACEBENCH_FOLDER"
"""Environment: the launch's own folder, below which every node has one."""


class TorchrunNode(NodeAgent):
    """The agent of a node, which starts the ranks there too; what it starts ends with it.

    Args:
        devices: the launch's devices on this node, as in `launch.json`.
        hz: samples a second; 0 for none.
    """

    def free_port(self) -> int:
        """A TCP port of this node that nothing listens on now."""
        return free_port()

    def start_ranks(self, ranks: int, rendezvous: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start torchrun.

        Args:
            ranks: processes to start here.
            rendezvous: options that say where the nodes' torchruns meet.
            environment: by which the ranks find the controller.
        """
        folder = node_folder()
        folder.mkdir(parents=True, exist_ok=True)
        words = torchrun_command(str(folder), ranks, rendezvous)
        variables = rank_environment(os.environ) | dict(environment) | {NODE_VARIABLE: os.environ[_NODE]}
        self._torchrun = start_bound(words, variables)

    def exit_code(self) -> int | None:
        """The exit code of torchrun; None while it goes on."""
        return self._torchrun.poll()


def node_folder() -> Path:
    """Where torchrun keeps what it writes on this node."""
    return Path(os.environ[FOLDER_VARIABLE]) / os.environ[_NODE]


def remove_folder() -> None:
    """Remove the node's folder; that of the launch too, where nothing else is in it."""
    folder = node_folder()
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()


def _stop(signum: int, frame: Any) -> None:
    sys.exit(128 + signum)


def main() -> None:
    """Serve the controller."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        serve(connect({"node": os.environ[_NODE], "local_rank": None}), remove_folder)
    finally:
        remove_folder()


if __name__ == "__main__":
    main()
