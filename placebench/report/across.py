"""The report of arms of several runs and logs: the same files as a run's, as far as the data goes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from placebench import __version__
from placebench.compare.across import (
    ArmComparison,
    alone,
    are_pairs,
    gains_of_runs,
    headline,
    reasons,
    step_changes,
    warnings,
)
from placebench.compare.arms import Arm
from placebench.compare.engines import slower_side
from placebench.compare.explain.gains import told_gains
from placebench.compare.explain.reasons import waiting
from placebench.compare.statistics.estimates import CONFIDENCE
from placebench.errors import UsageError
from placebench.logs.timing import Kind
from placebench.record.folder import Status
from placebench.report.figures import phases_over_steps
from placebench.report.files import write_pages
from placebench.report.method import interval_of_ratios, values_of_steps
from placebench.report.paths import ReportPaths
from placebench.report.plots import Plot, phases, ratios
from placebench.report.queue_plot import CAPTION as QUEUE_CAPTION
from placebench.report.queue_plot import TITLE as QUEUE_TITLE
from placebench.report.queue_plot import queue_over_steps
from placebench.report.schema import Fact, LaunchSummary, Method, PlacementSummary, Source, Summary
from placebench.report.summary import critical_path, overlap_gain, quantities, times
from placebench.report.waterfall import draw_changes
from placebench.spec.text import plural

NO_LOAD = "of runs: as their own reports say"


def summarize_arms(comparison: ArmComparison, warmup_steps: int, command: tuple[str, ...] = ()) -> Summary:
    """Put a comparison of arms into the form of `summary.json`.

    Args:
        comparison: the arms.
        warmup_steps: first steps of each log that are left out of the numbers.
        command: the command line.
    """
    launches = sum(len(arm.launches) for arm in comparison.arms)
    first, *others = comparison.arms
    gains = gains_of_runs(comparison)
    told = told_gains(gains, first.name)
    return Summary(
        kind="comparison",
        placebench=__version__,
        name=f"{' and '.join(arm.name for arm in others)} against {first.name}" if others else first.name,
        status=Status.DONE,
        started=None,
        ended=None,
        command=command,
        done=launches,
        planned=launches,
        method=Method(
            confidence=CONFIDENCE,
            min_effect=comparison.min_effect,
            warmup_steps=warmup_steps,
            load=NO_LOAD,
            efficiency=(),
            steps=f"{values_of_steps(others, comparison.metrics)}; {_left_out(comparison, warmup_steps)}",
            interval=interval_of_ratios(others),
        ),
        workload={},
        host={},
        versions={},
        git=None,
        warnings=warnings(comparison),
        placements=tuple(_arm(comparison, arm, told.get(arm.name, ())) for arm in comparison.arms),
        overlap_gains=tuple(map(overlap_gain, gains)),
        launches=tuple(
            LaunchSummary(
                round=number, placement=arm.name, status=Status.DONE, error=None, steps=launch.steps,
                startup_s=None, steps_s=None, stop_s=None,
            )
            for arm in comparison.arms
            for number, launch in enumerate(arm.launches, start=1)
        ),
        facts=tuple(Fact(name=fact.name, values=fact.values, differs=fact.differs) for fact in comparison.facts),
        sources=tuple(
            Source(
                arm=arm.name, source=launch.source, format=launch.format, steps=launch.steps, measured=launch.measured
            )
            for arm in comparison.arms
            for launch in arm.launches
        ),
    )  # fmt: skip


def _left_out(comparison: ArmComparison, warmup_steps: int) -> str:
    logs = f"the warm-up of each log, at least {plural(warmup_steps, 'step')},"
    runs = "the warm-up steps of each run"
    sides = {arm.run is None for arm in comparison.arms}
    return f"{' and '.join(text for is_log, text in ((True, logs), (False, runs)) if is_log in sides)} left out"


def _arm(comparison: ArmComparison, arm: Arm, gains: tuple[str, ...]) -> PlacementSummary:
    first = comparison.arms[0]
    result = arm.side[1] if arm.side else None
    against = first.side[1] if first.side and arm is not first else None
    verdict, why = _verdict(comparison, arm)
    return PlacementSummary(
        name=arm.name,
        pools=dict(result.placement.pools) if result else {},
        roles=dict(result.placement.roles) if result else {},
        overlap=result.placement.overlap if result else "",
        launches=len(arm.launches),
        headline=verdict,
        reasons=(*why, *gains),
        quantities=quantities(arm, comparison.metrics),
        controller_view=(),
        overlaps=times(result, "overlap/") if result else (),
        waits=times(result, "wait/") if result else (),
        critical_path=critical_path(against, result, paired=are_pairs([first, arm])) if result else (),
        devices=(),
        phases_in_pools=(),
        phases_on_devices=(),
        kernels=(),
        parts=quantities(arm, comparison.parts),
    )


def _verdict(comparison: ArmComparison, arm: Arm) -> tuple[str | None, tuple[str, ...]]:
    """Headline and reasons: of every arm against the first, or of the only one by itself.

    The first of several has no headline, and of reasons only what is said of it alone: which of its sides waits.
    """
    side = slower_side(arm, arm.side[1].placement.staleness) if arm.side else None
    sides = (side,) if side else ()
    if arm is not comparison.arms[0]:
        return headline(comparison, arm), (*reasons(comparison, arm), *sides)
    if len(comparison.arms) > 1:
        return None, sides
    waits = waiting(*arm.side) if arm.side else None
    return alone(arm), ((waits,) if waits else ()) + sides


def write_report(comparison: ArmComparison, summary: Summary, folder: Path) -> ReportPaths:
    """Write the report's files into a folder, replacing an older report.

    Raises:
        UsageError: the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return write_pages(summary, _draw(comparison), folder, trace=None)
    except OSError as error:
        raise UsageError(f"--out {folder}: cannot write the report: {error.strerror}") from None


def _draw(comparison: ArmComparison) -> Iterator[Plot]:
    drawn: tuple[tuple[str, str, str, Callable[[ArmComparison], Figure | None]], ...] = (
        (
            "difference",
            "Where the difference comes from",
            "From the first arm's step time to the other's, both of runs: what each phase on the critical path adds or"
            " takes.",
            _differences,
        ),
        (
            "ratios",
            "Ratios",
            "Each time and throughput over the first arm's, with its 95 % interval where there are launches enough, an"
            " arrowhead where it goes on beyond the frame; the grey band is the smallest effect of interest.",
            ratios,
        ),
        (
            "phases",
            "Mean of each phase",
            "Seconds a step of each phase, with the range of the launches. Phases that overlap do not add up.",
            phases,
        ),
        ("steps", "Phases over the steps", "Seconds of each phase in every step, warm-up included.", _steps),
        ("queue", QUEUE_TITLE, QUEUE_CAPTION, _queue),
    )
    for name, title, caption, draw in drawn:
        figure = draw(comparison)
        if figure is not None:
            yield Plot(name, title, caption, figure)


def _differences(comparison: ArmComparison) -> Figure | None:
    return draw_changes(comparison.arms[0].name, step_changes(comparison), comparison.phases)


def _steps(comparison: ArmComparison) -> Figure:
    timings = pd.concat([arm.timings.assign(arm=arm.name) for arm in comparison.arms], ignore_index=True)
    return phases_over_steps(timings[timings["kind"] != Kind.DETAIL], by="arm")


def _queue(comparison: ArmComparison) -> Figure | None:
    return queue_over_steps([arm.side for arm in comparison.arms if arm.side])
