"""Printing a run's tables and rebuilding its report, from its files alone."""

import click

from placebench.commands.shared import find_run, open_console


@click.command()
@click.argument("run", metavar="RUN")
def show(run: str) -> None:
    """Print the tables of a finished or half-finished run again.

    RUN is the run's folder, or `latest` for the newest one under runs/.
    """
    from placebench.report import show as show_run

    show_run(find_run(run), open_console())


@click.command()
@click.argument("run", metavar="RUN")
def report(run: str) -> None:
    """Rebuild the report of a run from its files alone.

    RUN is the run's folder, or `latest` for the newest one under runs/. Neither torch, ray nor a GPU is needed.
    """
    from placebench.report import build_report

    paths = build_report(find_run(run))
    for path in (paths.html, paths.markdown, paths.summary, paths.trace):
        if path is not None:
            click.echo(path)
