"""The gate for CI: keeping a baseline and checking a run against one."""

from pathlib import Path

import click

from placebench.commands.outputs import OutputPath, refuse_same
from placebench.commands.shared import open_console, parse_share, with_latest
from placebench.errors import BaselineError, UsageError

_CHECK_EXAMPLES = """\b
Examples:
  placebench baseline save latest baseline.json
  placebench check latest --baseline baseline.json --max-regression 5%
  placebench check latest:split --baseline runs/<run> --metric step --metric gen --junit gate.xml

\b
Exit codes: 0 fine, 1 regression, 2 wrong input, 3 launches failed or too few, 4 no baseline that compares,
130 interrupted.
"""
KINDS = ("host", "devices", "versions", "workload")


@click.command(epilog=_CHECK_EXAMPLES)
@click.argument("runs", metavar="RUN[,RUN...]")
@click.option("--baseline", required=True, metavar="FILE|RUN[,...]", help="A baseline file, or a run's folder.")
@click.option(
    "--max-regression",
    default="5%",
    show_default=True,
    metavar="SHARE",
    help="How much worse is allowed, 5% or 0.05: by how much a time may grow, and throughput fall.",
)
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME", help="A number to check; repeatable.  [default: step]"
)
@click.option(
    "--min-launches", type=click.IntRange(min=2), default=3, show_default=True, help="Launches needed on both sides."
)
@click.option(
    "--allow", multiple=True, type=click.Choice(KINDS), help="Compare although these differ, and list them; repeatable."
)
@click.option("--paired", is_flag=True, help="The launches of both were interleaved: compare them pair by pair.")
@click.option("--junit", type=OutputPath(), help="Write JUnit XML.")
@click.option("--json", "json_path", type=OutputPath(), help="Write every number.")
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
    """Say whether a run is worse than a baseline, with the exit code.

    RUN is the run's folder, latest, or one placement of it, RUN:PLACEMENT; several runs of the same, set apart by
    commas, count as one. A regression is worse by more than --max-regression with its whole 95 % interval; where steps
    had other tokens, at equal tokens as well. On GitHub the step's summary and annotations are written, too.
    """
    from placebench.compare.sources import parse_source
    from placebench.gate.baseline import load_baseline, measured_run
    from placebench.gate.checking import Check, Kind, check, join
    from placebench.gate.output import print_check, tell_github, verdict, write_json, write_junit

    refuse_same({"--junit": junit, "--json": json_path})
    share = parse_share("--max-regression", max_regression)
    sources = [(part, parse_source(with_latest(part))) for part in split_paths(runs)]
    measured = [measured_run(source.run or Path(part), source.placement) for part, source in sources]
    chosen = sources[0][1].placement
    try:
        before = join([load_baseline(Path(part)) for part in split_paths(baseline)])
        found = check(
            join(measured),
            before if chosen is None else before.only(chosen),
            max_regression=share,
            metrics=metrics,
            min_launches=min_launches,
            allow=[Kind(word) for word in allow],
            paired=paired,
        )
    except BaselineError as error:
        # Whoever reads the outputs must see that nothing was compared.
        found = Check(run=runs, baseline=baseline, max_regression=share, missing=str(error))
    print_check(found, open_console())
    if junit:
        write_junit(found, junit)
    if json_path:
        write_json(found, json_path)
    for line in tell_github(found):
        click.echo(line)
    if found.error:
        raise found.error
    click.echo(verdict(found))


@click.group()
def baseline() -> None:
    """Keep what a run measured, for `placebench check`."""


@baseline.command()
@click.argument("run", metavar="RUN")
@click.argument("path", metavar="FILE", type=OutputPath())
def save(run: str, path: Path) -> None:
    """Write a run's numbers, host, versions and workload to FILE.

    RUN is the run's folder, latest, or one placement of it, RUN:PLACEMENT.
    """
    from placebench.compare.sources import parse_source
    from placebench.gate.baseline import save_baseline

    source = parse_source(with_latest(run))
    saved = save_baseline(source.run or Path(run), path, source.placement)
    launches = ", ".join(f"{len(placement.launches)} of {name}" for name, placement in saved.placements.items())
    click.echo(f"{path}: {launches} launches of {saved.run}")


def split_paths(text: str) -> list[str]:
    """Paths set apart by commas; one that is there under the whole text is one.

    Raises:
        UsageError: a path is empty.
    """
    parts = [text] if Path(text).exists() else text.split(",")
    if not all(parts):
        raise UsageError(f"{text!r}: there is an empty entry: name a run before and behind each comma")
    return parts
