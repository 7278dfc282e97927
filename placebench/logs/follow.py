"""A log that is still being written, read as it grows: every byte once, in the memory of what is kept.

The readers take blocks until there are no more, and so each growing log is read in a thread of its own that waits for
more. It holds a lock while it works on a block: whoever holds the lock sees whole steps.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from io import BufferedReader
from itertools import chain
from pathlib import Path

from placebench.errors import UsageError
from placebench.logs.read import Log, fill_table, recognize
from placebench.logs.registry import format_named
from placebench.logs.source import BLOCK_BYTES, GZIP_MAGIC, HEAD_BYTES, ZSTD_MAGIC, as_utf8, cut_lines
from placebench.logs.table import StepTable
from placebench.logs.tensorboard import TENSORBOARD
from placebench.logs.trl import TRL_STATE
from placebench.spec.reading import FileState, regular

# How often a file is looked at that had nothing new.
POLL_S = 0.5


class GrowingLog:
    """A log under way; entered, it is read until it is left.

    Args:
        path: the log, plain text or TensorBoard's events.
        lock: is held while a block is worked on; to be held by whoever looks at `log`.
        log_format: name of the format; None finds it by the content.
        keep: which metrics to keep, by name; None keeps all.
        poll_s: how often the file is looked at while it has nothing new, seconds.
        before: what of it is not read, as it was there before; None reads all. What is put in its place is read.
        is_printed: whether it is what a job prints, with whatever else it prints.

    Raises:
        UsageError: the file cannot be read, or cannot grow: it is packed, or a folder.
    """

    def __init__(
        self,
        path: Path,
        lock: threading.Lock,
        *,
        log_format: str | None = None,
        keep: Callable[[str], bool] | None = None,
        poll_s: float = POLL_S,
        before: FileState | None = None,
        is_printed: bool = False,
    ) -> None:
        self.path = path
        self._lock, self._keep, self._poll_s, self._before = lock, keep, poll_s, before
        self._is_printed = is_printed
        self._wanted = None if log_format is None else format_named(log_format)
        self._error: Exception | None = None
        self._log: Log | None = None
        self._stop, self._ends = threading.Event(), threading.Event()
        self._is_over = False
        self.grown = 0.0
        """When something new was last read of it, on the monotonic clock."""
        self._before_open_end: int | None = None
        """Step lines before the last line of all, where that has no line end."""
        self._check()
        self._thread = threading.Thread(target=self._follow, name=f"follow {path}", daemon=True)

    def __enter__(self) -> "GrowingLog":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def finish(self) -> None:
        """Read what is there, a last line without an end too, and no more: nobody writes any longer."""
        self._ends.set()
        self._thread.join()

    @property
    def log(self) -> Log | None:
        """What has been read; None before the first step.

        Raises:
            UsageError: the log cannot be read on; the message says why and where.
            Exception: what has ended the reading and nobody expected.
        """
        self._raise_error()
        return self._log if self._log and self._log.table.lines else None

    @property
    def steps(self) -> int:
        """Step lines that have been read.

        Raises:
            As `log` does: whoever waits for more of them would wait for ever.
        """
        self._raise_error()
        return self._log.table.lines if self._log else 0

    def _raise_error(self) -> None:
        if self._error:
            raise self._error

    def _check(self) -> None:
        if self.path.is_dir():
            raise UsageError(f"{self.path}: is a directory: name a log file in it to follow")
        if self.path.exists() and not self.path.is_file():
            raise UsageError(f"{self.path}: only a file can be followed: leave out --follow to read a pipe to its end")
        try:
            with open(self.path, "rb", opener=regular) as stream:
                head = stream.read(HEAD_BYTES)
        except OSError as error:
            raise UsageError(f"{self.path}: cannot follow it: {error.strerror}") from None
        if head.startswith((GZIP_MAGIC, ZSTD_MAGIC)):
            raise UsageError(f"{self.path}: a packed log does not grow: leave out --follow")

    def _follow(self) -> None:
        """Read until the stop is set, file after file of the log's name."""
        try:
            while not (self._stop.is_set() or self._is_over):
                self._read_once()
        except OSError as error:
            self._error = UsageError(f"{self.path}: cannot be read on: {error.strerror}")
        except Exception as error:  # noqa: BLE001 - in this thread nobody would see it, and all would wait for ever
            self._error = error

    def _read_once(self) -> None:
        """Read one file to its end: until the stop, or until another has taken its name."""
        with contextlib.closing(self._blocks()) as grown:
            found, blocks = recognize(grown, self._wanted)
            if found is TRL_STATE:
                raise UsageError(
                    f"{self.path}: {found.title} is rewritten as a whole each time: follow the console log"
                )
            if found:
                if self._log and self._log.format is found:
                    self._log.table.begin_anew()
                else:
                    self._log = Log(self.path, found, StepTable(self._keep))
                table = self._log.table
                fill_table(self.path, found, blocks, table, is_printed=self._is_printed)
                is_open = self._before_open_end is not None and table.lines > self._before_open_end
                table.open_end = is_open and not found.closed

    def _blocks(self) -> Generator[bytes, None, None]:
        """Whole lines as they come, and at the end of all also one without a line end; or bytes of a binary log."""
        chunks = self._chunks()
        first = next(chunks, b"")
        is_binary = self._wanted.binary if self._wanted else TENSORBOARD.begins(first)
        chunks = chain([first], chunks)
        for block in chunks if is_binary else cut_lines(as_utf8(chunks), self._takes_open_end):
            with self._lock:
                yield block

    def _takes_open_end(self) -> bool:
        """Whether a last line without an end is a line: not where more of it may come, or another file has begun."""
        if self._is_over:
            self._before_open_end = self._log.table.lines if self._log else 0
        return self._is_over

    def _chunks(self) -> Iterator[bytes]:
        """What the file has, as it comes; ends at the stop, or when another file has its name.

        Where nobody writes any longer, it ends at the end.
        """
        while not self.path.is_file():
            # Moved away or deleted: it will come back.
            if self._ends.is_set() or self._stop.wait(self._poll_s):
                self._is_over = True
                return
        with open(self.path, "rb", opener=regular) as stream:
            position = self._begin(stream)
            while not self._stop.is_set():
                # Both before the look at the file, to which nothing is added then.
                is_all, is_left = self._ends.is_set(), self._is_another(stream, position)
                if chunk := stream.read(BLOCK_BYTES):
                    position += len(chunk)
                    self.grown = time.monotonic()
                    yield chunk
                elif is_left:
                    return
                elif is_all:
                    self._is_over = True
                    return
                else:
                    self._stop.wait(self._poll_s)

    def _begin(self, stream: BufferedReader) -> int:
        """Pass over what was there before; returns where the reading begins."""
        if self._before and not self._before.is_in(FileState.of(os.fstat(stream.fileno()))):
            self._before = None
        return stream.seek(self._before.size) if self._before else 0

    def _is_another(self, stream: BufferedReader, position: int) -> bool:
        """Whether the log's name is now that of another file, or of the same with less in it."""
        try:
            now = FileState.of(self.path.stat())
        except OSError:
            # Whoever writes the log may go on with the file that has no name.
            return False
        return not FileState.of(os.fstat(stream.fileno()))._replace(size=position).is_in(now)
