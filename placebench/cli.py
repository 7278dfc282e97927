"""The command line: the group alone; each command is a module of `placebench.commands`."""

import sys

import click

from placebench.commands import (
    attach,
    calibrate,
    compare,
    completion,
    export,
    gate,
    list,
    placements,
    predict,
    run,
    search,
    serve,
    share,
    show,
    slurm,
    watch,
)
from placebench.commands.group import PlacebenchGroup
from placebench.host.terminal import say
from placebench.version import __version__

# \b keeps click from filling the lines of a paragraph.
_HELP = """\b
Measure which placement of PPO or GRPO roles on devices is faster, and why.
Examples: `placebench run`, or `placebench compare before.log after.log`
"""


@click.group(
    cls=PlacebenchGroup,
    commands=[
        run.run,
        calibrate.calibrate,
        attach.attach,
        compare.compare,
        gate.check,
        gate.baseline,
        list.list_command,
        show.show,
        show.report,
        share.share,
        export.export,
        watch.watch,
        serve.serve,
        placements.placements,
        predict.predict,
        search.search,
        slurm.slurm,
        completion.completion,
    ],
    help=_HELP,
    options_metavar="[--version] [--help]",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="placebench")
def main() -> None:
    """Measure which placement of PPO or GRPO roles on devices is faster, and why."""
    from placebench.host.ownership import sweep

    for killed in sweep():
        say(f"placebench: cleaned up after {killed}, which had been killed", sys.stderr)
