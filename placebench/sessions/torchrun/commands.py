"""Commands of a launch on the nodes of a SLURM job beside the one that it is started on."""

import time
from collections.abc import Mapping, Sequence

from placebench.errors import LaunchError
from placebench.sessions.torchrun.agents import SlurmAgents
from placebench.sessions.torchrun.calls import Link
from placebench.sessions.torchrun.command import end_process
from placebench.sessions.torchrun.node import CommandNode
from placebench.sessions.torchrun.session import Doorway

_GRACE_S = 0.8


class CommandsOnNodes(SlurmAgents):
    """Commands on nodes of a SLURM job, one on a node, with an agent on each."""

    agent = CommandNode

    def open(self) -> None:
        """Start the agents.

        Raises:
            NodeLostError: one does not start.
        """
        self._started: list[str] = []
        doorway = Doorway(self._address, len(self._nodes))
        self._start_agents(doorway)
        self._follow()

    def start(self, node: str, words: Sequence[str], environment: Mapping[str, str], cwd: str, log: str) -> None:
        """Start a command on a node; see `CommandNode.start`.

        Raises:
            LaunchError: it cannot be started there.
        """
        try:
            self.calls.get([self._agents[node].start.remote(list(words), dict(environment), cwd, log)])
        except self.calls.failed as error:
            raise LaunchError(f"node {node}: {getattr(error, 'cause', None) or error}") from error
        self._started.append(node)

    def wait_until_said(self, text: str, timeout_s: float) -> None:
        """Wait until every command has printed a text.

        Raises:
            LaunchError: one ends before that, or does not in time.
        """
        deadline = time.monotonic() + timeout_s
        missing = self._started
        while missing:
            if ended := self.ended():
                raise LaunchError(f"node {ended[0]}: the command ended with exit code {ended[1]}")
            if time.monotonic() > deadline:
                raise LaunchError(f"node {missing[0]}: nothing has come up in {timeout_s:g} s")
            time.sleep(self.poll_s)
            said = self.calls.get([self._agents[node].has_said.remote(text) for node in missing])
            missing = [node for node, has_said in zip(missing, said, strict=True) if not has_said]

    def ended(self) -> tuple[str, int] | None:
        """A node whose command has ended, and its exit code; None while all go on.

        Raises:
            Exception: an agent is gone; an error of the calls.
        """
        codes = self.calls.get([self._agents[node].exit_code.remote() for node in self._started])
        return next(((node, code) for node, code in zip(self._started, codes, strict=True) if code is not None), None)

    def close(self) -> None:
        """End the commands, then the agents, and the step with them."""
        self._end_all((), Link.close)
        if self._process is not None:
            end_process(self._process, _GRACE_S)
