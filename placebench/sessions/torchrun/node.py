"""`python -m placebench.sessions.torchrun.node`: the task of a launch on one node of a SLURM job.

It samples the node's devices as the agent of any cluster, and starts there what the launch asks it to: torchrun for
ranks of placebench's own job, or a command.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from placebench.host.network import free_port
from placebench.host.processes import kill_processes
from placebench.record.tail import read_end
from placebench.sessions.ray_cluster.node import NodeAgent
from placebench.sessions.torchrun.command import rank_environment, start_bound, torchrun_command
from placebench.sessions.torchrun.serving import NODE_VARIABLE, connect, serve

_NODE = "SLURMD_NODENAME"
FOLDER_VARIABLE = "PLACEBENCH_FOLDER"
"""Environment: the launch's own folder, below which every node has one."""
_PATIENCE_S = 2.0
_LAST_BYTES = 1 << 14


class StartingNode(NodeAgent):
    """The agent of a node that starts something there, which ends with it.

    Args:
        devices: the launch's devices on this node, as in `launch.json`.
        hz: samples a second; 0 for none.
    """

    _started: "subprocess.Popen[bytes]"

    def exit_code(self) -> int | None:
        """The exit code of what was started; None while it goes on."""
        return self._started.poll()


class TorchrunNode(StartingNode):
    """The agent of a node that starts the ranks there."""

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
        folder = Path(os.environ[FOLDER_VARIABLE]) / os.environ[_NODE]
        folder.mkdir(parents=True, exist_ok=True)
        words = torchrun_command(str(folder), ranks, rendezvous)
        variables = rank_environment(os.environ) | dict(environment) | {NODE_VARIABLE: os.environ[_NODE]}
        self._started = start_bound(words, variables)


class CommandNode(StartingNode):
    """The agent of a node that starts a command there."""

    def start(self, words: Sequence[str], environment: Mapping[str, str], cwd: str, log: str) -> None:
        """Start it.

        Args:
            words: program and arguments.
            environment: variables that it has besides those of this process.
            cwd: folder in which it starts.
            log: file for what it prints.

        Raises:
            OSError: there is no such folder here.
        """
        self._log = Path(log)
        self._started = start_bound(words, {**os.environ, **environment}, cwd=cwd, log=self._log)
        self._workers.append(psutil.Process(self._started.pid))

    def has_said(self, text: str) -> bool:
        """Whether the end of what the command has printed has a text."""
        return text in read_end(self._log, _LAST_BYTES)


def _clean_up() -> None:
    """End what was started here, and remove the launch's folder."""
    kill_processes(lambda: psutil.Process().children(recursive=True), _PATIENCE_S)
    shutil.rmtree(os.environ[FOLDER_VARIABLE], ignore_errors=True)


def _stop(signum: int, frame: Any) -> None:
    sys.exit(128 + signum)


def main() -> None:
    """Serve the controller."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        serve(connect({"node": os.environ[_NODE], "local_rank": None}), _clean_up)
    finally:
        _clean_up()


if __name__ == "__main__":
    main()
