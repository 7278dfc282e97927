"""What `placebench show` prints, and what the summary holds."""

import io
import json
from pathlib import Path

from rich.console import Console

from placebench.report.schema import Summary
from placebench.report.terminal import show


def printed(path: Path, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    show(path, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def read_summary(path: Path) -> Summary:
    """The summary of a run's folder, which must be JSON without NaN."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = (path / "summary.json").read_text()
    json.loads(text, parse_constant=refuse)
    return Summary.model_validate_json(text)
