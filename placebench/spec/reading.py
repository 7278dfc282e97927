"""Reading files that users name or may have damaged: nothing is waited for without end, nothing overflows the stack."""

import json
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from placebench.errors import UsageError
from placebench.spec.legible import each_text, encodable

# What the user's shell has opened for this very command (`<(...)`, `|`): somebody writes there.
_OPENED = ("/dev/stdin", "/dev/fd/")


def read_text(path: Path, encoding: str = "utf-8", at_most: int | None = None) -> str:
    """The text of a file that the user names.

    Args:
        path: of the file.
        encoding: of its text.
        at_most: so many characters are read; None for all.

    Raises:
        UsageError: the file cannot be read, is longer, or is a pipe or a device.
    """
    refuse_pipe(path)
    try:
        with path.open(encoding=encoding) as stream:
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


def refuse_pipe(path: Path) -> None:
    """See that a path is no named pipe or device, which may never come to an end.

    Raises:
        UsageError: it is one.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return  # reported, with the reason, when it is opened
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or str(path).startswith(_OPENED)):
        raise UsageError(f"{path}: cannot read it: it is a pipe or a device; name a regular file")


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
