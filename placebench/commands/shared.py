"""What several commands need."""

from pathlib import Path
from typing import TYPE_CHECKING

from placebench.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console


def find_run(text: str) -> Path:
    """The folder of a run, by path, or the newest one under `runs` for `latest`.

    Raises:
        UsageError: there is no run yet.
    """
    path = Path(text)
    if text != "latest" or path.exists():
        return path
    runs = sorted(Path("runs").glob("*/run.json"))
    if not runs:
        raise UsageError("latest: there is no run under runs/ yet; start one with placebench run")
    return runs[-1].parent


def with_latest(text: str) -> str:
    """A run with `latest` in place of its folder, alone or before a placement."""
    word, colon, placement = text.partition(":")
    return f"{find_run(word)}{colon}{placement}" if word == "latest" else text


def open_console() -> "Console":
    """A console on stdout that leaves a closed pipe to whoever prints."""
    from rich.console import Console

    class PipedConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return PipedConsole(highlight=False)
