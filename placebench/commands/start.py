"""Starting a plan: run it and report, or show it."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from placebench.commands.console import open_console
from placebench.commands.group import readers_may_leave
from placebench.errors import InterruptedRunError, LaunchError, Reasons, UsageError
from placebench.host.terminal import say

if TYPE_CHECKING:
    from placebench.plan.plan import Plan
    from placebench.plan.request import RunRequest
    from placebench.run.runner import RunResult
    from placebench.spec.auto_rounds import StepChoice


def start(
    plan: "Plan",
    request: "RunRequest",
    command: Sequence[str],
    serve_port: int | None = None,
    trackers: Sequence[str] = (),
) -> "RunResult | None":
    """Run a plan and report, or show it, or print the file that asks for it.

    Args:
        plan: what is asked for, checked.
        request: what has asked for it.
        command: words of the command line to which such a file would be given.
        serve_port: where its live page is served, 0 for a free port; None for no page.
        trackers: where the run is exported to when it is over.

    Returns:
        How the run ended, where it was started; its failures are still to be raised where its launch lasts until its
        command ends.

    Raises:
        UsageError: placements asked for cannot be; the plan of the others is shown.
    """
    if request.print_config:
        from placebench.plan.as_config import config_text

        if plan.job:
            raise UsageError("--print-config is for placebench's own job: --write-config FILE writes a job file")
        Reasons(plan.refused).raise_any()
        click.echo(config_text(plan, request, command), nl=False)  # noqa: TID251 - a file, YAML escapes its text
        return None
    if request.dry_run:
        from placebench.plan.views import show_plan

        show_plan(plan, open_console(), verbose=request.verbose)
        sys.stdout.flush()  # before the reasons, also where both go into one pipe
        Reasons(plan.refused).raise_any()
        return None
    Path.cwd()  # what a launch starts needs one
    if serve_port is None:
        return _execute(plan, trackers, verbose=request.verbose)
    from placebench.commands.page import page_beside

    with page_beside(plan.folder.path, serve_port) as link:
        say(f"live page: {link}", sys.stderr)
        return _execute(plan, trackers, verbose=request.verbose)


def _execute(plan: "Plan", trackers: Sequence[str], *, verbose: bool) -> "RunResult":
    """Run a plan and report."""
    from placebench.host.signals import Stopped, raised_signals
    from placebench.run.display import open_display
    from placebench.run.runner import execute

    command = ["placebench", *sys.argv[1:]]
    result = execute(plan, command, open_display(), _headline_width, so_far=compared_so_far, best_steps=_best_steps)
    if result.done:
        try:
            with raised_signals():
                if result.late_signal and not plan.until_end:
                    raise Stopped(result.late_signal)
                _report(result.folder, verbose=verbose)
        except Stopped as stopped:
            raise InterruptedRunError(
                f"stopped by {stopped} before the report was made: {result.done} of {result.total} launches are done;"
                f" make it with placebench report {result.folder}",
                stopped.exit_code,
            ) from None
        if trackers:
            from placebench.commands.tracking import track_run

            track_run(result.folder, trackers)
    if not plan.until_end:
        result.raise_unless_done()
    if result.done:
        _refuse_unreadable(result)
    return result


def _refuse_unreadable(result: "RunResult") -> None:
    """Launches that ended in order, and of which the report could make nothing.

    Raises:
        LaunchError: there are some.
    """
    from placebench.record.folder import Status
    from placebench.report.kept import kept_summary

    summary = kept_summary(result.folder)
    errors = [launch.error for launch in summary.launches if launch.status is Status.DAMAGED] if summary else []
    if errors:
        raise LaunchError(f"{len(errors)} of {result.total} launches cannot be reported on, the first: {errors[0]}")


def _headline_width(folder: Path, rounds: int) -> float:
    # pandas is loaded only here: most runs have a fixed number of rounds.
    from placebench.compare.measure.precision import headline_width

    return headline_width(folder, rounds)


def _best_steps(folder: Path) -> "StepChoice | None":
    from placebench.compare.measure.precision import choose_steps

    return choose_steps(folder)


def compared_so_far(folder: Path, placement: str) -> str | None:
    """As of `compare.measure.precision`, whose libraries are loaded only when it is called."""
    from placebench.compare.measure import precision

    return precision.compared_so_far(folder, placement)


def _report(folder: Path, *, verbose: bool) -> None:
    """Build and print the report of a run; a reader of it that goes away does not change the run's exit code."""
    from placebench.report.build import build_report
    from placebench.report.show import show as show_run

    build_report(folder)
    with readers_may_leave(f"; the report is in {folder}"):
        show_run(folder, open_console(), verbose=verbose)
