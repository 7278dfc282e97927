"""Segments of shared memory that killed processes leave in /dev/shm: removed where nobody uses them any more.

Only what libraries make for the processes of one job, by its name, and only what a process had that is known to be of
the launch: other files there, such as weights that a user keeps in memory, are left alone, and so is what any other
process has mapped.
"""

import contextlib
import os
import re
from pathlib import Path

FOLDER = Path("/dev/shm")
# Of Python's multiprocessing, which vLLM's queues are of too, of torch, and of NCCL.
_NAME = re.compile(r"psm_[0-9a-f]+|torch_[0-9]+_[0-9]+_[0-9]+|nccl-\w+")


def mapped_segments(pid: int) -> set[Path]:
    """The segments that a process has mapped; none of one that has ended or is another user's."""
    found = set()
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
            path = Path(line[line.find("/") :]) if f" {FOLDER}/" in line else None
            if path and path.parent == FOLDER and _NAME.fullmatch(path.name):
                found.add(path)
    return found


def remove_segments(segments: set[Path]) -> None:
    """Remove those segments that are still there, are the user's, and that no process has mapped."""
    left = set()
    for path in segments:
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.getuid():
                left.add(path)
    if left:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            left -= mapped_segments(int(pid))
    for path in left:
        path.unlink(missing_ok=True)
