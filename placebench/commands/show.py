"""Printing a run's tables and rebuilding its report, from its files alone."""

import click

from placebench.commands.completion import complete_runs
from placebench.commands.console import open_console
from placebench.commands.options import option, read_share, verbose_option
from placebench.errors import InterruptedRunError
from placebench.host.heap import uncollected
from placebench.host.terminal import say

_MIN_EFFECT = option(
    "--min-effect",
    callback=read_share,
    metavar="SHARE",
    help="Smallest difference that matters to you.  [default: the run's]",
)
_SHOW_EXAMPLES = """\b
Examples:
  placebench show latest
  placebench show split --verbose --min-effect 5%
"""
_REPORT_EXAMPLES = """\b
Examples:
  placebench report latest
  placebench report runs/20260101T000000Z-standard-split --png
"""


@click.command(epilog=_SHOW_EXAMPLES, short_help="Print the verdict of a run again.")
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@_MIN_EFFECT
@verbose_option
def show(run: str, min_effect: float | None, verbose: bool) -> None:
    """Print the verdict of a run again, finished or not.

    RUN is a folder, a name, the beginning of either, or latest. Names are looked for in runs/.
    """
    from placebench.record.folder import RunFolder
    from placebench.record.named_runs import find_run
    from placebench.report.show import show as show_run
    from placebench.run.standing import where_it_stands

    path, console = find_run(run), open_console()
    show_run(path, console, min_effect, verbose=verbose)
    if now := where_it_stands(RunFolder(path)):
        console.print(now, markup=False, highlight=False)


@click.command(epilog=_REPORT_EXAMPLES, short_help="Build the report of a run again, from its files alone.")
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@_MIN_EFFECT
@click.option("--png", "with_png", is_flag=True, help="Write each figure as PNG too, beside its SVG.")
def report(run: str, min_effect: float | None, with_png: bool) -> None:
    """Build the report of a run again, from its files alone.

    RUN is a folder, a name, the beginning of either, or latest.
    """
    from placebench.host.signals import Stopped, raised_signals
    from placebench.record.named_runs import find_run
    from placebench.report.drawing import start_no_threads

    start_no_threads()
    try:
        with raised_signals(), uncollected():
            from placebench.report.build import build_report

            paths = build_report(find_run(run), min_effect, with_png=with_png)
    except Stopped as stopped:
        raise InterruptedRunError(f"stopped by {stopped} before the report was made", stopped.exit_code) from None
    for path in (paths.html, paths.markdown, paths.summary, paths.trace):
        if path is not None:
            say(path)
