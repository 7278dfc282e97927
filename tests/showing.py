"""What `placebench show` prints."""

import io
from pathlib import Path

from rich.console import Console

from placebench.report import show


def printed(path: Path, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    show(path, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
