"""Fork processes that have their imports already: `python -m placebench.host.fork_server SOCKET MODULE…`.

A process forked here is what a new interpreter would be after the same imports: it has no thread, no device and no
file of another's. Whoever asks for one (see `fork_client`) hands over what the process is to inherit. It dies with
the server, and with who has asked for it.

The server has one thread of its own, and no GPU is open in it: both are checked before anything is forked.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import runpy
import selectors
import signal
import socket
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from placebench.host.fork_client import ENDED, FORKED, LENGTH, STATUS, address, is_own, receive
from placebench.host.processes import TOKEN_VARIABLE

_PR_SET_PDEATHSIG = 1
_GPU_FILES = "/dev/nvidia"
_DRIVER_THREAD = "cuda"
_LIBC = ctypes.CDLL(None, use_errno=True)


class NotForkableError(Exception):
    """The imports have left something that forked processes would share."""


def check_forkable() -> None:
    """Check that a fork copies the whole process, and nothing that lies outside it.

    Raises:
        NotForkableError: there are other threads, a GPU is open, or Ray is imported, which reads its settings then.
    """
    if threads := _threads():
        raise NotForkableError(f"the imports have started {len(threads)} threads: {', '.join(threads)}")
    if sys.modules.get("ray"):
        raise NotForkableError("the imports have brought in Ray")
    if gpus := _open_gpus():  # what a driver knows of a process it does not know of the one that is forked from it
        raise NotForkableError(f"the imports have opened {', '.join(gpus)}")


def _threads() -> list[str]:
    """Names of the other threads, but for the driver's: it stays when the GPUs are closed, and does nothing more."""
    names = []
    for thread in set(os.listdir("/proc/self/task")) - {str(os.getpid())}:
        with open(f"/proc/self/task/{thread}/comm") as stream:
            names.append(stream.read().strip())
    return sorted(name for name in names if not name.startswith(_DRIVER_THREAD))


def _open_gpus() -> list[str]:
    with os.scandir("/proc/self/fd") as files:
        return sorted({path for file in files if (path := os.path.realpath(file.path)).startswith(_GPU_FILES)})


def _close_nvml() -> None:
    """Close NVML as often as it was opened: torch asks it whether there are GPUs, and leaves it open."""
    import pynvml

    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        while True:  # until it says that it is closed
            pynvml.nvmlShutdown()


class SetVariable(NamedTuple):
    """A variable of the environment that an import has set."""

    before: str | None
    """Its value before; None without one."""
    value: str
    """Its value now."""


def import_modules(modules: Sequence[str]) -> dict[str, SetVariable]:
    """Import what the forked processes are to have, and leave it out of their garbage collector's passes.

    Returns:
        What the imports have set in the environment, by name.
    """
    before = dict(os.environ)
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    gc.enable()
    if _open_gpus():
        _close_nvml()
    now = os.environ.items()
    return {name: SetVariable(before.get(name), value) for name, value in now if before.get(name) != value}


class Child:
    """In a process just forked: what it is to be.

    Args:
        asked: what it inherits, see `fork_client.inherited`.
        files: its stdin, stdout and stderr.
        connection: to who has asked for it.
    """

    def __init__(self, asked: dict[str, Any], files: Sequence[int], connection: socket.socket) -> None:
        self._asked, self._files, self._connection = asked, files, connection

    def become(self, imported: Mapping[str, SetVariable]) -> None:
        """Inherit it, and say so: where that fails, who has asked does without a server.

        Args:
            imported: what the imports have set in the environment; what is asked for comes first.
        """
        asked = self._asked
        for number, file in enumerate(self._files):
            os.dup2(file, number)
            os.close(file)
        os.chdir(asked["cwd"])
        os.umask(asked["umask"])
        os.sched_setaffinity(0, asked["cores"])
        os.setpriority(os.PRIO_PROCESS, 0, asked["nice"])
        for number, soft, hard in asked["limits"]:
            resource.setrlimit(number, (soft, hard))
        with open("/proc/self/oom_score_adj", "w") as stream:
            stream.write(str(asked["oom_score_adj"]))
        _show_token(os.environ.get(TOKEN_VARIABLE), asked["env"].get(TOKEN_VARIABLE))
        os.environ.clear()
        os.environ.update(asked["env"])
        os.environ |= {name: now for name, (before, now) in imported.items() if asked["env"].get(name) == before}
        with self._connection:
            self._connection.sendall(FORKED)

    def run(self) -> None:
        """Run the script, as `python SCRIPT ARGUMENTS…` does."""
        script = self._asked["argv"][0]
        sys.argv[:] = self._asked["argv"]
        sys.path[0] = os.path.dirname(script)
        runpy.run_path(script, run_name="__main__")


