"""Writing the files of a report: figures, `summary.json`, Markdown and the page."""

from collections.abc import Iterable
from pathlib import Path

from placebench.record.folder import write_atomically
from placebench.report.pages import Picture, html, markdown
from placebench.report.paths import HTML, MARKDOWN, PLOTS, SUMMARY, ReportPaths
from placebench.report.plots import Plot
from placebench.report.schema import Summary
from placebench.report.style import save_figure, svg_text


def write_pages(summary: Summary, drawn: Iterable[Plot], folder: Path, *, trace: Path | None) -> ReportPaths:
    """Write a report into a folder that is there; the page comes last, when all that it names is there.

    Args:
        summary: what the report says.
        drawn: its figures.
        folder: where to.
        trace: the trace in that folder; None without one.

    Raises:
        OSError: something cannot be written.
    """
    plots = folder / PLOTS
    plots.mkdir(exist_ok=True)
    for stale in (*plots.glob("*.svg"), *plots.glob("*.png")):
        stale.unlink(missing_ok=True)
    pictures, files = [], []
    for plot in drawn:
        svg, png = (plots / f"{plot.name}.{suffix}" for suffix in ("svg", "png"))
        picture = Picture(plot.title, plot.caption, f"{PLOTS}/{svg.name}", svg_text(plot.figure))
        svg.write_text(picture.svg, encoding="utf-8")
        plot.figure.set_layout_engine(None)  # the layout that it has now serves the second file too
        save_figure(plot.figure, png)
        pictures.append(picture)
        files += [svg, png]
    name = trace.name if trace else None
    write_atomically(folder / SUMMARY, summary.model_dump_json(indent=1) + "\n")
    write_atomically(folder / MARKDOWN, markdown(summary, pictures, name))
    write_atomically(folder / HTML, html(summary, pictures, name))
    return ReportPaths(
        folder / SUMMARY, folder / MARKDOWN, folder / HTML, trace, tuple(files), summary.done, summary.planned
    )
