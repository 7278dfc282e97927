"""Making a zip of a run to give away."""

from pathlib import Path

import click

from placebench.commands.completion import complete_runs
from placebench.commands.options import option
from placebench.commands.outputs import OutputPath, writing
from placebench.host.terminal import say

_EXAMPLES = """\b
Examples:
  placebench share latest run.zip
  placebench share split run.zip --keep-host
"""


@click.command(epilog=_EXAMPLES, short_help="Make a zip of a run to give away, without names of hosts.")
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.argument("out", metavar="OUT.zip", type=OutputPath())
@option("--keep-host", is_flag=True, help="Keep the names of hosts and nodes, and the ids of GPUs.")
def share(run: str, out: Path, keep_host: bool) -> None:
    """Make a zip of a run's report, figures, trace and tables to give away.

    Names of hosts and users, paths, addresses, command lines and the environment are left out; names that you gave to
    the run, to placements and to metrics stay. Unpacked, it is a run without raw files: show, report, compare,
    predict --from and search --from read it.
    """
    from placebench.out.share import share as share_run
    from placebench.record.named_runs import find_run
    from placebench.record.writing import is_stdout

    path = find_run(run)
    with writing("OUT.zip", out):
        share_run(path, out, keep_host=keep_host)
    if not is_stdout(out):
        say(out)
