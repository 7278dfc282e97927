"""Comparing runs and logs of any framework."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from placebench.commands.completion import complete_formats, complete_sources
from placebench.commands.console import open_console
from placebench.commands.options import GroupedCommand, WholeRange, option, option_group, read_share, verbose_option
from placebench.commands.outputs import OutputPath
from placebench.errors import UsageError
from placebench.spec.auto_rounds import MOST_STEPS
from placebench.spec.legible import shown

_EXAMPLES = """\b
Examples:
  placebench compare before=a1.log,a2.log after=b1.log,b2.log
  placebench compare latest:standard latest:split --out compared
"""


@click.command(cls=GroupedCommand, epilog=_EXAMPLES, short_help="Compare runs and logs of any framework.")
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, shell_complete=complete_sources)
@option_group(
    "Logs",
    option(
        "--format",
        "log_format",
        metavar="NAME",
        shell_complete=complete_formats,
        help="Format of all logs.  [default: found from their content]",
    ),
    option("--devices", metavar="N[,N...]", help="Devices of each log's run: one number for all logs, or one each."),
    option("--learner-ranks", metavar="N[,N...]", help="Learner ranks, where a framework multiplies tokens by them."),
    option(
        "--warmup-steps",
        type=WholeRange(0, MOST_STEPS),
        metavar="N",
        help="First steps of a log, left out of the numbers.  [default: 2]",
    ),
    option("--follow", is_flag=True, help="Logs that still grow: redraw until Ctrl-C."),
)
@option_group(
    "Comparison",
    option(
        "--min-effect",
        metavar="SHARE",
        callback=read_share,
        help="Smallest difference that matters to you: 2% or 0.02.  [default: 2%]",
    ),
    option(
        "--out",
        type=OutputPath(is_folder=True),
        metavar="FOLDER",
        help="Folder for the report's files.  [default: none written]",
    ),
    option("--png", "with_png", is_flag=True, help="With --out: each figure as PNG too, beside its SVG."),
    verbose_option,
    option("--force", is_flag=True, help="Compare even where the result means nothing, and say so."),
)
def compare(
    sources: tuple[str, ...],
    log_format: str | None,
    devices: str | None,
    learner_ranks: str | None,
    warmup_steps: int | None,
    min_effect: float | None,
    out: Path | None,
    with_png: bool,
    force: bool,
    follow: bool,
    verbose: bool,
) -> None:
    """Compare runs and logs of any framework with the first of them.

    A SOURCE is a RUN, RUN:PLACEMENT, or a log. Commas set launches apart, + the files of one launch; NAME=SOURCE names
    it.
    """
    from placebench.compare.comparison import compare_sides
    from placebench.compare.measure.sides import read_sides
    from placebench.compare.read.sources import ReadingOptions, parse_source
    from placebench.compare.statistics.verdicts import MIN_EFFECT
    from placebench.record.folder import is_run
    from placebench.report.brief import print_brief
    from placebench.report.shared import shared_sides
    from placebench.report.summary import summarize
    from placebench.report.terminal import print_summary

    effect = MIN_EFFECT if min_effect is None else min_effect
    counts, ranks = _numbers("--devices", devices), _numbers("--learner-ranks", learner_ranks)
    warmup = ReadingOptions.warmup_steps if warmup_steps is None else warmup_steps
    options = ReadingOptions(log_format, counts, ranks, warmup)
    words = [parse_source(named_run(text)) for text in sources]
    for text, word in zip(sources, words, strict=True):
        _refuse_joined_runs(text, word.launches)
    if not any(word.launches for word in words):
        _refuse_options_of_logs(log_format, devices, learner_ranks, warmup_steps)
    if with_png and out is None:
        raise UsageError("--png: figures are written only with --out FOLDER: add it")
    if out is not None and is_run(out):
        raise UsageError(f"--out {out}: is the folder of a run, whose own report it would replace: name another folder")
    console = open_console(redraws=follow)
    if follow:
        from placebench.report.following import follow_until_stopped

        sides = follow_until_stopped(words, options, console, effect, force=force, verbose=verbose)
    else:
        sides = read_sides(words, options, shared_sides)
    comparison = compare_sides(sides, effect, force=force)
    summary = summarize(comparison, warmup, ("placebench", *sys.argv[1:]))
    paths = None
    if out:
        # Loaded only here: most comparisons draw nothing.
        from placebench.report.build import write_comparison

        paths = write_comparison(comparison, summary, out, with_png=with_png)
    files = [str(path) for path in (paths.html, paths.markdown)] if paths else []
    if not verbose:
        more = "More: --verbose, or the report:" if files else "More: --verbose, or a report by --out FOLDER."
        print_brief(summary, console, f"{summary.coverage}. {more}", files[:1])
        return
    print_summary(summary, console)
    for path in files:
        console.print(path, style="cyan", highlight=False, soft_wrap=True)


def _numbers(option: str, text: str | None) -> tuple[int, ...]:
    """Numbers above 0, set apart by commas."""
    if text is None:
        return ()
    parts = text.split(",")
    if not all(re.fullmatch(r"\s*0*[1-9][0-9]{0,8}\s*", part) for part in parts):
        raise UsageError(f"{option} {shown(text)}: give a number above 0, or one for each argument: 8 or 8,16")
    return tuple(int(part) for part in parts)


def _refuse_options_of_logs(
    log_format: str | None, devices: str | None, learner_ranks: str | None, warmup_steps: int | None
) -> None:
    """Runs say themselves how they are read.

    Raises:
        UsageError: one of the options is given.
    """
    of_logs = {"--format": log_format, "--devices": devices, "--learner-ranks": learner_ranks}
    for flag, value in {**of_logs, "--warmup-steps": warmup_steps}.items():
        if value is not None:
            raise UsageError(f"{flag} {value}: is for logs, and only runs are compared: leave it out")


def _refuse_joined_runs(text: str, launches: Sequence[Sequence[Path]]) -> None:
    """Commas and + join logs, and would have the names of runs looked for as files.

    Raises:
        UsageError: one of the joined is a run.
    """
    from placebench.record.folder import is_run_or_report
    from placebench.record.named_runs import with_run

    joined = [file for files in launches for file in files]
    if len(joined) < 2:
        return
    for file in joined:
        if is_run_or_report(file) or with_run(str(file)) != str(file):
            raise UsageError(
                f"{text}: {file} is a run: a comma separates the logs of an arm, and + joins the files of one launch;"
                " give every run as an argument of its own"
            )


def named_run(text: str) -> str:
    """A word with the folder of a run in place of its name, behind the arm's name if it has one."""
    from placebench.record.named_runs import with_run

    whole = with_run(text)  # names of runs may have a = in them
    if whole != text or not text.partition("=")[2]:
        return whole
    name, equals, rest = text.partition("=")
    return f"{name}{equals}{with_run(rest)}"
