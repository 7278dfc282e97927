"""A run on the terminal: its summary, kept or computed anew, on one screen or whole."""

from pathlib import Path

from rich.console import Console

from placebench.record.folder import RunFolder
from placebench.report.brief import print_brief
from placebench.report.kept import SHARED, kept_summary, read_summary
from placebench.report.paths import HTML, MARKDOWN, TRACE
from placebench.report.schema import Summary
from placebench.report.terminal import print_summary, warmup_told


def show(run_dir: Path, console: Console, min_effect: float | None = None, *, verbose: bool = False) -> None:
    """Print what a run has measured, and the paths of the report's files that are there.

    Args:
        run_dir: the run's folder.
        console: where to.
        min_effect: smallest effect of interest, as a fraction; None for the run's own.
        verbose: all tables and reasons, and not one screen of them.

    Raises:
        UsageError: the folder is missing, is not a run, has a newer schema, or one of its files is damaged.
    """
    is_shared = RunFolder(run_dir).lacks_raw_files
    if is_shared:
        summary = read_summary(run_dir, min_effect)
    else:
        summary = kept_summary(run_dir, min_effect) or compare_anew(run_dir, min_effect)
    files = [str(path) for path in (run_dir / name for name in (HTML, MARKDOWN, TRACE)) if path.is_file()]
    pages = [file for file in files if not file.endswith(TRACE)]
    if not verbose:
        done = summary.coverage.partition(", started ")[0] + " (raw files left out)" * is_shared
        # Where launches have more of them than was asked for, that is news.
        if any((launch.warmup_steps or 0) > summary.method.warmup_steps for launch in summary.launches):
            done += f", {warmup_told(summary)} left out"
        more = f"{done}. More: show --verbose{', or the report:' if pages else '.'}"
        print_brief(summary, console, more, pages[:1])
        return
    print_summary(summary, console)
    if is_shared:
        console.print(SHARED, style="yellow", highlight=False)
    for path in files:
        console.print(path, style="cyan", highlight=False, soft_wrap=True)


def compare_anew(run_dir: Path, min_effect: float | None = None) -> Summary:
    """The summary of a run as its files are now; see `compare.comparison.compare_run`."""
    # What compares is loaded only where something has changed since the report was made.
    from placebench.compare.comparison import compare_run
    from placebench.report.summary import summarize

    return summarize(compare_run(run_dir, min_effect))
