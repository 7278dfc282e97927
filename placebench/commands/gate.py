"""The gate for CI: keeping a baseline and checking a run against one."""

import sys
from pathlib import Path

import click

from placebench.commands.completion import complete_metrics, complete_sources
from placebench.commands.console import open_console
from placebench.commands.group import readers_may_leave
from placebench.commands.options import GroupedCommand, NearChoice, WholeRange, option, option_group, parse_share
from placebench.commands.outputs import OutputPath
from placebench.host.terminal import say
from placebench.spec.auto_rounds import MOST_ROUNDS

_CHECK_EXAMPLES = """\b
Examples:
  placebench check latest --baseline baseline.json --max-regression 5%
  placebench check latest:split --baseline latest:standard --paired

\b
Exit codes: 0 fine, 1 regression, 2 wrong input, 3 launches failed or too few,
4 no baseline that compares, 130 interrupted.
"""
_SAVE_EXAMPLES = """\b
Examples:
  placebench baseline save latest baseline.json
  placebench baseline save latest:split split.json
"""
KINDS = ("host", "devices", "versions", "workload")


@click.command(
    cls=GroupedCommand, epilog=_CHECK_EXAMPLES, short_help="Fail if a run is slower than a baseline: a gate for CI."
)
@click.argument("runs", metavar="RUN[,RUN...]", shell_complete=complete_sources)
@option_group(
    "Comparison",
    option(
        "--baseline",
        required=True,
        metavar="FILE|RUN[,...]",
        shell_complete=complete_sources,
        help="A baseline file, or a run as above.",
    ),
    option(
        "--max-regression",
        default="5%",
        show_default=True,
        metavar="SHARE",
        help="How much a time may grow, or throughput fall: 5% or 0.05.",
    ),
    option(
        "--metric",
        "metrics",
        multiple=True,
        metavar="NAME",
        shell_complete=complete_metrics,
        help="A number to check; repeatable.  [default: step]",
    ),
    option(
        "--min-launches",
        type=WholeRange(2, MOST_ROUNDS),
        default=3,
        show_default=True,
        metavar="N",
        help="Launches needed on both sides.",
    ),
    option(
        "--allow",
        multiple=True,
        type=NearChoice(KINDS),
        help="Compare although these differ, and list them; repeatable.",
    ),
    option("--paired", is_flag=True, help="Launches of the two sides took turns: compare them pair by pair."),
)
@option_group(
    "Output",
    option("--junit", type=OutputPath(), metavar="FILE", help="Write JUnit XML."),
    option("--json", "json_path", type=OutputPath(), metavar="FILE", help="Write every number."),
)
def check(
    runs: str,
    baseline: str,
    max_regression: str,
    metrics: tuple[str, ...],
    min_launches: int,
    allow: tuple[str, ...],
    paired: bool,
    junit: Path | None,
    json_path: Path | None,
) -> None:
    """Say by the exit code whether a run is worse than a baseline.

    RUN may be one placement of it, RUN:PLACEMENT. Worse means by more than --max-regression, with the whole 95 %
    interval.
    """
    from placebench.gate.asked import AskedCheck, answer
    from placebench.gate.checking import Mismatch
    from placebench.gate.output import print_check, report_to_github, verdict, write_json, write_junit
    from placebench.record.writing import refuse_same

    outputs = {"--junit": junit, "--json": json_path}
    refuse_same(outputs)
    asked = AskedCheck(
        runs=runs,
        baseline=baseline,
        max_regression=parse_share("--max-regression", max_regression),
        metrics=metrics,
        min_launches=min_launches,
        allow=tuple(map(Mismatch, allow)),
        paired=paired,
        outputs=outputs,
    )
    found = answer(asked)
    with readers_may_leave():
        print_check(found, open_console())
    if junit:
        write_junit(found, junit)
    if json_path:
        write_json(found, json_path)
    with readers_may_leave():
        for line in report_to_github(found):
            click.echo(line)  # noqa: TID251 - a command to GitHub, its text escaped
        if not found.error:
            say(verdict(found))
    if found.error:
        raise found.error


@click.group(epilog=_SAVE_EXAMPLES)
def baseline() -> None:
    """Keep what a run measured, for `placebench check`."""


@baseline.command(epilog=_SAVE_EXAMPLES)
@click.argument("run", metavar="RUN", shell_complete=complete_sources)
@click.argument("path", metavar="FILE", type=OutputPath())
def save(run: str, path: Path) -> None:
    """Write a run's numbers, host, versions and workload to FILE.

    RUN may be one placement of it, RUN:PLACEMENT.
    """
    from placebench.gate.baseline import save_baseline
    from placebench.gate.sources import read_source, refuse_missing
    from placebench.record.named_runs import with_run

    source = read_source(with_run(run))
    refuse_missing(source)
    saved = save_baseline(source.path, path, source.placement)
    for line in saved.set_aside:
        say(f"placebench: {line}", sys.stderr)
    launches = ", ".join(f"{placement.finished} of {name}" for name, placement in saved.placements.items())
    say(f"{path}: {launches} launches of {saved.run}")
