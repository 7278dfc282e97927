"""Files that grow, read as they do: each line once, or only the end."""

import os
from pathlib import Path
from typing import Any, BinaryIO

from placebench.spec.reading import parse_json, regular

# More than a job writes between two looks.
_PIECE = 1 << 26


class JsonlTail:
    """Hands out each line of a growing JSONL file, or of a log, once.

    Args:
        path: the file.
        most: so many bytes are read at a time, and a longer line is left out.

    Attributes:
        behind: bytes that the last reading has left for the next.
    """

    def __init__(self, path: Path, most: int = _PIECE) -> None:
        self.path, self.behind = path, 0
        self._most, self._offset = most, 0
        self._is_cut = False

    def skip_to_last(self, size: int) -> None:
        """Leave out what lies more than so many bytes before the end of the file, up to the next whole line."""
        try:
            end = self.path.stat().st_size
        except FileNotFoundError:
            return
        if end - size > self._offset:
            self._offset, self._is_cut = end - size, True

    def read_lines(self) -> list[bytes]:
        """Whole lines added since the last call; an unfinished last one waits, a missing file is empty.

        Raises:
            OSError: it cannot be read, or is a pipe or a device.
        """
        try:
            size = self.path.stat().st_size
            if size == self._offset:
                self.behind = 0
                return []
            with open(self.path, "rb", opener=regular) as stream:
                content = self._read(stream, size)
        except FileNotFoundError:
            self.behind = 0
            return []
        whole = content[: content.rfind(b"\n") + 1]
        if not whole and len(content) == self._most:  # a line that nobody writes, and that nobody can hold
            self._is_cut, whole = True, content
        self._offset += len(whole)
        # An unfinished last line is nothing to read.
        self.behind = max(0, size - self._offset) if len(content) == self._most else 0
        lines = whole.splitlines()
        if self._is_cut and lines:
            self._is_cut = not whole.endswith(b"\n") and len(lines) == 1
            del lines[0]
        return lines

    def read(self) -> list[dict[str, Any]]:
        """The objects of those lines."""
        return [parse_json(line) for line in self.read_lines()]

    def _read(self, stream: BinaryIO, size: int) -> bytes:
        if size < self._offset:  # another file has its name
            self._offset, self._is_cut = 0, False
        stream.seek(self._offset)
        return stream.read(self._most)


def read_end(path: Path, size: int) -> str:
    """The last bytes of a text, so many at most; empty where there is none to read."""
    try:
        with open(path, "rb", opener=regular) as stream:
            stream.seek(-min(size, stream.seek(0, os.SEEK_END)), os.SEEK_END)
            return stream.read(size).decode(errors="replace")
    except OSError:
        return ""