def _show_token(old: str | None, new: str | None) -> None:
    """Put the launch's token where others read this process's environment, in place of the server's.

    The kernel shows the memory in which the environment was when the process began; what Python sets lies elsewhere.
    """
    if old is None or new is None or len(old) != len(new):
        return
    with open("/proc/self/stat") as stream:
        start, end = map(int, stream.read().rpartition(")")[2].split()[47:49])  # fields 50 and 51 of proc(5)
    place = ctypes.string_at(start, end - start).find(f"{TOKEN_VARIABLE}={old}\0".encode())
    if place >= 0:
        ctypes.memmove(start + place + len(TOKEN_VARIABLE) + 1, new.encode(), len(new))


class ForkServer:
    """Forks on demand, in one thread.

    Args:
        listener: where it is asked.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        # By the file descriptors of the connection and of the process, the pair of them.
        self._children: dict[int, tuple[socket.socket, int, int]] = {}

    def serve(self) -> Child:
        """Fork whatever is asked for; returns in the forked process alone."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    if child := self._accept():
                        return child
                elif key.data is self._children.get(key.fd):  # else it is of one that has ended just now
                    self._end(key.fd)

    def _accept(self) -> Child | None:
        connection, _ = self._listener.accept()
        try:
            request = _request(connection) if is_own(connection) else None
        except OSError:
            request = None  # who has asked is gone
        if request is None:
            connection.close()
            return None
        asked, files = request
        server = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of other threads, see `check_forkable`
            pid = os.fork()
        if pid == 0:
            self._leave(server)
            return Child(asked, files, connection)
        for file in files:
            os.close(file)
        process = os.pidfd_open(pid)
        child = (connection, process, pid)
        for number in (connection.fileno(), process):
            self._children[number] = child
            self._selector.register(number, selectors.EVENT_READ, child)
        return None

    def _leave(self, server: int) -> None:
        """Let go, in a forked process, of all that is the server's."""
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:
            os._exit(1)
        os.setpgid(0, 0)  # who cleans up after it, as Ray does, may end its process group
        self._selector.close()
        self._listener.close()
        for other, process, _ in set(self._children.values()):
            other.close()
            os.close(process)

    def _end(self, number: int) -> None:
        """A process has ended, or who has asked for it."""
        connection, process, pid = self._children[number]
        if number != process:
            os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for one in (connection.fileno(), process):
            self._selector.unregister(one)
            del self._children[one]
        os.close(process)
        with connection, contextlib.suppress(ConnectionError):  # who has asked may be gone
            connection.sendall(ENDED + STATUS.pack(status))


def _request(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    head, files, _, _ = socket.recv_fds(connection, LENGTH.size, 3)
    content = receive(connection, LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None
    if content is None:
        for file in files:
            os.close(file)
        return None
    return json.loads(content), files


def listen(word: str) -> socket.socket:
    """The socket at which a server is asked; whoever asks before the server has its imports waits for them.

    Args:
        word: what clients know it by; one of this host's that nobody else has.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address(word))
    listener.listen(64)
    return listener


def main(number: int, modules: Sequence[str]) -> None:
    """Serve until the end, or run in a forked process what was asked for.

    Args:
        number: the file descriptor of the socket, see `listen`.
        modules: what to import.
    """
    with socket.socket(fileno=number) as listener:
        listener.set_inheritable(False)
        imported = import_modules(modules)
        check_forkable()
        child = ForkServer(listener).serve()
    child.become(imported)
    child.run()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
