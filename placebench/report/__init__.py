"""The report of a run: terminal tables, Markdown, HTML, figures, a Perfetto trace and summary.json.

All of it is built from the run folder alone, so it works without torch, ray or GPUs, on any machine.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# Where the home cannot be written to, matplotlib warns of the temporary folder that it makes, and removes, for it. This
# is run before any module of the package imports it.
logging.getLogger("matplotlib").setLevel(logging.ERROR)

PLOTS = "plots"
SUMMARY = "summary.json"
MARKDOWN = "report.md"
HTML = "report.html"


@dataclass(frozen=True)
class ReportPaths:
    """The files of a report.

    Attributes:
        summary: `summary.json`, every number of the report.
        markdown: `report.md`.
        html: `report.html`, one self-contained page.
        trace: `trace.json.gz`, which Perfetto opens; None where no launch has spans.
        plots: the figures, each as svg and png.
        done: launches that are done, the ones in the numbers.
        planned: launches that the run was to have.
    """

    summary: Path
    markdown: Path
    html: Path
    trace: Path | None
    plots: tuple[Path, ...]
    done: int
    planned: int


def build_report(run_dir: Path, min_effect: float | None = None) -> ReportPaths:
    """Write the report of a finished or half-finished run into its folder, replacing an older one.

    Args:
        run_dir: the run's folder.
        min_effect: smallest effect of interest, as a fraction; None for the run's own.

    Raises:
        UsageError: the folder is missing, is not a run, has a newer schema, or one of its files is damaged.
    """
    from placebench.report.build import build_report as build

    return build(run_dir, min_effect)


def show(run_dir: Path, console: Console, min_effect: float | None = None) -> None:
    """Print a run's tables, the reason and the paths of the report's files that are there.

    Args:
        run_dir: the run's folder.
        console: where to.
        min_effect: as in `build_report`.

    Raises:
        UsageError: the folder is missing, is not a run, has a newer schema, or one of its files is damaged.
    """
    from placebench.report.build import show as show_run

    show_run(run_dir, console, min_effect)
