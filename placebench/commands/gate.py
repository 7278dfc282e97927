"""The gate for CI: keeping a baseline and checking a run against one."""

from pathlib import Path

import click

from placebench.commands.shared import open_console, parse_share, with_latest

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
@click.argument("run", metavar="RUN")
@click.option("--baseline", required=True, type=click.Path(path_type=Path), help="A baseline file, or a run's folder.")
@click.option(
    "--max-regression", default="5%", show_default=True, metavar="SHARE", help="How much worse is allowed: 5% or 0.05."
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
@click.option("--junit", type=click.Path(path_type=Path), help="Write JUnit XML.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every number.")
def check(
    run: str,
    baseline: Path,
    max_regression: str,
    metrics: tuple[str, ...],
    min_launches: int,
    allow: tuple[str, ...],
    junit: Path | None,
    json_path: Path | None,
) -> None:
    """Say whether a run is worse than a baseline, with the exit code.

    RUN is the run's folder, latest, or one placement of it, RUN:PLACEMENT. A regression is worse by more than
    --max-regression with its whole 95 % interval. On GitHub the step's summary and annotations are written, too.
    """
    from placebench.compare.sources import parse_source
    from placebench.gate.baseline import load_baseline, measured_run
    from placebench.gate.checking import Kind, check
    from placebench.gate.output import print_check, tell_github, verdict, write_json, write_junit

    share = parse_share("--max-regression", max_regression)
    source = parse_source(with_latest(run))
    measured = measured_run(source.run or Path(run), source.placement)
    before = load_baseline(baseline)
    if source.placement is not None:
        before = before.only(source.placement)
    found = check(
        measured,
        before,
        max_regression=share,
        metrics=metrics,
        min_launches=min_launches,
        allow=[Kind(word) for word in allow],
    )
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
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
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
