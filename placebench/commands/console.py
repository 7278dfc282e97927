"""The streams and the console on which commands print."""

import codecs
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

from placebench.host.terminal import new_console, printable, say
from placebench.logs.progress import told_by

if TYPE_CHECKING:
    from rich.console import Console

_LEAST_COLUMNS = 80
_FIRST_GAP_S = 4.0
_CLEAR_LINE = "\r\x1b[2K"
_ALIKE: Mapping[str, str] = {"−": "-", "–": "-", "±": "+-", "×": "x", "µ": "u", "…": "...", "→": "->"}
"""What stands for signs that an encoding lacks: without its minus, a number would be another one."""


def let_everything_be_printed() -> None:
    """Let others stand for characters that a stream's encoding lacks, and drop what goes to a closed stream."""
    codecs.register_error("placebench.alike", _alike)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until the process ends
        elif isinstance(stream := getattr(sys, name), TextIOWrapper):
            stream.reconfigure(errors="placebench.alike")


def _alike(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_ALIKE.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


def open_console(*, redraws: bool = False) -> "Console":
    """A console on stdout that leaves a closed pipe to whoever prints.

    Args:
        redraws: whether what it shows is drawn over, which lines that a narrow terminal wraps would not allow.
    """
    console = new_console()
    # Squeezed into less, a table would show the first digits of its numbers as if they were all.
    console.width = console.width if redraws else max(console.width, _LEAST_COLUMNS)
    return console


@contextmanager
def progress_on_stderr() -> Iterator[None]:
    """Let the reading of long logs say what it is at: in a terminal's last line, elsewhere in lines ever rarer."""
    next_at, gap = 0.0, _FIRST_GAP_S

    def tell(text: str) -> None:
        nonlocal next_at, gap
        if sys.stderr.isatty():
            sys.stderr.write(_CLEAR_LINE + printable(text)[: shutil.get_terminal_size().columns - 1])
            sys.stderr.flush()
        elif text and time.monotonic() >= next_at:
            say(text, sys.stderr)
            gap *= 2
            next_at = time.monotonic() + gap

    with told_by(tell):
        yield
