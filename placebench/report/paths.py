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
