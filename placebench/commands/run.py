"""Training under each placement, and the comparison of what it measured."""

import shlex
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from placebench.commands.completion import complete_placements, complete_runs
from placebench.commands.options import StartingCommand, WholeRange, option, option_group, read_rounds, read_share
from placebench.commands.outputs import OutputPath
from placebench.commands.run_options import SECONDS, read_request, run_option, shared_options
from placebench.commands.start import start
from placebench.commands.tracking import TRACKERS
from placebench.errors import UsageError
from placebench.host.terminal import say
from placebench.spec.auto_rounds import MOST_ROUNDS

_EXAMPLES = """\b
Examples:
  placebench run --placements standard,split --devices cpu:4 --rounds 5
  placebench run --job verl --placements standard,split:3+1 -- bash run.sh

\b
Exit codes: 0 done, 2 wrong input, 3 a launch failed or too few to compare,
124 time limit, 130 interrupted.
"""


@click.command(cls=StartingCommand, epilog=_EXAMPLES, short_help="Measure placements against each other, and report.")
@option_group(
    "Comparison",
    run_option(
        "--placements",
        metavar="WORDS",
        shell_complete=complete_placements,
        help="What to compare, see placebench placements.  [default: standard,split; of your job standard]",
    ),
    run_option(
        "--rounds",
        callback=read_rounds,
        metavar="N|auto",
        help="Launches of each placement; auto: until precise.  [default: 3, of real models 4]",
    ),
    run_option(
        "--precision",
        callback=read_share,
        metavar="SHARE",
        help="With --rounds auto: width of the intervals wanted.  [default: 5%]",
    ),
    run_option(
        "--max-rounds",
        type=WholeRange(2, MOST_ROUNDS),
        metavar="N",
        help="With --rounds auto: at most this many.  [default: 20]",
    ),
    run_option(
        "--max-time",
        "max_time_s",
        type=SECONDS,
        metavar="SECONDS",
        help="With --rounds auto: after 2 rounds, start none that would end later than this.",
    ),
    option(
        "--resume",
        metavar="RUN",
        shell_complete=complete_runs,
        help="Go on with a run: finished launches stay, the others run again.",
    ),
)
@shared_options
@option_group(
    "Output",
    option(
        "--serve",
        "serve_port",
        is_flag=False,
        flag_value=0,
        type=WholeRange(0, 65535),
        metavar="[PORT]",
        help="Show the run on a live page while it goes on.  [default port: a free one]",
    ),
    option(
        "--track",
        "trackers",
        type=click.Choice(TRACKERS),
        multiple=True,
        help="When the run is over, export it there, see placebench export; repeatable.",
    ),
    option(
        "--write-config",
        type=OutputPath(),
        metavar="FILE",
        help="Write a job file from --job and the command, with every key and its meaning, and start nothing.",
    ),
)
def run(
    resume: str | None,
    serve_port: int | None,
    trackers: tuple[str, ...],
    write_config: Path | None,
    **given: Any,
) -> None:
    """Measure placements against each other, with placebench's training or a job of yours, and report."""
    if write_config is not None:
        from placebench.jobs.template import write_template

        _refuse_beside_a_template(write_config)
        write_template(write_config, given["job"], given["command"])
        say(f"{write_config}: edit it, then placebench run --job {shlex.quote(str(write_config))} --dry-run")
        return
    from placebench.host.run_lock import lock_run
    from placebench.plan.plan import make_plan
    from placebench.plan.resume import resume_plan
    from placebench.record import RUNS
    from placebench.record.folder import RunFolder
    from placebench.record.named_runs import find_run

    if trackers:
        from placebench.out.export import check_clients

        check_clients(trackers)
    request = read_request(given)
    command = ("placebench", "run")
    if resume is None:
        start(make_plan(request), request, command, serve_port, trackers)
        return
    if request.print_config:
        raise UsageError("--print-config is for a new run, and --resume goes on with one: leave one of them out")
    folder = find_run(resume, request.out or RUNS)
    if folder.is_file():
        raise UsageError(f"--resume {folder}: is a file; name the folder of a run, such as runs/<time>-<name>")
    with lock_run(RunFolder(folder)) as note:
        if note:
            say(f"placebench: {note}", sys.stderr)
        start(resume_plan(folder, request), request, command, serve_port, trackers)


def _refuse_beside_a_template(path: Path) -> None:
    """A job file to begin with has nothing of most options: they would be lost.

    Raises:
        UsageError: others are given.
    """
    context = click.get_current_context()
    taken = {"job", "command", "write_config"}
    given = [
        param.opts[0]
        for param in context.command.params
        if param.name not in taken and context.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise UsageError(
            f"--write-config {path}: takes only --job and the command: leave out {', '.join(given)}; options that also"
            f" apply to a job of yours go to placebench run --job {shlex.quote(str(path))}"
        )
