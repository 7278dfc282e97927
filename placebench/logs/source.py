"""A log file as blocks, unpacked, and words for what a file holds that is not a log."""

import gzip
import stat
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from itertools import chain
from pathlib import Path

import pyarrow as pa

from placebench.errors import UsageError
from placebench.spec.legible import shown

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
            read = _unpacking(raw, path)
            head = read(HEAD_BYTES)
            if is_binary(head):
                yield from _chunks(head, read)
            else:
                rest = yield from cut_lines(_chunks(head + read(BLOCK_BYTES), read))
                if rest:
                    on_open_end()
                    yield rest + b"\n"
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{path}: the gzip data is damaged or cut off ({error})") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"{path}: cannot be read: {reason}") from None


def _unpacking(raw: BufferedReader, path: Path) -> Callable[[int], bytes]:
    """Gives the file's next bytes unpacked, at most as many as asked for; none at the end."""
    # A log need not be seekable: it may come from a pipe.
    magic = raw.peek(4)
    if magic.startswith(GZIP_MAGIC):
        return gzip.GzipFile(fileobj=raw).read
    if not magic.startswith(ZSTD_MAGIC):
        return raw.read
    # pyarrow has the codec.
    stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")

    def read(size: int) -> bytes:
        try:
            return bytes(stream.read(size))
        except (OSError, ValueError) as error:
            reason = str(error).split("\n", 1)[0]
            raise UsageError(f"{path}: the zstd data is damaged or cut off ({reason})") from None

    return read


def _chunks(first: bytes, read: Callable[[int], bytes]) -> Iterator[bytes]:
    return chain([first], iter(partial(read, BLOCK_BYTES), b""))


def cut_lines(chunks: Iterator[bytes]) -> Generator[bytes, None, bytes]:
    """Give chunks as blocks of whole lines, a line that is too long in pieces; returns what is behind the last line."""
    parts: list[bytes] = []
    waiting = 0
    for chunk in chunks:
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
    return b"".join(parts)


@dataclass
class Survey:
    """Counts what passes by, to say in one phrase what a file holds."""

    lines: int = 0
    """Lines so far."""
    binary: bool = False
    """Whether there are bytes that no text has."""
    sample: str = ""
    """The first text."""
    open_end: bool = False
    """Whether the last line has no line end."""

    def note_open_end(self) -> None:
        """Take down that the last line has no line end."""
        self.open_end = True

    def watch(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """Pass blocks on and look at each."""
        for block in blocks:
            self.lines += block.count(b"\n")
            self.binary = self.binary or b"\0" in block
            self.sample = self.sample or _first_text(block)
            yield block

    def __str__(self) -> str:
        if not self.lines:
            return "the file is empty"
        if self.binary:
            return "the file is binary"
        lines = f"{self.lines:,} line{'s' * (self.lines != 1)}"
        return (
            f"found {lines} of text, beginning with {shown(self.sample)}" if self.sample else f"found {lines} of blanks"
        )


def _first_text(block: bytes) -> str:
    line = next((line.strip() for line in block[:4096].splitlines() if line.strip()), b"")
    text = "".join(char if char.isprintable() else "?" for char in line.decode("utf-8", "replace"))
    return text if len(text) <= SAMPLE_CHARS else text[:SAMPLE_CHARS].rstrip() + "…"
