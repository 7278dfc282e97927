"""Stand in for a process that a fork server forks: `python fork_client.py SCRIPT ARGUMENTS…`.

A script of its own that imports the interpreter's own modules alone, since what starts it waits for nothing else. It
hands what a started process inherits to the server, and lasts as long as the process that the server forks: who
kills it kills that process, and it ends as that process ends. Where no server answers, it becomes the command that
was to be run without one.
"""

import json
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

ADDRESS_VARIABLE = "PLACEBENCH_FORK_SERVER"
"""The server's word (see `connect`)."""
INSTEAD_VARIABLE = "PLACEBENCH_FORK_INSTEAD"
"""The script that does without a server what this one does with it; gets the same arguments."""
SERVER = "placebench.host.fork_server"
"""The module that is run as a server."""
LENGTH = struct.Struct("!I")
STATUS = struct.Struct("!i")
FORKED, ENDED = b"F", b"E"
_LIMITS = [number for name, number in vars(resource).items() if name.startswith("RLIMIT_")]
_CREDENTIALS = struct.Struct("3i")


def address(word: str) -> str:
    """The socket of a server: in Linux's abstract namespace, so that no file of it is ever left behind."""
    return f"\0placebench-{word}"


def is_own(connection: socket.socket) -> bool:
    """Whether the other end is a process of this user: whoever is on this host can reach an abstract socket."""
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(said)[1] == os.getuid())


def is_forked(pid: int) -> bool:
    """Whether a process of this host has been forked by a server; not for one that has ended."""
    try:
        with open(f"/proc/{pid}/stat") as stream:
            parent = int(stream.read().rpartition(")")[2].split()[1])
        with open(f"/proc/{parent}/cmdline", "rb") as words:
            return SERVER.encode() in words.read().split(b"\0")
    except OSError:
        return False


def receive(connection: socket.socket, size: int) -> bytes | None:
    """So many bytes; None where the other end is gone before they are there."""
    content = b""
    while len(content) < size:
        try:
            more = connection.recv(size - len(content))
        except ConnectionError:
            return None
        if not more:
            return None
        content += more
    return content


def inherited(arguments: Sequence[str]) -> dict[str, Any]:
    """What a process that is started here would inherit, but for its open files."""
    with open("/proc/self/oom_score_adj") as stream:
        oom_score = int(stream.read())
    umask = os.umask(0)
    os.umask(umask)
    return {
        "argv": list(arguments),
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "umask": umask,
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "cores": sorted(os.sched_getaffinity(0)),
        "limits": [[number, *resource.getrlimit(number)] for number in _LIMITS],
        "oom_score_adj": oom_score,
    }


def connect(word: str) -> socket.socket | None:
    """A connection to the server of a word; None where there is none of this user."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(address(word))
    except OSError:
        connection.close()
        return None
    if not is_own(connection):
        connection.close()
        return None
    return connection


def ask(word: str, arguments: Sequence[str]) -> int | None:
    """Have a process forked and wait for its end; returns its status, as `os.waitstatus_to_exitcode` has it.

    Args:
        word: the server's.
        arguments: the script that it runs, and its arguments.

    Returns:
        None where no process has been forked.
    """
    connection = connect(word)
    if connection is None:
        return None
    content = json.dumps(inherited(arguments)).encode()
    with connection:
        try:
            socket.send_fds(connection, [LENGTH.pack(len(content))], [0, 1, 2])
            connection.sendall(content)
        except ConnectionError:
            return None
        if receive(connection, 1) != FORKED:
            return None
        end = receive(connection, len(ENDED) + STATUS.size)
    return -signal.SIGKILL if end is None else int(STATUS.unpack(end[len(ENDED) :])[0])  # it dies with the server


def _scripted(arguments: Sequence[str]) -> list[str] | None:
    """The script of a Ray worker and its arguments, of the command line that a raylet makes for `setup_worker.py`.

    None where it asks for more than to run a Python script with what is inherited.
    """
    environment, language, rest = "{}", "", []
    for argument in arguments:
        if argument.startswith("--serialized-runtime-env-context="):
            environment = argument.partition("=")[2]
        elif argument.startswith("--language="):
            language = argument.partition("=")[2]
        else:
            rest.append(argument)
    try:
        context = json.loads(environment)
    except ValueError:
        return None
    asked = {
        name for name, value in context.items() if value and not (name == "py_executable" and value == sys.executable)
    }
    is_plain = language == "PYTHON" and not asked and rest and rest[0].endswith(".py") and os.path.isfile(rest[0])
    return rest if is_plain else None


def main(arguments: Sequence[str]) -> NoReturn:
    """Do what the module says."""
    word, instead = os.environ.get(ADDRESS_VARIABLE), os.environ[INSTEAD_VARIABLE]
    scripted = _scripted(arguments)
    status = ask(word, scripted) if word and scripted else None
    if status is None:
        os.execv(sys.executable, [sys.executable, instead, *arguments])
    os._exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main(sys.argv[1:])
