"""What `placebench show` prints, and what the summary holds."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from placebench.report.build import build_report
from placebench.report.paths import ReportPaths
from placebench.report.schema import Summary
from placebench.report.show import show


def printed(path: Path, width: int = 80, *, verbose: bool = True) -> str:
    console = Console(file=io.StringIO(), width=width)
    show(path, console, verbose=verbose)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def write_report(path: Path) -> ReportPaths:
    """The report of a run as `build_report` writes it, but for its figures, whose drawing takes most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("placebench.report.plots.draw_plots", lambda *_: iter(()))
        return build_report(path)


def read_summary(path: Path) -> Summary:
    """The summary of a run's folder, which must be JSON without NaN."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = (path / "summary.json").read_text()
    json.loads(text, parse_constant=refuse)
    return Summary.model_validate_json(text)
