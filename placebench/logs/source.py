"""A log file as blocks, unpacked, and words for what a file holds that is not a log."""

import gzip
import stat
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from placebench.errors import UsageError

BLOCK_BYTES = 1 << 20
# A 'line' longer than this is no step line; it is passed on in pieces, so memory stays bounded.
MAX_LINE_BYTES = 1 << 24
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
HEAD_BYTES = 64
SAMPLE_CHARS = 60


def whole_lines(
    path: Path, is_binary: Callable[[bytes], bool] = lambda head: False, on_open_end: Callable[[], None] = lambda: None
) -> Iterator[bytes]:
    r"""Read a file, gzip, zstd or plain, as blocks that begin and end at a line boundary.

    The last block ends in `\n` even where the file does not. A file that is binary has no lines: its blocks are cut
    anywhere and end as the file does.

    Args:
        path: the file, which may be a pipe.
        is_binary: whether the file is binary, by its first bytes.
        on_open_end: is called when the last line has no line end.

    Raises:
        UsageError: the path is missing, a directory or a device, cannot be read, or its packed data are damaged.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise UsageError(f"{path}: is a directory: name a log file in it")
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise UsageError(f"{path}: is a device, not a log file")
        with path.open("rb") as raw:
            stream = _unpacked(raw)
            head = stream.read(HEAD_BYTES)
            yield from _chunks(head, stream) if is_binary(head) else _blocks(head, stream, on_open_end)
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{path}: the gzip data is damaged or cut off ({error})") from None
    except _ZstdError as error:
        raise UsageError(f"{path}: the zstd data is damaged or cut off ({error})") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"{path}: cannot be read: {reason}") from None


class _Readable(Protocol):
    """What the blocks are read from."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, at most `size`; none at the end."""
        ...


class _ZstdError(Exception):
    """Zstd data is damaged."""


class _ZstdReader:
    """Reads zstd data through pyarrow, which has the codec."""

    def __init__(self, raw: BufferedReader) -> None:
        self._stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")

    def read(self, size: int) -> bytes:
        try:
            return bytes(self._stream.read(size))
        except (OSError, ValueError) as error:
            raise _ZstdError(str(error).split("\n", 1)[0]) from None


def _unpacked(raw: BufferedReader) -> _Readable:
    # A log need not be seekable: it may come from a pipe.
    magic = raw.peek(4)[:4]
    if magic[:2] == GZIP_MAGIC:
        return gzip.GzipFile(fileobj=raw)
    return _ZstdReader(raw) if magic == ZSTD_MAGIC else raw


def _chunks(head: bytes, stream: _Readable) -> Iterator[bytes]:
    chunk = head
    while chunk:
        yield chunk
        chunk = stream.read(BLOCK_BYTES)


def _blocks(head: bytes, stream: _Readable, on_open_end: Callable[[], None]) -> Iterator[bytes]:
    parts: list[bytes] = []
    waiting = 0
    for chunk in _chunks(head + stream.read(BLOCK_BYTES), stream):
        cut = chunk.rfind(b"\n") + 1
        if cut:
            yield b"".join([*parts, chunk[:cut]])
            parts, waiting = [chunk[cut:]], len(chunk) - cut
        else:
            parts.append(chunk)
            waiting += len(chunk)
            if waiting > MAX_LINE_BYTES:
                yield b"".join([*parts, b"\n"])
                parts, waiting = [], 0
    if waiting:
        on_open_end()
        yield b"".join([*parts, b"\n"])


class Survey:
    """Counts what passes by, to say in one phrase what a file holds.

    Attributes:
        lines: lines so far.
        binary: whether there are bytes that no text has.
        sample: the first text.
        open_end: whether the last line has no line end.
    """

    def __init__(self) -> None:
        self.open_end = False
        self.lines = 0
        self.binary = False
        self.sample = ""

    def note_open_end(self) -> None:
        """Take down that the last line has no line end."""
        self.open_end = True

    def watch(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """Pass blocks on and look at each."""
        for block in blocks:
            self.lines += block.count(b"\n")
            self.binary = self.binary or b"\0" in block
            if not self.sample:
                self.sample = _first_text(block)
            yield block

    def __str__(self) -> str:
        if not self.lines:
            return "the file is empty"
        if self.binary:
            return "the file is binary"
        lines = f"{self.lines:,} line{'s' * (self.lines != 1)}"
        return f"found {lines} of text, beginning with {self.sample!r}" if self.sample else f"found {lines} of blanks"


def _first_text(block: bytes) -> str:
    line = next((line.strip() for line in block[:4096].splitlines() if line.strip()), b"")
    text = "".join(char if char.isprintable() else "?" for char in line.decode("utf-8", "replace"))
    return text if len(text) <= SAMPLE_CHARS else text[:SAMPLE_CHARS].rstrip() + "…"
