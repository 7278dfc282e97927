"""Starting a plan: run it and report, or show it."""

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from placebench.commands.console import open_console
from placebench.commands.group import readers_may_leave
from placebench.errors import InterruptedRunError, LaunchError, Reasons, TimeLimitError, UsageError
from placebench.host.terminal import say

if TYPE_CHECKING:
    from placebench.plan.plan import Plan
    from placebench.plan.request import RunRequest
    from placebench.run.runner import RunResult
    from placebench.spec.auto_rounds import StepChoice


def raise_bad_end(plan: "Plan", result: "RunResult") -> None:
    """Say what of a run is missing, and which launches count though their commands did not end cleanly.

    Raises:
        TimeLimitError: the time limit has passed.
        InterruptedRunError: the user has stopped it.
        LaunchError: a launch has failed, or nothing can be made of it.
    """
    result.raise_unless_done()
    if result.done:
        refuse_unreadable(result)
    if not plan.until_end:
        return
    from placebench.record.end_file import STOPPED, EndFile
    from placebench.record.folder import Status
    from placebench.run.asked import TIME_LIMIT

    trials = [trial for trial in plan.folder.trials() if trial.status is Status.DONE]
    bad = {trial.path: end.message for trial in trials if (end := EndFile.read(trial)) and end.message}
    rest = "the report covers what was recorded until then"
    counts = f"{result.done} of {result.total} launches are done; {rest}"
    if result.late_signal:
        raise InterruptedRunError(f"stopped by {result.late_signal.name}: {counts}")
    stopped = {path for path, message in bad.items() if message == STOPPED}
    if stopped - {plan.folder.trial(*launch).path for launch in plan.done}:  # not by an earlier start of the run
        raise TimeLimitError(f"{TIME_LIMIT}: {counts}")
    if failed := [path for path in bad if path not in stopped]:
        first = f"{bad[failed[0]]} (its folder is {failed[0]})"
        raise LaunchError(f"{len(failed)} of {result.total} launches failed, the first with: {first}; {rest}")


def start(
    plan: "Plan",
    request: "RunRequest",
    command: Sequence[str],
    serve_port: int | None = None,
    trackers: Sequence[str] = (),
    raise_end: "Callable[[Plan, RunResult], None]" = raise_bad_end,
) -> None:
    """Run a plan and report, or show it, or print the file that asks for it.

    Args:
        plan: what is asked for, checked.
        request: what has asked for it.
        command: words of the command line to which such a file would be given.
        serve_port: where its live page is served, 0 for a free port; None for no page.
        trackers: where the run is exported to when it is over.
        raise_end: says how the run ended, where that was not in order.

    Raises:
        UsageError: placements asked for cannot be; the plan of the others is shown.
        PlacebenchError: the run did not end cleanly.
    """
    if request.print_config:
        from placebench.plan.as_config import config_text

        if plan.job:
            raise UsageError("--print-config is for placebench's own job: --write-config FILE writes a job file")
        Reasons(plan.refused).raise_any()
        click.echo(config_text(plan, request, command), nl=False)  # noqa: TID251 - a file, YAML escapes its text
        return
    if request.dry_run:
        from placebench.plan.views import show_plan

        show_plan(plan, open_console(), verbose=request.verbose)
        sys.stdout.flush()  # before the reasons, also where both go into one pipe
        Reasons(plan.refused).raise_any()
        return
    Path.cwd()  # what a launch starts needs one
    if serve_port is None:
        raise_end(plan, _execute(plan, trackers, verbose=request.verbose))
        return
    from placebench.commands.page import page_beside

    with page_beside(plan.folder.path, serve_port) as link:
        say(f"live page: {link}", sys.stderr)
        raise_end(plan, _execute(plan, trackers, verbose=request.verbose))


def _execute(plan: "Plan", trackers: Sequence[str], *, verbose: bool) -> "RunResult":
    """Run a plan and report."""
    from placebench.host.signals import Stopped, raised_signals
    from placebench.run.display import open_display
    from placebench.run.runner import MeasuredSoFar, execute

    so_far = MeasuredSoFar(_headline_width, compared_so_far, _best_steps)
    result = execute(plan, ["placebench", *sys.argv[1:]], open_display(), so_far)
    if result.done:
        try:
            with raised_signals():
                if result.late_signal and not plan.until_end:
                    raise Stopped(result.late_signal)
                _report(result.folder, verbose=verbose)
        except Stopped as stopped:
            raise InterruptedRunError(
                f"stopped by {stopped} before the report was made: {result.done} of {result.total} launches are done;"
                f" make it with placebench report {shlex.quote(str(result.folder))}",
                stopped.exit_code,
            ) from None
        if trackers:
            from placebench.commands.tracking import track_run

            track_run(result.folder, trackers)
    return result


def refuse_unreadable(result: "RunResult") -> None:
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
