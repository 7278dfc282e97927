"""Printing a run's tables and rebuilding its report, from its files alone."""

import click

from placebench.commands.completion import complete_runs
from placebench.commands.console import open_console
from placebench.commands.options import read_share
from placebench.host.terminal import say

_MIN_EFFECT = click.option(
    "--min-effect", callback=read_share, metavar="SHARE", help="Smallest effect of interest.  [default: the run's]"
)


@click.command()
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@_MIN_EFFECT
def show(run: str, min_effect: float | None) -> None:
    """Print the tables of a finished or half-finished run again.

    RUN is its folder, its name or what either begins with, or latest; runs/ is where names are looked for, unless a
    folder stands before them.
    """
    from placebench.commands.runs import find_run
    from placebench.record.folder import RunFolder
    from placebench.report.terminal import show as show_run
    from placebench.run.standing import where_it_stands

    path, console = find_run(run), open_console()
    show_run(path, console, min_effect)
    if now := where_it_stands(RunFolder(path)):
        console.print(now, markup=False, highlight=False)


@click.command()
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@_MIN_EFFECT
def report(run: str, min_effect: float | None) -> None:
    """Rebuild the report of a run from its files alone.

    RUN is as of placebench show. Neither torch, ray nor a GPU is needed.
    """
    from placebench.commands.runs import find_run
    from placebench.report.build import build_report

    paths = build_report(find_run(run), min_effect)
    for path in (paths.html, paths.markdown, paths.summary, paths.trace):
        if path is not None:
            say(path)
