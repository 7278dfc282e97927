"""How files are written, so that a reader finds them whole whenever their writer is killed.

A file is replaced at once. JSONL files are appended one whole line at a time and flushed; a reader of a file whose
writer was killed drops the unfinished last line.
"""

import contextlib
import json
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from placebench.errors import UsageError
from placebench.spec.reading import parse_json, regular


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Replace a file so that a reader, or a crash, sees the old or the new content and nothing between.

    Yields:
        The file to be written in the body.
    """
    scratch = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        yield scratch
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, text: str) -> None:
    """Replace a file by a text, as `replacing` does."""
    with replacing(path) as scratch, open(scratch, "w", encoding="utf-8", opener=regular) as stream:
        stream.write(text)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object atomically, as `json_text` has it."""
    write_atomically(path, json_text(content))


def json_text(content: Mapping[str, Any]) -> str:
    """An object as the content of a file; NaN and infinity are refused, a missing number is null."""
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


@contextlib.contextmanager
def replacing_output(path: Path) -> Iterator[Path]:
    """As `replacing`, of a file that a user has named, which may be any the system has.

    What a link leads to is replaced, not the link, and what is no regular file (a device, a FIFO, /dev/stdout) is
    written into: replaced, it would be one no more.
    """
    is_own = is_stdout(path)
    if not is_own and (path.is_file() or not path.exists()):
        with replacing(path.resolve()) as scratch:
            yield scratch
        return
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder) / "output"
        yield scratch
        if is_own:  # whatever it is, others print to it too, and the content belongs behind what they have printed
            sys.stdout.flush()
        with scratch.open("rb") as written, open(os.dup(1) if is_own else path, "wb") as stream:
            shutil.copyfileobj(written, stream)


def write_output(path: Path, text: str) -> None:
    """Write a text to a file that a user has named, as `replacing_output` does."""
    with replacing_output(path) as scratch, open(scratch, "w", encoding="utf-8", opener=regular) as stream:
        stream.write(text)


def refuse_same(outputs: Mapping[str, Path | None]) -> None:
    """Refuse options that name one file, of which only the last written would stay.

    Raises:
        UsageError: two of them do.
    """
    seen: dict[Path, str] = {}
    for option, path in outputs.items():
        if path is None or _takes_all(path):
            continue
        other = seen.setdefault(path.resolve(), option)
        if other != option:
            raise UsageError(f"{other} and {option} both name {path}: give each a file of its own")


def _takes_all(path: Path) -> bool:
    """Whether it is a device or a FIFO, which keeps nothing that could be written over."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def is_stdout(path: Path) -> bool:
    """Whether a path leads to where this process prints."""
    try:
        return os.path.samestat(path.stat(), os.fstat(1))
    except OSError:  # there is no such file, or stdout is closed
        return False


@contextlib.contextmanager
def making_folder(path: Path) -> Iterator[None]:
    """Make a folder, with those above it, to be written in the body; those of them that failure leaves empty go again.

    Raises:
        OSError: it cannot be made.
    """
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for folder in new:
            with contextlib.suppress(OSError):  # it was not made, or something is in it
                folder.rmdir()
        raise


def append_to(path: Path) -> TextIO:
    """A file to append lines to, which the job may have replaced meanwhile.

    Raises:
        OSError: it cannot be written, or is a pipe or a device.
    """
    return open(path, "a", encoding="utf-8", opener=regular)


def append_jsonl(stream: TextIO, content: Mapping[str, Any]) -> None:
    """Append one object as one line and flush it to the kernel."""
    stream.write(json.dumps(content) + "\n")
    stream.flush()


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Objects of a JSONL file; an unfinished last line (no newline) is dropped, a missing file is empty.

    Raises:
        OSError: it cannot be read, or is a pipe or a device.
    """
    with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8", opener=regular) as stream:
        for line in stream:
            if line.endswith("\n"):
                yield parse_json(line)


def utc_now() -> str:
    """The time as ISO 8601, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
