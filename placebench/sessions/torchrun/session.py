"""A launch whose workers are the ranks of torchrun on this host."""

import json
import os
import pickle
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from queue import Empty, SimpleQueue
from typing import Any

from placebench.errors import LaunchError, PlacebenchError
from placebench.host.signals import signal_name
from placebench.sessions.base import LOOPBACK, OneHost
from placebench.sessions.torchrun.calls import Link, RankCalls, RankError
from placebench.sessions.torchrun.command import end_process, rank_environment, start_bound, torchrun_command
from placebench.sessions.torchrun.serving import CONTROLLER_VARIABLE, CREATE, NODE_VARIABLE

# The runner gives the whole job three seconds to end: ranks that end with their connections, and torchrun with them.
_GRACE_S = 0.8
_POLL_S = 0.1
# Other ranks notice a rank's death by their broken connections, perhaps sooner than the controller does.
_DEATH_S = 1.0
# Others who try the port meanwhile take nobody's place in its queue.
_STRANGERS = 16


class Doorway:
    """Where the processes of a launch come in: a port that only those with its key get through.

    Args:
        host: the address to listen on.
        expected: how many processes will come.
    """

    def __init__(self, host: str, expected: int) -> None:
        self._key = secrets.token_bytes(32)
        self._server = socket.create_server((host, 0), backlog=expected + _STRANGERS)
        self._missing = expected
        self._lock = threading.Lock()
        self._come: SimpleQueue[tuple[Connection, dict[str, Any]]] = SimpleQueue()
        port = self._server.getsockname()[1]
        self.environment = {CONTROLLER_VARIABLE: json.dumps({"host": host, "port": port, "key": self._key.hex()})}
        threading.Thread(target=self._accept, daemon=True).start()

    def next(self, timeout_s: float) -> tuple[Connection, dict[str, Any]] | None:
        """The next process's connection and greeting; None when none has come in time."""
        try:
            return self._come.get(timeout=timeout_s)
        except Empty:
            return None

    def _accept(self) -> None:
        while self._missing:
            with suppress(OSError):  # one that has ended meanwhile; or the port is closed, since all are there
                connection = Connection(self._server.accept()[0].detach())
                # In a thread, so that one that says nothing keeps nobody waiting.
                threading.Thread(target=self._let_in, args=(connection,), daemon=True).start()

    def _let_in(self, connection: Connection) -> None:
        try:
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            greeting = pickle.loads(connection.recv_bytes())
        except (AuthenticationError, EOFError, OSError):  # another program, or a process that has ended meanwhile
            connection.close()
            return
        with self._lock:
            self._missing -= 1
            if not self._missing:
                self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for the next one
                self._server.close()
        self._come.put((connection, greeting))


class Torchrun(OneHost):
    """Ranks of torchrun, one a device, on this host.

    Args:
        folder: where torchrun keeps what it writes.
        devices: objects of `launch.json` by the device's id.
    """

    def __init__(self, folder: str, devices: Mapping[str, Mapping[str, Any]]) -> None:
        self.calls = RankCalls()
        self._folder, self._devices = folder, devices
        self._ranks: dict[str, Link] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        """Start the ranks.

        Raises:
            LaunchError: torchrun has ended without them.
        """
        doorway = Doorway(LOOPBACK, len(self._devices))
        words = torchrun_command(self._folder, len(self._devices), ["--standalone", f"--local-addr={LOOPBACK}"])
        variables = rank_environment(os.environ) | doorway.environment | {NODE_VARIABLE: LOOPBACK}
        self._process = start_bound(words, variables)
        self._let_in(doorway, {(LOOPBACK, number): device for number, device in enumerate(self._devices)})

    def _let_in(self, doorway: "Doorway", places: Mapping[tuple[str, int], str]) -> None:
        """Wait for the ranks.

        Args:
            doorway: where they come in.
            places: the device of each by its node and its number there.

        Raises:
            LaunchError: torchrun has ended without them.
        """
        while len(self._ranks) < len(places):
            if come := doorway.next(_POLL_S):
                connection, greeting = come
                device = places[greeting["node"], greeting["local_rank"]]
                self._ranks[device] = Link(connection, f"the worker of {device} (pid {greeting['pid']})", self.calls)
            elif (code := self._exit_code()) is not None:
                end = f"was killed by {signal_name(-code)}" if code < 0 else f"has ended with exit code {code}"
                raise LaunchError(f"torchrun {end} before its ranks began: see train.log")

    def _exit_code(self) -> int | None:
        """The exit code of torchrun; None while it goes on."""
        return None if self._process is None else self._process.poll()

    def start_worker(self, worker: type, pool: str, device: str, *arguments: Any) -> Link:
        """Let the device's rank become a worker; it binds to its device itself."""
        rank = self._ranks[device]
        rank.ask(CREATE, (worker, *arguments))
        return rank

    def explain(self, error: Exception, doing: str) -> Exception:
        """The end of a rank, where one has ended: whatever failed, failed for that."""
        if isinstance(error, PlacebenchError):  # torchrun has ended before all were there, and with it the others
            return error
        deadline = time.monotonic() + _DEATH_S
        while isinstance(error, RankError) and self.calls.first_death is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return self.calls.first_death or error

    def close(self) -> None:
        """End the ranks, and torchrun with them."""
        for rank in self._ranks.values():
            rank.close()
        if self._process is not None:
            end_process(self._process, _GRACE_S)
