"""What placements there are, and which of them can be here."""

from pathlib import Path
from typing import Any

import click

from placebench.commands.completion import (
    complete_devices,
    complete_models,
    complete_placements,
    complete_settings,
)
from placebench.commands.console import open_console
from placebench.commands.group import readers_may_leave
from placebench.commands.options import (
    FilledPath,
    GroupedCommand,
    option,
    option_group,
    split_at_dashes,
    verbose_option,
)
from placebench.commands.run_options import read_request
from placebench.errors import UsageError
from placebench.spec.legible import shown

_EXAMPLES = """\b
Examples:
  placebench placements --devices gpu:8x2@141GiB --model qwen2.5-7b
  placebench placements --job verl split:3+1
"""


class _BeforeACommand(GroupedCommand):
    """Takes what stands behind -- as the user's command, as placebench run does, and not as placements."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the words behind -- aside, and parse the others."""
        before, behind = split_at_dashes(args)
        rest = super().parse_args(ctx, before)
        ctx.params["command"] = tuple(behind)
        return rest


@click.command(
    cls=_BeforeACommand, epilog=_EXAMPLES, short_help="Show which placements are possible here, and where roles go."
)
@click.argument("words", nargs=-1, metavar="[WORD]... [-- COMMAND...]", shell_complete=complete_placements)
@option_group(
    "Devices",
    option(
        "--devices",
        metavar="SPEC",
        shell_complete=complete_devices,
        help="cpu:N, gpu:N, or nodes elsewhere: gpu:NxM.  [default: this host's]",
    ),
    option("--ray-address", metavar="ADDRESS", help="Devices of a Ray cluster: host:port, or auto."),
)
@option_group(
    "What is trained",
    option(
        "--model",
        metavar="MODEL",
        shell_complete=complete_models,
        help="A preset, a folder, or a hub id.  [default: tiny]",
    ),
    option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        shell_complete=complete_settings,
        help="Any workload key; repeatable.",
    ),
    option("--config", type=FilledPath(path_type=Path), metavar="FILE", help="A YAML file, as for placebench run."),
    option(
        "--job",
        metavar="WORD|FILE",
        help="Print the settings that give a placement to a framework, such as verl; your command may follow --.",
    ),
)
@option_group("Output", verbose_option)
def placements(words: tuple[str, ...], **given: Any) -> None:
    """Show which placements are possible on the devices, where each role goes, and why others are not possible.

    WORD is a placement to look up; without one, the usual ones are shown.
    """
    from placebench.plan.catalogue import read_catalogue
    from placebench.plan.job_views import show_settings
    from placebench.plan.views import show_catalogue
    from placebench.spec.words import preset_of, split_words

    behind = given["command"]
    if given["job"] is not None and behind and all(map(preset_of, split_words(",".join(behind)))):
        raise UsageError(f"{shown(' '.join(behind))} comes after --, where your command goes: write it before --")
    request = read_request(given)
    if request.job is not None:
        show_settings(request, words, open_console())
        return
    catalogue = read_catalogue(request, words)
    with readers_may_leave():
        show_catalogue(catalogue, open_console(), verbose=request.verbose)
    catalogue.no_words.raise_any()
