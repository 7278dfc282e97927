"""Real Ray nodes on this machine: each a raylet of its own, on request in a network and time namespace of its own."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from launching import wait_for

RAY = str(Path(sys.executable).with_name("ray"))
# Workers and agents of a launch carry their class's name in their title; what Ray keeps ready is called otherwise.
OURS = ("ray::Worker", "ray::NodeAgent", "ray::look")

_ASK = """
import json, logging, sys, ray
from ray.util import placement_group_table
ray.init(address=sys.argv[1], logging_level=logging.CRITICAL, log_to_driver=False)
groups = [group["state"] for group in placement_group_table().values()]
print(json.dumps({"nodes": [node["NodeName"] for node in ray.nodes() if node["Alive"]], "groups": groups}))
"""


class RayNodes:
    """Some Ray nodes; the first one started is the head.

    Args:
        spaces: addresses of the nodes by name, each in a network namespace of its own; None for one namespace, the
            machine's.
    """

    def __init__(self, spaces: dict[str, str] | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
        self._spaces = spaces or {}
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self.env = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(16),
            "RAY_USAGE_STATS_ENABLED": "0",
            "CI": "true",
        }
        self.address = ""

    def start(self, name: str, *options: str, cpus: int = 2, inside: tuple[str, ...] = (), **env: str) -> None:
        """Start a node; `inside` is a command that runs the rest of its arguments."""
        where = [f"--node-ip-address={self._spaces[name]}"] if name in self._spaces else []
        if self.address:
            where += ["--address", self.address]
        else:
            port = _free_port()
            self.address = f"{self._spaces.get(name, '127.0.0.1')}:{port}"
            where += ["--head", f"--port={port}", f"--temp-dir={self._folder}", "--include-dashboard=false"]
            where += [f"--ray-client-server-port={_free_port()}"]  # two clusters at a time cannot share the usual one
        command = [RAY, "start", "--block", f"--node-name={name}", f"--num-cpus={cpus}", *where, *options]
        with self._log(name).open("wb") as log:
            self._started[name] = subprocess.Popen(
                [*self.enter(name), *inside, *command, "--object-store-memory=100000000"],
                env={**self.env, **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def enter(self, name: str) -> list[str]:
        """The command that runs the rest of its arguments in a node's network namespace."""
        return ["ip", "netns", "exec", _space(name)] if name in self._spaces else []

    def wait(self, *names: str) -> None:
        """Wait until these nodes have joined."""
        wait_for(lambda: all("Ray runtime started" in self._log(name).read_text() for name in names), 180)

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def ask(self, at: str) -> dict[str, Any]:
        """The live nodes and the states of the placement groups, asked on a node; none while Ray is not there."""
        done = subprocess.run(
            [*self.enter(at), sys.executable, "-c", _ASK, self.address],
            env={**self.env, "RAY_NUM_REDIS_GET_RETRIES": "2"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        answer: dict[str, Any] = {"nodes": [], "groups": []}
        # Ray tells of a node's death in the same stream.
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return answer if done.returncode else dict(json.loads(lines[-1]))

    def processes(self, name: str) -> list[psutil.Process]:
        """All processes of a node."""
        try:
            node = psutil.Process(self._started[name].pid)
            return [node, *node.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def left(self, name: str) -> list[str]:
        """Titles of a launch's processes on a node."""
        titles = []
        for process in self.processes(name):
            with suppress(psutil.NoSuchProcess):
                titles.append(" ".join(process.cmdline()))
        return [title for title in titles if title.startswith(OURS)]

    def kill(self, name: str) -> None:
        """Let a node die, all its processes at once."""
        for process in self.processes(name):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._started.pop(name).wait()

    def close(self) -> None:
        """End all nodes."""
        for name in tuple(self._started):
            self.kill(name)
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def ray_nodes(*names: str, spaces: dict[str, str] | None = None) -> Iterator[RayNodes]:
    """Ray nodes of these names."""
    nodes = RayNodes(spaces)
    try:
        for name in names:
            nodes.start(name)
        nodes.wait(*names)
        yield nodes
    finally:
        nodes.close()


@contextmanager
def network(spaces: dict[str, str]) -> Iterator[None]:
    """Network namespaces that reach each other over a bridge; addresses by name."""
    bridge = f"pbr{os.getpid()}"
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("link", "set", bridge, "up")
        for index, (name, address) in enumerate(spaces.items()):
            space, outside = _space(name), f"pbv{os.getpid()}x{index}"
            _ip("netns", "add", space)
            _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", outside, "master", bridge, "up")
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "route", "add", "default", "dev", "eth0")
        yield
    finally:
        for name in spaces:
            subprocess.run(["ip", "netns", "del", _space(name)], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", bridge], check=False, capture_output=True)


def no_namespaces() -> str | None:
    """Why network and time namespaces cannot be made here; None where they can."""
    for command in (["ip", "netns", "add", f"pbtry{os.getpid()}"], ["unshare", "--time", "--fork", "true"]):
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True)
        except FileNotFoundError:
            return f"{command[0]} is not installed"
        finally:
            if command[0] == "ip" and shutil.which("ip"):
                subprocess.run(["ip", "netns", "del", command[-1]], check=False, capture_output=True)
        if done.returncode:
            return f"{' '.join(command[:3])}: {done.stderr.strip()}"
    return None


def _space(name: str) -> str:
    return f"pb{os.getpid()}{name}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
