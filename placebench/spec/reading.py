"""Reading files that users name or may have damaged: nothing is waited for without end, nothing overflows the stack."""

import errno
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from placebench.errors import UsageError
from placebench.spec.legible import each_text, encodable

# What the user's shell has opened for this very command (`<(...)`, `|`): somebody writes there.
_OPENED = ("/dev/stdin", "/dev/fd/")
# Of a file that is made: what `open` gives one, without the right to execute it.
_MODE = 0o666


class FileState(NamedTuple):
    """Which file it was, and how much was in it, at some time."""

    device: int
    inode: int
    size: int
    """Bytes."""

    @classmethod
    def of(cls, found: os.stat_result) -> Self:
        """By what the operating system says of it now."""
        return cls(found.st_dev, found.st_ino, found.st_size)

    def is_in(self, now: "FileState") -> bool:
        """Whether it is the same file still, with nothing taken away."""
        return (self.device, self.inode) == (now.device, now.inode) and self.size <= now.size


def read_text(path: Path, encoding: str = "utf-8", at_most: int | None = None) -> str:
    """The text of a file that the user names.

    Args:
        path: of the file.
        encoding: of its text.
        at_most: so many characters are read; None for all.

    Raises:
        UsageError: the file cannot be read, is longer, or is a pipe or a device.
    """
    try:
        with open(path, encoding=encoding, opener=regular) as stream:
            text = stream.read(-1 if at_most is None else at_most + 1)
            if at_most is None or len(text) <= at_most:
                return text
            raise UsageError(f"{path}: it is longer than {at_most:,} characters: is it the file that you mean?")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{path}: cannot read it: {reason}") from None


def exists(path: Path) -> bool:
    """Whether there is something at a path; what is no path at all, such as a name that is too long, is not there."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def regular(path: str, flags: int) -> int:
    """The `opener` of `open` for files that somebody else may have replaced: it opens regular ones only.

    A pipe without anybody at its other end is waited for without end when it is opened, and a device is read so.

    Raises:
        OSError: it cannot be opened, or is a pipe, a socket or a device: `ENXIO`.
    """
    if path.startswith(_OPENED):
        return os.open(path, flags)
    not_regular = OSError(errno.ENXIO, "it is a pipe or a device; name a regular file", path)
    try:
        opened = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, _MODE)
    except OSError as error:
        # What the kernel says of sockets, and of pipes that nobody reads.
        raise (not_regular if error.errno == errno.ENXIO else error) from None
    mode = os.fstat(opened).st_mode
    if stat.S_ISREG(mode):
        os.set_blocking(opened, True)
        return opened
    os.close(opened)
    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path) if stat.S_ISDIR(mode) else not_regular


def refuse_pipe(path: Path) -> None:
    """See that a path that others open is no named pipe or device, which may never come to an end.

    Raises:
        UsageError: it is one.
    """
    try:
        os.close(regular(str(path), os.O_RDONLY))
    except (OSError, ValueError) as error:
        # The others are reported, with the reason, when it is opened.
        if isinstance(error, OSError) and error.errno == errno.ENXIO:
            raise UsageError(f"{path}: cannot read it: {error.strerror}") from None


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Lone surrogates, for which JSON has escapes and UTF-8 has nothing, come as these escapes.

    Raises:
        ValueError: it is not JSON, or its brackets are nested too deep to be read.
    """
    try:
        value = json.loads(text)
        escapes = b"\\ud" in text.lower() if isinstance(text, bytes) else "\\ud" in text.lower()
        return each_text(value, encodable) if escapes else value
    except RecursionError:
        raise ValueError("its brackets are nested too deep") from None


def encodable_json(text: bytes) -> bytes:
    """JSON without lone surrogates, which pydantic refuses, as `parse_json` gives them; other text as it is."""
    if b"\\ud" in text.lower():
        with suppress(ValueError):
            return json.dumps(parse_json(text)).encode()
    return text
