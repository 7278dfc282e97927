"""Options and arguments that name what a command writes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from placebench.errors import UsageError


class OutputPath(click.Path):
    """A path to write, refused before any work where it cannot be written.

    Args:
        is_folder: whether it is a folder; else a file.
    """

    def __init__(self, *, is_folder: bool = False) -> None:
        super().__init__(path_type=Path, file_okay=not is_folder)
        self._is_folder = is_folder

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path that a word names."""
        # An empty word is what a shell makes of a variable that is not set; as a path it would be the current folder.
        if not str(value):
            what = "folder" if self._is_folder else "file"
            self.fail(f"it is empty: name a {what}, or check whether a variable is unset", param, ctx)
        path = Path(value)
        if not self._is_folder and str(value) == "-":
            self.fail("-: write /dev/stdout for standard output, or ./- for a file of this name", param, ctx)
        if not self._is_folder and path.is_dir():
            self.fail(f"{path}: cannot write it: Is a directory; name a file", param, ctx)
        return path


@contextmanager
def writing(option: str, path: Path) -> Iterator[None]:
    """What writes to a path that an option names; where it cannot be written, the user hears it in a line.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot write it: {error.strerror}") from None
