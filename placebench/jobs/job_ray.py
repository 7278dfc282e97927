"""The Ray that a launch of a job of the user's has for itself: what starts it on its nodes, and when it is there."""

import contextlib
import socket
import subprocess
import time
from pathlib import Path

from placebench.errors import LaunchError
from placebench.host.network import free_port
from placebench.host.signals import exit_words
from placebench.jobs.end import end_by_words
from placebench.record.tail import read_end

_POLL_S = 0.05
# So much of what it prints is looked at for why it has ended.
_LAST_BYTES = 1 << 14


def ray_head(address: str, temp_dir: str) -> tuple[str, ...]:
    """The command that starts the head of a launch's own Ray, and lasts as long as it.

    Args:
        address: with its port.
        temp_dir: folder of its files.
    """
    host, _, port = address.rpartition(":")
    where = ("--port", port, "--node-ip-address", host, "--temp-dir", temp_dir)
    # Nobody asks for Ray's client, but a head does not start where another one has its usual port.
    client = ("--ray-client-server-port", str(free_port()))
    return ("ray", "start", "--head", "--block", *where, *client, "--include-dashboard", "false")


def ray_node(head: str, address: str, name: str) -> tuple[str, ...]:
    """The command that starts another node of it.

    Args:
        head: address of the head, with its port.
        address: of the node.
        name: of the node.
    """
    return ("ray", "start", "--block", "--address", head, "--node-ip-address", address, "--node-name", name)


def wait_for_ray(process: "subprocess.Popen[bytes]", address: str, log: Path, patience_s: float) -> None:
    """Wait until the head of a Ray answers.

    Args:
        process: its command.
        address: with its port.
        log: what it prints.
        patience_s: seconds that it has for it.

    Raises:
        LaunchError: it does not.
    """
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
            return
        time.sleep(_POLL_S)
    if process.returncode is None:
        raise LaunchError(f"ray start does not listen on port {port} after {patience_s:g} s: see {log.name}")
    why = end_by_words(read_end(log, _LAST_BYTES), exit_words(process.returncode)).message
    raise LaunchError(f"ray start has ended: {why}: see {log.name}")
