"""The live display of a run that another terminal, or another node, has started."""

import click

from placebench.commands.completion import complete_runs
from placebench.commands.options import verbose_option
from placebench.errors import LaunchError

_EXAMPLES = """\b
Examples:
  placebench watch
  placebench watch results/nightly --verbose
"""


@click.command(epilog=_EXAMPLES, short_help="Watch a run that another terminal started.")
@click.argument("run", metavar="[RUN]", default="latest", shell_complete=complete_runs)
@verbose_option
def watch(run: str, verbose: bool) -> None:
    """Show what a run is doing until it ends, then its verdict and tables.

    RUN is a folder, a name, the beginning of either, or latest, the default. Ctrl-C ends the watching alone.
    """
    from placebench.commands.console import open_console
    from placebench.commands.start import compared_so_far
    from placebench.record.folder import RunFolder, Status, resuming
    from placebench.record.named_runs import find_run
    from placebench.report.show import show as show_run
    from placebench.run.display import open_display
    from placebench.run.watching import follow_run

    folder = RunFolder(find_run(run))
    with open_display() as display:
        status = follow_run(folder, display, compared_so_far)
    show_run(folder.path, open_console(), verbose=verbose)
    if status is not Status.DONE:
        raise LaunchError(f"the run is {status}; go on with {resuming(folder.path)}")
