"""A log file as blocks, unpacked, and words for what a file holds that is not a log."""

import codecs
import gzip
import stat
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from itertools import chain, takewhile
from pathlib import Path

import pyarrow as pa

from placebench.errors import UsageError
from placebench.spec.legible import shown
from placebench.spec.text import format_bytes

BLOCK_BYTES = 1 << 20
# A 'line' longer than this is no step line; it is passed on in pieces, so memory stays bounded.
MAX_LINE_BYTES = 1 << 24
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# Packed in ways that are not read.
PACKED = {b"PK\3\4": "zip", b"\xfd7zXZ\0": "xz", b"BZh91AY&SY": "bzip2", b"7z\xbc\xaf\x27\x1c": "7-zip"}
HEAD_BYTES = 64
SAMPLE_CHARS = 60
# The marks of encodings that begin a text, the longer ones first.
MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# So much without a step is read of what cannot be a log: of what has bytes that no text has, and of what unpacks to so
# many times its size.
BINARY_BYTES = 1 << 24
UNPACKED_BYTES = 1 << 26
UNPACKED_TIMES = 100
# Nor is a line a log's that is longer than the longest file that is read as one.
UNBROKEN_BYTES = 1 << 29


@dataclass
class Survey:
    """Counts what is read of a file, to say in a phrase what it holds, and to give up where that can be no log.

    Args:
        has_steps: whether the log's reader has found a step.
    """

    has_steps: Callable[[], bool] = lambda: True
    size: int = 0
    """Bytes so far, unpacked."""
    lines: int = 0
    """Lines so far."""
    binary: bool = False
    """Whether there are bytes that no text has."""
    sample: str = ""
    """The first text."""
    open_end: bool = False
    """Whether the last line has no line end."""
    unbroken: int = 0
    """Bytes since a line ended."""
    longest: int = 0
    """Bytes of the longest line, as far as they were counted."""
    gave_up: bool = False
    """Whether the rest was not read, for it can be no log."""
    packed_size: Callable[[], int] | None = None
    """Bytes of the packed file that were read so far; None where it is not packed, or that is not known."""

    def note_open_end(self) -> bool:
        """Take down that the last line has no line end; it is read all the same."""
        self.open_end = True
        return True

    def takes(self, block: bytes) -> bool:
        """Count a block; returns whether it is to be read."""
        self.size += len(block)
        self.lines += block.count(b"\n")
        self.binary = self.binary or b"\0" in block
        self.sample = self.sample or _first_text(block)
        # A line that is too long comes in pieces, each with an end.
        end = block.find(b"\n") + 1
        self.unbroken += end
        self.longest = max(self.longest, self.unbroken)
        self.unbroken = self.unbroken if MAX_LINE_BYTES < end == len(block) else 0
        is_none = (self.binary and self.size > BINARY_BYTES) or self.unbroken > UNBROKEN_BYTES
        self.gave_up = (is_none or self._unpacks_to_too_much()) and not self.has_steps()
        return not self.gave_up

    def _unpacks_to_too_much(self) -> bool:
        if self.packed_size is None or self.size < UNPACKED_BYTES:
            return False
        return self.size > UNPACKED_TIMES * self.packed_size()

    def __str__(self) -> str:
        if not self.lines:
            return "the file is empty"
        first = f"its first {format_bytes(self.size)} have" if self.gave_up else "it has"
        if self.binary:
            return f"the file is binary: {first} bytes that no text has; name the text that the job printed"
        if self.unbroken > UNBROKEN_BYTES:
            return f"the file has a line of over {format_bytes(UNBROKEN_BYTES)}, as no log has: name the job's log"
        if self.gave_up:
            return f"the file unpacks to over {UNPACKED_TIMES} times its size, as no log does: {first} no step"
        lines = f"{self.lines:,} line{'s' * (self.lines != 1)}"
        if not self.sample:
            return f"found {lines}, all blank"
        long = f"; a line has {format_bytes(self.longest)}, as no step has" if self.longest > BLOCK_BYTES else ""
        return f"found {lines} of text, beginning with {shown(self.sample)}{long}"


def whole_lines(
    path: Path, is_binary: Callable[[bytes], bool] = lambda head: False, survey: Survey | None = None
) -> Iterator[bytes]:
    r"""Read a file, gzip, zstd or plain, as blocks of UTF-8 that begin and end at a line boundary.

    The last block ends in `\n` even where the file does not. A file that is binary has no lines: its blocks are cut
    anywhere and end as the file does.

    Args:
        path: the file, which may be a pipe.
        is_binary: whether the file is binary, by its first bytes.
        survey: counts what is read; the reading ends where it gives up.

    Raises:
        UsageError: the path is missing, a directory or a device, cannot be read, or its data are damaged or packed in a
            way that is not read.
    """
    survey = survey or Survey()
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise UsageError(f"{path}: is a directory: name a log file in it")
        if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
            what = "a socket" if stat.S_ISSOCK(mode) else "a device"
            raise UsageError(f"{path}: is {what}, not a log file")
        with path.open("rb") as raw:
            read = _unpacking(raw, path)
            if read != raw.read and stat.S_ISREG(mode):
                survey.packed_size = raw.tell
            head = read(HEAD_BYTES)
            if is_binary(head):
                survey.has_steps = lambda: True
                yield from takewhile(survey.takes, _chunks(head, read))
                return
            for magic, packer in PACKED.items():
                if head.startswith(magic):
                    raise UsageError(
                        f"{path}: is packed by {packer}, which placebench cannot read: unpack it, or pack it by gzip"
                    )
            lines = cut_lines(as_utf8(_chunks(head + read(BLOCK_BYTES), read)), survey.note_open_end)
            yield from takewhile(survey.takes, lines)
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


def as_utf8(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Give chunks as UTF-8 without its mark, whatever encoding the mark at their beginning says."""
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= max(map(len, MARKS)):
            break
    encoding = next((encoding for mark, encoding in MARKS.items() if head.startswith(mark)), None)
    if encoding == "utf-8-sig":
        head, encoding = head.removeprefix(codecs.BOM_UTF8), None
    if encoding is None:
        yield head
        yield from chunks
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for chunk in chain([head], chunks):
        # A lone half of a pair is no text.
        yield decoder.decode(chunk).encode("utf-8", "replace")


def cut_lines(chunks: Iterator[bytes], takes_open_end: Callable[[], bool]) -> Iterator[bytes]:
    """Give chunks as blocks of whole lines, a line that is too long in pieces.

    Args:
        chunks: cut anywhere.
        takes_open_end: is asked where the last line has no line end, whether it is given all the same, with one.
    """
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
    rest = b"".join(parts)
    if rest and takes_open_end():
        yield rest + b"\n"


def _first_text(block: bytes) -> str:
    line = next((line.strip() for line in block[:4096].splitlines() if line.strip()), b"")
    text = "".join(char if char.isprintable() else "?" for char in line.decode("utf-8", "replace"))
    return text if len(text) <= SAMPLE_CHARS else text[:SAMPLE_CHARS].rstrip() + "…"
