"""Follows the agents of a launch's nodes: their samples into the trial's files, their clocks measured in between."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from placebench.record.folder import Trial
from placebench.record.writing import append_jsonl, append_to
from placebench.sessions.base import Calls
from placebench.sessions.ray_cluster.clocks import ClockTable, measure_offset
from placebench.telemetry.spans import CONTROLLER, SpanClock

_FETCH_EVERY_S = 1.0
_MEASURE_EVERY_S = 30.0
_ANSWER_S = 2.0


class Follower:
    """A thread of the controller's process.

    Args:
        trial: the launch's folder.
        agents: the session's handle of the agent of each node.
        home: the controller's node; None when no device of the launch is there.
        clock: the controller's clock.
        calls: how the agents' answers are waited for.
    """

    def __init__(
        self, trial: Trial, agents: Mapping[str, Any], home: str | None, clock: SpanClock, calls: Calls
    ) -> None:
        self._trial, self._agents, self._home, self._clock = trial, dict(agents), home, clock
        self._calls = calls
        self.table = ClockTable(clock)
        # Questions not answered yet: a drained line is in the answer and nowhere else.
        self._asked: dict[str, Any] = {}
        # Why a file cannot be written any longer.
        self._failed: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def start(self) -> None:
        """Wait for the agents, measure every clock once, then go on in the background.

        Raises:
            Exception: an agent cannot start; an error of the session's calls.
        """
        self._calls.get([agent.now.remote() for agent in self._agents.values()])
        for node in self._agents:
            self._measure(node)
        self._thread.start()

    def stop(self, last: Mapping[str, list[dict[str, Any]]]) -> None:
        """End the following, write the agents' last lines, by node, and say where writing has failed."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_ANSWER_S)
        self._fetch()
        for node, lines in last.items():
            if self.table.knows(node):  # not so when the launch has failed before its clock was measured
                self._write(node, lines)
        if self._failed:
            print(f"not all samples could be written, so device figures are missing: {self._failed}", flush=True)

    def _follow(self) -> None:
        due = time.monotonic() + _MEASURE_EVERY_S
        while not self._stop.wait(_FETCH_EVERY_S):
            self._fetch()
            waiting = {node: agent for node, agent in self._agents.items() if node not in self._asked}
            self._asked |= {node: agent.drain.remote() for node, agent in waiting.items()}
            if time.monotonic() > due:
                due = time.monotonic() + _MEASURE_EVERY_S
                for node in tuple(self._agents):
                    self._try(node, self._measure)

    def _fetch(self) -> None:
        """Write the lines of the answers that are there."""
        if self._asked:
            ready = self._calls.wait(list(self._asked.values()), len(self._asked), 0)
            for node in [node for node, reference in self._asked.items() if reference in ready]:
                self._try(node, self._take)

    def _try(self, node: str, action: Callable[[str], None]) -> None:
        """Do something with a node; one that is gone is left out from now on."""
        try:
            action(node)
        except TimeoutError:
            print(f"node {node}: its agent has not answered for {_ANSWER_S:g} s", flush=True)
        except self._calls.error as error:
            # The phase that runs there fails too, and says more; what is left to do here is to go on.
            print(f"node {node}: its samples end here: {str(error).splitlines()[0]}", flush=True)
            self._agents.pop(node, None)

    def _take(self, node: str) -> None:
        ((lines, failed),) = self._calls.get([self._asked.pop(node)])
        self._write(node, lines)
        if failed is not None:
            print(f"node {node}: its sampler has ended: {failed}", flush=True)
            self._agents.pop(node, None)

    def _measure(self, node: str) -> None:
        def ask() -> float:
            return float(self._calls.get([self._agents[node].now.remote()], _ANSWER_S)[0])

        measured = measure_offset(node, ask, self._clock)
        self.table.add(measured)
        self._append(self._trial.clocks, [asdict(measured)])

    def _write(self, node: str, lines: list[dict[str, Any]]) -> None:
        """Append a node's lines; the controller is sampled where it runs, and nowhere else."""
        kept = (line for line in lines if node == self._home or line.get("device") != CONTROLLER)
        self._append(self._trial.device_samples, (self.table.shift(node, line) for line in kept))

    def _append(self, path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append lines, and none any more once that has failed: a line of which half was written is the last one.

        Nodes are followed nevertheless, as what they sample would fill their memory.
        """
        if self._failed:
            return
        try:
            with append_to(path) as stream:
                for line in lines:
                    append_jsonl(stream, line)
        except OSError as error:
            self._failed = f"{path}: {error.strerror}"
