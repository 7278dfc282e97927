"""Building a report from a run folder or of a comparison, and printing it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from placebench.compare.comparison import Comparison, compare_run
from placebench.errors import UsageError
from placebench.record.folder import RunFolder
from placebench.report.calibration import calibration_of
from placebench.report.paths import HTML, MARKDOWN, TRACE, ReportPaths
from placebench.report.schema import Summary
from placebench.report.summary import summarize

if TYPE_CHECKING:
    from rich.console import Console


def build_report(run_dir: Path, min_effect: float | None = None) -> ReportPaths:
    """Write the report of a finished or half-finished run into its folder, replacing an older one.

    Args:
        run_dir: the run's folder.
        min_effect: smallest effect of interest, as a fraction; None for the run's own.

    Raises:
        UsageError: the folder is missing, is not a run, has a newer schema, or one of its files is damaged.
    """
    comparison = compare_run(run_dir, min_effect)
    summary = summarize(comparison)
    try:
        return _write(comparison, summary, RunFolder(run_dir))
    except OSError as error:
        raise UsageError(f"{error.filename or run_dir}: cannot write the report: {error.strerror}") from None


def show(run_dir: Path, console: Console, min_effect: float | None = None) -> None:
    """Print a run's tables, the reason and the paths of the report's files that are there.

    Args:
        run_dir: the run's folder.
        console: where to.
        min_effect: as in `build_report`.

    Raises:
        UsageError: the folder is missing, is not a run, has a newer schema, or one of its files is damaged.
    """
    from placebench.report.terminal import print_summary

    summary = summarize(compare_run(run_dir, min_effect))
    print_summary(summary, console)
    paths = [run_dir / name for name in (HTML, MARKDOWN, TRACE) if (run_dir / name).is_file()]
    for path in paths:
        console.print(f"{path}", style="cyan", highlight=False, soft_wrap=True)


def write_comparison(comparison: Comparison, summary: Summary, folder: Path) -> ReportPaths:
    """Write the report of chosen sides into a folder, replacing an older report.

    Raises:
        UsageError: the folder cannot be written to.
    """
    from placebench.report.files import write_pages
    from placebench.report.plots import draw_plots

    try:
        folder.mkdir(parents=True, exist_ok=True)
        return write_pages(summary, draw_plots(comparison), folder, trace=None)
    except OSError as error:
        raise UsageError(f"--out {folder}: cannot write the report: {error.strerror}") from None


def _write(comparison: Comparison, summary: Summary, folder: RunFolder) -> ReportPaths:
    """Draw and write; the page comes last, when all that it names is there."""
    from placebench.report.files import write_pages
    from placebench.report.plots import draw_plots
    from placebench.report.trace import write_trace

    if found := calibration_of(comparison):
        found.calibration.write(folder)
    trace = folder.path / TRACE
    trace.unlink(missing_ok=True)
    has_trace = write_trace(comparison, trace)
    return write_pages(summary, draw_plots(comparison), folder.path, trace=trace if has_trace else None)
