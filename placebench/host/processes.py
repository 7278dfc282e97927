"""Finding every process of a launch again, and ending it.

Whatever a launch starts carries `PLACEBENCH_LAUNCH=<token>` in its environment, also when it has left the
session or lost its parent. A process is ended only when it carries that token, names the launch's own Ray folder or
has a file of it open, is one that was recorded by pid and start time, or descends from such a process. What has left
session, parent and environment behind is known to who has adopted it alone (see `adopt_orphans`).
"""

import contextlib
import ctypes
import math
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from placebench.host.shared_memory import mapped_segments, remove_segments

TOKEN_VARIABLE = "PLACEBENCH_LAUNCH"
_POLL_S = 0.05
_PR_SET_CHILD_SUBREAPER = 36
# Of Python's multiprocessing and of torch; they have so long once the others are gone, seconds.
_CLEANERS = ("multiprocessing.resource_tracker", "torch_shm_manager")
_CLEAN_UP_S = 1.0
# How often a process without an environment is looked at again, and what is waited for one that is amid exec, seconds.
_LOOKS = 20
_EXEC_S = 0.005


@dataclass(frozen=True)
class ProcessId:
    """A process that no later one with the same pid is taken for."""

    pid: int
    """Process id."""
    create_time: float
    """Start, seconds since the epoch, as psutil reads it."""

    @classmethod
    def of(cls, pid: int) -> "ProcessId | None":
        """The identity of a process that is there; None when it is not."""
        try:
            return cls(pid, psutil.Process(pid).create_time())
        except psutil.NoSuchProcess:
            return None


@dataclass(frozen=True)
class LaunchMark:
    """By what the processes of one launch are known."""

    token: str
    """Random word in their environment."""
    ray_temp_dir: Path
    """Folder of the launch's own Ray, named on the command lines of its daemons."""
    recorded: tuple[ProcessId, ...] = ()
    """Processes known by pid, for the case that one has cleaned its environment."""


def launch_processes(mark: LaunchMark) -> list[psutil.Process]:
    """Every live process of a launch, this process aside; zombies do not count."""
    found = {process for process in psutil.process_iter() if _belongs(process, mark)}
    for process in tuple(found):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.update(process.children(recursive=True))
    return [process for process in found if process.pid != os.getpid() and _is_live(process)]


