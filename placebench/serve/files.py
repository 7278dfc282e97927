"""The files that the page may look into: regular ones of the runs' folder, however large, a part at a time."""

import stat
from collections.abc import Iterator
from pathlib import Path

from placebench.record.tail import JsonlTail

# Read of one file at a time, and so the longest line that is seen.
PART_BYTES = 1 << 20


def is_plain(path: Path) -> bool:
    """Whether a path is a regular file by itself: a link may lead anywhere, a pipe never ends."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Whether a path is a folder by itself."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def is_within(folder: Path, above: Path) -> bool:
    """Whether a folder lies in another one, links followed."""
    try:
        return folder.resolve().is_relative_to(above.resolve())
    except (OSError, RuntimeError):
        return False


def signature(path: Path) -> tuple[int, ...] | None:
    """What changes when a file is written anew, or a folder gets a file; None of what is neither."""
    try:
        found = path.lstat()
    except (OSError, ValueError):
        return None
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class PlainTail(JsonlTail):
    """As `JsonlTail`, a part at a time, of plain files alone."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, PART_BYTES)

    def skip_to_last(self, size: int) -> None:
        """As there, of a plain file."""
        if is_plain(self.path):
            super().skip_to_last(size)

    def read_lines(self) -> list[bytes]:
        """The next whole lines; none of what is no plain file."""
        return super().read_lines() if is_plain(self.path) else []


def spread_lines(path: Path, end: int, parts: int, size: int) -> Iterator[list[bytes]]:
    """Whole lines from places all over a file that is too long to be read, in order.

    Args:
        path: the file.
        end: where to stop, bytes.
        parts: how many places.
        size: bytes to read at each.
    """
    if not is_plain(path):
        return
    with path.open("rb") as stream:
        for part in range(parts):
            stream.seek(part * end // parts)
            yield stream.read(size).split(b"\n")[1:-1]
