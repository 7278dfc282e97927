"""The streams and the console on which commands print."""

import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

from placebench.host.terminal import new_console

if TYPE_CHECKING:
    from rich.console import Console

_LEAST_COLUMNS = 80


def let_everything_be_printed() -> None:
    """Let ? stand for characters that a stream's encoding lacks, and drop what goes to a stream that was closed."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until the process ends
        elif isinstance(stream := getattr(sys, name), TextIOWrapper):
            stream.reconfigure(errors="replace")


def open_console(*, redraws: bool = False) -> "Console":
    """A console on stdout that leaves a closed pipe to whoever prints.

    Args:
        redraws: whether what it shows is drawn over, which lines that a narrow terminal wraps would not allow.
    """
    console = new_console()
    # Squeezed into less, a table would show the first digits of its numbers as if they were all.
    console.width = console.width if redraws else max(console.width, _LEAST_COLUMNS)
    return console
