"""Comparing one placement with itself: what a comparison on this host cannot tell apart."""

from dataclasses import replace
from typing import Any

import click

from placebench.commands.completion import complete_placements
from placebench.commands.options import StartingCommand, WholeRange, option, option_group
from placebench.commands.run_options import read_request, shared_options
from placebench.commands.start import start
from placebench.errors import UsageError
from placebench.spec.auto_rounds import MOST_ROUNDS

_EXAMPLES = """\b
Examples:
  placebench calibrate
  placebench calibrate --placement split --pairs 10 --model qwen2.5-0.5b
"""


@click.command(
    cls=StartingCommand, epilog=_EXAMPLES, short_help="Measure how much launches of one placement differ here."
)
@option_group(
    "Comparison",
    option(
        "--placement",
        default="standard",
        show_default=True,
        metavar="WORD",
        shell_complete=complete_placements,
        help="The placement that is compared with itself.",
    ),
    option(
        "--pairs",
        type=WholeRange(2, MOST_ROUNDS // 2),
        default=5,
        show_default=True,
        metavar="N",
        help="Pairs of launches, two each.",
    ),
)
@shared_options
def calibrate(placement: str, pairs: int, **given: Any) -> None:
    """Measure how much launches of one placement differ here, and so what comparisons cannot tell apart.

    Later runs of the same workload beside it use what it measured.
    """
    from placebench.plan.plan import default_name, make_plan
    from placebench.spec.words import split_words

    if not placement.strip():
        raise UsageError("--placement '': it is empty: name a placement, or check whether a variable is unset")
    request = read_request({**given, "placements": placement, "rounds": 2 * pairs, "calibrates": True})
    if request.name is None:
        request = replace(request, name=default_name(f"calibrate-{placement}"))
    if len(split_words(placement)) > 1:
        several = f"--placement {placement}: name one placement, which is compared with itself"
        request = replace(request, wrong=(*request.wrong, several))
    start(make_plan(request), request, ("placebench", "calibrate", "--placement", placement, "--pairs", str(pairs)))
