"""Which runs there are, and how they went."""

from pathlib import Path

import click

from placebench.commands.console import open_console
from placebench.commands.options import FilledPath
from placebench.errors import UsageError
from placebench.host.terminal import say, say_json
from placebench.record import RUNS

_EXAMPLES = """\b
Examples:
  placebench list
  placebench list results --json
"""


@click.command("list", epilog=_EXAMPLES, short_help="List the runs, newest first, with their verdicts.")
@click.argument("folder", metavar="[FOLDER]", type=FilledPath(file_okay=False, path_type=Path), default=RUNS)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, with every number.")
def list_command(folder: Path, as_json: bool) -> None:
    """List the runs of a folder, newest first, with their status and verdicts.

    FOLDER is runs/ unless given. What a run is called there, every other command takes for it.
    """
    from placebench.report.listing import list_runs, print_runs

    if folder != RUNS and not folder.exists():
        raise UsageError(f"{folder}: there is no such folder; name the --out of the runs")
    runs = list_runs(folder)
    if as_json:
        say_json([run.model_dump(mode="json") for run in runs])
    elif runs:
        print_runs(runs, open_console())
    else:
        say(f"there is no run under {folder}/ yet; start one with placebench run")
