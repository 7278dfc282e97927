"""What is common to sessions whose workers are on several nodes, with an agent of the launch on each of these."""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

from placebench.errors import NodeLostError, PlacebenchError
from placebench.sessions.ray_cluster.follower import Follower
from placebench.telemetry.spans import CONTROLLER

# What fails first when a node dies is a connection between workers; its agent may answer for a moment longer.
_WATCH_S = 3.0
_SILENT_AFTER_S = 5.0


class OnNodes:
    """Asks the agents of a launch's nodes, and knows what it means that one does not answer."""

    ends_all_at_once = False
    calls: Any  # as in `Calls`; each session has its own
    """How the agents' and the workers' answers are waited for."""
    answer_s: ClassVar[float]
    """How long agents have to answer when the launch has failed or ends, besides twice the patience."""
    patience_s: ClassVar[float]
    """How long an agent waits for processes to end, and then for those that it kills."""
    poll_s: ClassVar[float]
    """Seconds between two questions whether a node is lost."""
    look_at: ClassVar[str]
    """The command that shows a user what became of a node."""
    _devices: Mapping[str, Mapping[str, Any]]
    _nodes: Mapping[str, Any]
    _agents: dict[str, Any]
    _follower: Follower | None
    _home: str | None = None

    @property
    def home(self) -> str | None:
        """Name of the node of this process; None where no device of the launch is there, or it is not known yet."""
        return self._home

    def offset_s(self, node: str) -> float | None:
        """Seconds from a node's monotonic clock to the controller's; None where it has not been measured."""
        return self._follower.table.offset_s(node) if self._follower else None

    def host_of(self, device: str) -> str:
        """The address of the device's node."""
        return str(self._nodes[self._devices[device]["node"]].address)

    def register(self, pid: int, device: str) -> None:
        """Report to the agent of the process's node; `open` reports the controller."""
        if device != CONTROLLER:
            self._agents[self._devices[device]["node"]].register.remote(pid, device)

    def on_one_clock(self, spans: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Spans of any device, with their times on the controller's clock."""
        assert self._follower is not None, "spans come from workers, which start after it"
        shift = self._follower.table.shift
        nodes = {device: content["node"] for device, content in self._devices.items()}
        return [shift(nodes[span["device"]], span) if span["device"] in nodes else dict(span) for span in spans]

    def explain(self, error: Exception, doing: str) -> Exception:
        """A node that is gone, where one is: whatever failed, failed for that."""
        if isinstance(error, PlacebenchError) or not self._agents:
            return error
        deadline = time.monotonic() + _WATCH_S
        while not (silent := self._silent_nodes()):
            if time.monotonic() > deadline:
                return error
            time.sleep(self.poll_s)
        devices = [device for device, content in self._devices.items() if content["node"] in silent]
        return NodeLostError(
            f"node {' and '.join(silent)} was lost during {doing}, and with it {', '.join(devices)}: see {self.look_at}"
        )

    def _silent_nodes(self) -> list[str]:
        """Nodes whose agents do not answer."""
        answers = self._ask(self._agents, "now", timeout_s=_SILENT_AFTER_S)
        return [name for name in self._agents if name not in answers]

    def _ask(
        self, nodes: Iterable[str], method: str, *arguments: Any, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """What the agents of these nodes that still answer say, by node; by default in the time that an end has."""
        asked = {name: getattr(self._agents[name], method).remote(*arguments) for name in nodes}
        if not asked:
            return {}
        done = self.calls.wait(list(asked.values()), len(asked), timeout_s or self.answer_s + 2 * self.patience_s)
        answers: dict[str, Any] = {}
        for name, answer in asked.items():
            if answer in done:
                with suppress(self.calls.error):  # its agent is gone
                    answers[name] = self.calls.get([answer])[0]
        return answers

    def _end_all(self, workers: Iterable[Any], end: Callable[[Any], object]) -> None:
        """End the workers and what they have started, then, once their last lines are written, the agents."""
        answering = self._ask(self._agents, "find_workers")
        for worker in workers:
            end(worker)
        last = self._ask(answering, "finish", self.patience_s)
        if self._follower is not None:
            self._follower.stop(last)
        for agent in self._agents.values():
            end(agent)
