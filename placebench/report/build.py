"""Building the report of a run folder or of a comparison: figures, trace, `summary.json`, Markdown and the page."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from placebench.compare.comparison import Comparison, compare_run
from placebench.errors import UsageError
from placebench.record.folder import RunFolder
from placebench.record.writing import replacing, write_atomically
from placebench.report.drawing import Drawing, drawing
from placebench.report.paths import HTML, MARKDOWN, PLOTS, SUMMARY, TRACE, ReportPaths
from placebench.spec.reading import exists, read_text

if TYPE_CHECKING:
    from placebench.report.pages import Picture
    from placebench.report.schema import Summary

# What writes the report, and is not needed to compare, is loaded while the figures' processes load matplotlib.


def build_report(run_dir: Path, min_effect: float | None = None, *, with_png: bool = False) -> ReportPaths:
    """Write the report of a finished or half-finished run into its folder, replacing an older one.

    Args:
        run_dir: the run's folder.
        min_effect: smallest effect of interest, as a fraction; None for the run's own.
        with_png: whether each figure is wanted as PNG too, of which no page makes use.

    Raises:
        UsageError: the folder is missing, is not a run, has a newer schema, or one of its files is damaged; PNGs
            are wanted of a run without its raw files.
    """
    if RunFolder(run_dir).lacks_raw_files:
        if with_png:
            raise UsageError(f"--png: {run_dir} was shared without its raw files, which figures need: leave --png out")
        return _rebuild_pages(run_dir, min_effect)
    with drawing() as figures:
        comparison = compare_run(run_dir, min_effect)
        figures.begin(comparison, with_png=with_png)
        from placebench.compare.measure.calibrating import calibrate_by, measured_case
        from placebench.report.noise import compare_if_calibrated
        from placebench.report.summary import summarize
        from placebench.report.trace import write_trace

        summary = summarize(comparison)
        try:
            if found := compare_if_calibrated(comparison):
                found.noise.write(RunFolder(run_dir))
            if any(map(measured_case, comparison.placements)):
                phases = calibrate_by(comparison.placements[0].run, comparison.placements)
                phases.write(RunFolder(run_dir).phases_file)
            trace = run_dir / TRACE
            has_trace = write_trace(comparison, trace)
            return _write(figures, summary, run_dir, trace if has_trace else None)
        except OSError as error:
            raise _unwritten(error, run_dir) from None


def write_comparison(
    comparison: Comparison, summary: "Summary", folder: Path, *, with_png: bool = False
) -> ReportPaths:
    """Write the report of chosen sides into a folder, replacing an older report.

    Raises:
        UsageError: the folder cannot be written to.
    """
    with drawing() as figures:
        figures.begin(comparison, with_png=with_png)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return _write(figures, summary, folder, None)
        except OSError as error:
            raise UsageError(f"--out {folder}: cannot write the report: {error.strerror}") from None


def _write(figures: Drawing, summary: "Summary", folder: Path, trace: Path | None) -> ReportPaths:
    """Write into a folder that is there; the page comes last, when all that it names is there.

    Raises:
        OSError: something cannot be written.
    """
    from placebench.report.pages import Picture, load_templates

    plots = folder / PLOTS
    plots.mkdir(exist_ok=True)
    load_templates()  # beside the figures, which take longer
    pictures, files = [], []
    for plot in figures.plots():
        svg, png = (plots / f"{plot.name}.{suffix}" for suffix in ("svg", "png"))
        if plot.png is not None:
            with replacing(png) as scratch:
                scratch.write_bytes(plot.png)
            files.append(png)
        write_atomically(svg, plot.svg)
        files.append(svg)
        pictures.append(Picture(plot.title, plot.caption, f"{PLOTS}/{svg.name}", plot.svg, plot.narrow_svg))
    for stale in {*plots.glob("*.svg"), *plots.glob("*.png")} - {*files}:
        stale.unlink(missing_ok=True)
    return _write_pages(summary, pictures, folder, trace, files)


def _rebuild_pages(folder: Path, min_effect: float | None) -> ReportPaths:
    """Write the pages of a run that was shared without its raw files, from its summary and the figures that are left.

    Raises:
        UsageError: `summary.json` is damaged, or the folder cannot be written to.
    """
    from placebench.report.kept import read_summary
    from placebench.report.pages import Picture
    from placebench.report.plots import captions

    summary = read_summary(folder, min_effect)
    kept = [
        (Picture(title, caption, f"{PLOTS}/{name}.svg", read_text(svg)), svg)
        for name, title, caption in captions(of_run=summary.kind == "run")
        if exists(svg := folder / PLOTS / f"{name}.svg")
    ]
    trace = folder / TRACE
    pictures, files = [picture for picture, _ in kept], [svg for _, svg in kept]
    try:
        return _write_pages(summary, pictures, folder, trace if exists(trace) else None, files)
    except OSError as error:
        raise _unwritten(error, folder) from None


def _write_pages(
    summary: "Summary", pictures: Sequence["Picture"], folder: Path, trace: Path | None, files: Sequence[Path]
) -> ReportPaths:
    from placebench.report.pages import html, markdown

    name = trace.name if trace else None
    write_atomically(folder / SUMMARY, summary.model_dump_json(indent=1) + "\n")
    write_atomically(folder / MARKDOWN, markdown(summary, pictures, name))
    write_atomically(folder / HTML, html(summary, pictures, name))
    return ReportPaths(folder / SUMMARY, folder / MARKDOWN, folder / HTML, trace, tuple(files))


def _unwritten(error: OSError, folder: Path) -> UsageError:
    """What to say of a report that cannot be written; of a file put in another's place it is the other's name."""
    return UsageError(f"{error.filename2 or error.filename or folder}: cannot write the report: {error.strerror}")
