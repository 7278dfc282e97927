"""The one way on which text reaches a terminal, or the log of a CI job: nothing in it steers what shows it."""

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from placebench.spec.legible import visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

# How a line of a job's output gives commands to GitHub and GitLab's like: `::error ::`, `##[error]`, `##vso[...]`.
_CI_COMMAND = re.compile(r":(?=:[A-Za-z])|#(?=#\w*\[)")


def in_ci(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the output is read by a CI system."""
    return environment.get("CI", "").lower() not in ("", "0", "false")


def printable(text: str) -> str:
    """A line of text as it may be printed: `visible`, and in CI no command to what reads the job's output."""
    return _CI_COMMAND.sub(lambda found: f"{found[0]} ", visible(text)) if in_ci() else visible(text)


def say(text: object, stream: TextIO | None = None) -> None:
    """Print one line; on stdout where no stream is given."""
    print(printable(str(text)), file=stream or sys.stdout, flush=True)


def say_json(value: object) -> None:
    r"""Print a value as JSON, in ASCII; what a CI system would take for its command has an escape in it (`\u0023`)."""
    text = json.dumps(value, indent=1)
    print(_CI_COMMAND.sub(lambda found: f"\\u{ord(found[0]):04x}", text), flush=True)


def new_console(stream: TextIO | None = None, **options: Any) -> "Console":
    """A console of rich whose text is `printable`; on stdout where no stream is given.

    Args:
        stream: where to.
        options: further ones of `rich.console.Console`.
    """
    from rich.console import Console
    from rich.segment import Segment

    class SafeConsole(Console):
        def on_broken_pipe(self) -> None:
            """Leave a closed pipe to whoever prints."""
            raise BrokenPipeError

        def render(self, renderable: "RenderableType", options: "ConsoleOptions | None" = None) -> "Iterable[Segment]":
            """What is printed, its text filtered; rich's own control codes are apart from it."""
            for text, style, control in super().render(renderable, options):
                lines = text if control else "\n".join(map(printable, text.split("\n")))
                yield Segment(lines, style, control)

    return SafeConsole(file=stream, highlight=False, **options)
