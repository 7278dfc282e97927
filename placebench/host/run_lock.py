"""One process at a time works on a run: a lock on a file in its folder, which the kernel opens when the process ends.

So it outlives no process, however that ends. It holds between the processes of one host, and between hosts where the
run lies on a disk of theirs that has locks (NFS has); Lustre, for one, has them only where it is mounted so.
"""

import contextlib
import errno
import fcntl
import json
import os
import platform
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from placebench.errors import UsageError
from placebench.record.folder import RunFolder
from placebench.record.writing import utc_now
from placebench.spec.reading import parse_json, read_text

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextlib.contextmanager
def lock_run(folder: RunFolder) -> Iterator[str | None]:
    """Keep all other processes from working on a run while the body does.

    Yields:
        What the user should know where the disk has no locks; None where it has.

    Raises:
        UsageError: another process works on the run, or its folder is not there or cannot be written.
    """
    path = folder.lock_file
    note = None
    try:
        lock = _open_locked(folder)
    except BlockingIOError:
        raise UsageError(f"{folder.path}: {_holder(folder)}; stop that first") from None
    except FileNotFoundError:
        raise UsageError(f"{folder.path}: there is no such folder; name the folder of a run") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise UsageError(f"{path}: cannot lock the run: {error.strerror}") from None
        lock = -1
        note = (
            f"{path}: this disk has no locks ({error.strerror}): do not start a second --resume of the run while this"
            " one works"
        )
    try:
        yield note
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # before it is let go of: whoever opens it now makes a new one
        if lock >= 0:
            os.close(lock)


def is_held(folder: RunFolder) -> bool | None:
    """Whether a process of this host works on a run; None where the run's files do not tell, as of another host.

    The lock itself is left alone: to try it would keep others from it for a moment.
    """
    import psutil  # here: what imports this module must be there at once

    # Another process may have its number by now.
    match _recorded(folder):
        case {"pid": int(pid), "host": str(host), "start": int(start)} if host == platform.node():
            return _start(pid) == start
        case {"pid": int(pid), "host": str(host), "since": str(since)} if host == platform.node():
            try:
                return psutil.Process(pid).create_time() <= datetime.fromisoformat(since).timestamp() + 1
            except (psutil.Error, ValueError, OverflowError):
                return False
    return None


def _start(pid: int) -> int | None:
    """When a process was started, in the kernel's ticks, which no clock that is set changes; None where it is gone."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return int(words[19])  # the 22nd field, of which the first two end with the bracket


def _open_locked(folder: RunFolder) -> int:
    """A descriptor that holds the lock, its file with who holds it; anew when another process has removed the file."""
    while True:
        lock = os.open(folder.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), folder.lock_file.stat()):
                    holder = {
                        "pid": os.getpid(),
                        "host": platform.node(),
                        "since": utc_now(),
                        "start": _start(os.getpid()),
                    }
                    with contextlib.suppress(OSError):  # a full disk keeps nobody from holding it
                        os.ftruncate(lock, 0)
                        os.write(lock, json.dumps(holder).encode())
                    undo.pop_all()
                    return lock


def _holder(folder: RunFolder) -> str:
    """Who works on a run."""
    match _recorded(folder):
        case {"pid": int(pid), "host": str(host), "since": str(since)}:
            return f"process {pid} on {host} has worked on this run since {since}"
    return "another process works on this run"


def _recorded(folder: RunFolder) -> object:
    """What the lock says of who holds it; None where it has only just begun, or ended this moment."""
    try:
        return parse_json(read_text(folder.lock_file))
    except (UsageError, ValueError):
        return None