def stop_process(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Ask a process started here to end (SIGTERM) and give it `grace_s` seconds for it."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace_s)


def kill_processes(find: Callable[[], list[psutil.Process]], patience_s: float = 5.0) -> list[psutil.Process]:
    """Kill processes until none is found any more, so that those started meanwhile are caught too.

    Args:
        find: looks for the processes to kill.
        patience_s: seconds after which to give up on processes that the kernel does not let die.

    Returns:
        What is left, as a rule nothing.
    """
    deadline = time.monotonic() + patience_s
    left: set[psutil.Process] = set()
    segments: set[Path] = set()
    spared_until = math.inf
    # One that is ending gives back a GPU's memory last, when nothing but its pid is to be seen of it any more. One that
    # is started during a look is not seen by it, and what started it may be gone by then: so there is a second.
    while left := {process for process in left if _is_live(process)}.union(find() or find()):
        spared = set(filter(_cleans_up, left))
        if spared == left:
            spared_until = min(spared_until, time.monotonic() + _CLEAN_UP_S)
        for process in left - spared if time.monotonic() < spared_until else left:
            segments |= mapped_segments(process.pid)
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                process.kill()
        if time.monotonic() > deadline:
            return list(left)
        time.sleep(_POLL_S)
    remove_segments(segments)
    return []


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own, as init does else: what it descends from stays known.

    Raises:
        OSError: the kernel refuses.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def reap_orphans(own: Collection[int]) -> None:
    """Let go of adopted processes that have ended: each is one of those that a host allows until someone asks how.

    Args:
        own: the children of this process that it asks itself.
    """
    adopted: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended, and its children are another's
            adopted.update(map(int, path.read_text(encoding="utf-8").split()))
    for pid in adopted.difference(own):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def descendants(before: Iterable[psutil.Process] = ()) -> list[psutil.Process]:
    """The live descendants of this process, but for some."""
    return [
        process for process in psutil.Process().children(recursive=True) if _is_live(process) and process not in before
    ]


@contextlib.contextmanager
def frozen(find: Callable[[], list[psutil.Process]]) -> Iterator[None]:
    """Keep processes stopped in the body, those included that are started while the others are being stopped.

    Args:
        find: looks for the processes to stop.
    """
    stopped: set[psutil.Process] = set()
    try:
        while more := set(find()) - stopped:
            _send(more, signal.SIGSTOP)
            stopped |= more
        yield
    finally:
        _send(stopped, signal.SIGCONT)


def _cleans_up(process: psutil.Process) -> bool:
    """Whether a process is there to remove what others leave in shared memory, and ends by itself when they have."""
    try:
        return any(name in word for word in process.cmdline() for name in _CLEANERS)
    except psutil.Error:
        return False


def _send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.send_signal(number)


def oom_kills(files: Iterable[Path] | None = None) -> int:
    """How often the kernel has killed a process for want of memory, on the host and in this control group.

    Args:
        files: files with an `oom_kill N` line; those of this process when not given. What cannot be read
            counts nothing: only the difference of two calls means something.
    """
    kills = 0
    for path in _oom_files() if files is None else files:
        with contextlib.suppress(OSError):
            lines = path.read_text().splitlines()
            kills += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return kills


def _oom_files() -> list[Path]:
    files = [Path("/proc/vmstat")]
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                files.append(Path(f"/sys/fs/cgroup{group}/memory.events"))
            elif "memory" in controllers.split(","):
                files.append(Path(f"/sys/fs/cgroup/memory{group}/memory.oom_control"))
    return files


def _belongs(process: psutil.Process, mark: LaunchMark) -> bool:
    try:
        if process.uids().real != os.getuid():
            return False
        return (
            ProcessId(process.pid, process.create_time()) in mark.recorded
            or _environment(process).get(TOKEN_VARIABLE) == mark.token
            or any(f"{mark.ray_temp_dir}/" in argument for argument in process.cmdline())
            or _has_open(process.pid, mark.ray_temp_dir)
        )
    except psutil.Error:
        return False


def _environment(process: psutil.Process) -> dict[str, str]:
    """The environment of a process; one that is becoming another program has none for a moment, and no arguments."""
    for _ in range(_LOOKS):
        if (words := process.environ()) or not process.exe():  # the kernel's own run no program
            return words
        if not process.cmdline():
            time.sleep(_EXEC_S)
    return {}


def _has_open(pid: int, folder: Path) -> bool:
    """Whether a process has a file of a folder open, a deleted one included.

    Ray's workers and agents set a title that overwrites their arguments and environment; their logs stay open.
    """
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False  # it has ended, or is another user's
    for number in numbers:
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(f"/proc/{pid}/fd/{number}").startswith(f"{folder}/"):
                return True
    return False


def _is_live(process: psutil.Process) -> bool:
    """Whether any thread of a process is there still: its first one may end, a zombie then, before the others."""
    try:
        return process.is_running() and (
            process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) or process.num_threads() > 1
        )
    except psutil.NoSuchProcess:
        return False


_RAY_TEMP_NAME = re.compile(r"pb-[0-9a-f]{8}")
# A Ray socket's path is its temporary folder and about 62 characters; the kernel takes 107.
_LONGEST_RAY_PARENT = 30


def ray_temp_dir(token: str) -> Path:
    """Where a launch's Ray keeps its session.

    Its path is short, because those of Unix sockets are limited to 107 characters, and ASCII, as Ray's workers refuse
    any other letter.
    """
    parent = tempfile.gettempdir()
    is_fit = len(parent) <= _LONGEST_RAY_PARENT and parent.isascii()
    return Path(parent if is_fit else "/tmp") / f"pb-{token[:8]}"


def remove_ray_temp_dir(path: Path) -> None:
    """Remove a launch's Ray folder; anything that is not one is left alone."""
    if _RAY_TEMP_NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
