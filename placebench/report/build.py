"""Building a report from a run folder, and printing it."""

from pathlib import Path

from rich.console import Console

from placebench.compare.comparison import Comparison, compare_run
from placebench.errors import UsageError
from placebench.report import ReportPaths
from placebench.report.schema import Summary
from placebench.report.summary import summarize
from placebench.report.terminal import print_summary
from placebench.runfolder import write_atomically

PLOTS = "plots"
MARKDOWN = "report.md"
HTML = "report.html"
TRACE = "trace.json.gz"


def build_report(run_dir: Path) -> ReportPaths:
    """Write every file of the report; see `placebench.report.build_report`."""
    comparison = compare_run(run_dir)
    summary = summarize(comparison)
    try:
        return _write(comparison, summary)
    except OSError as error:
        raise UsageError(f"{error.filename or run_dir}: cannot write the report: {error.strerror}") from None


def show(run_dir: Path, console: Console) -> None:
    """Print the tables, the reason and the report's paths; see `placebench.report.show`."""
    summary = summarize(compare_run(run_dir))
    print_summary(summary, console)
    paths = [run_dir / name for name in (HTML, MARKDOWN, TRACE) if (run_dir / name).is_file()]
    for path in paths:
        console.print(f"{path}", style="cyan", highlight=False, soft_wrap=True)


def _write(comparison: Comparison, summary: Summary) -> ReportPaths:
    """Draw and write; the page comes last, when all that it names is there."""
    from placebench.report.pages import Picture, html, markdown
    from placebench.report.plots import draw_plots
    from placebench.report.style import save_figure, svg_text
    from placebench.report.trace import write_trace

    folder = comparison.run.folder
    plots = folder.path / PLOTS
    plots.mkdir(exist_ok=True)
    trace = folder.path / TRACE
    for stale in (trace, *plots.glob("*.svg"), *plots.glob("*.png")):
        stale.unlink(missing_ok=True)
    pictures, files = [], []
    for plot in draw_plots(comparison):
        svg, png = (plots / f"{plot.name}.{suffix}" for suffix in ("svg", "png"))
        picture = Picture(plot.title, plot.caption, f"{PLOTS}/{svg.name}", svg_text(plot.figure))
        svg.write_text(picture.svg, encoding="utf-8")
        save_figure(plot.figure, png)
        pictures.append(picture)
        files += [svg, png]
    has_trace = write_trace(comparison, trace)
    write_atomically(folder.summary_file, summary.model_dump_json(indent=1) + "\n")
    write_atomically(folder.path / MARKDOWN, markdown(summary, pictures, TRACE if has_trace else None))
    write_atomically(folder.path / HTML, html(summary, pictures, TRACE if has_trace else None))
    return ReportPaths(
        folder.summary_file,
        folder.path / MARKDOWN,
        folder.path / HTML,
        trace if has_trace else None,
        tuple(files),
        summary.done,
        summary.planned,
    )
