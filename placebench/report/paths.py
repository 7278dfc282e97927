"""Which files a report has."""

from dataclasses import dataclass
from pathlib import Path

PLOTS = "plots"
SUMMARY = "summary.json"
MARKDOWN = "report.md"
HTML = "report.html"
TRACE = "trace.json.gz"


@dataclass(frozen=True)
class ReportPaths:
    """The files of a report."""

    summary: Path
    """`summary.json`, every number of the report."""
    markdown: Path
    """`report.md`."""
    html: Path
    """`report.html`, one self-contained page."""
    trace: Path | None
    """`trace.json.gz`, which Perfetto opens; None where no launch has spans."""
    plots: tuple[Path, ...]
    """The figures, each as svg, and as png where that was asked for."""
