"""The figures of a run's report, drawn from a comparison."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from placebench.compare.comparison import Comparison
from placebench.compare.measure.placements import RunSide
from placebench.compare.metrics import EFFICIENCY, FORMULAS, Metric
from placebench.compare.read.run import Launch
from placebench.compare.side import Side
from placebench.compare.statistics.estimates import Ratio
from placebench.compare.statistics.verdicts import Better
from placebench.logs.timing import Kind
from placebench.report.comparison_table import marked_verdict, note_on
from placebench.report.figures import mean_per_phase, phases_over_steps, thinning
from placebench.report.observed_plot import CAPTION as OBSERVED_CAPTION
from placebench.report.observed_plot import TITLE as OBSERVED_TITLE
from placebench.report.observed_plot import roles_on_devices
from placebench.report.palette import phase_colors
from placebench.report.queue_plot import CAPTION as QUEUE_CAPTION
from placebench.report.queue_plot import TITLE as QUEUE_TITLE
from placebench.report.queue_plot import queue_over_steps
from placebench.report.style import WIDTH, frame_panels, hatch, hatch_legend, set_bold_title, write_beside
from placebench.report.timeline import timeline
from placebench.report.waterfall import waterfall
from placebench.spec.phases import STEP, UNATTRIBUTED, phase_order
from placebench.spec.text import interval, ratio
from placebench.telemetry.spans import CONTROLLER

TIMING = "timing_s/"
# An interval that reaches beyond this factor of the outermost ratio leaves the picture, with an arrowhead at the edge;
# its ends stand in the text.
REACH = 1.5
# So does a ratio that is further from 1 than this factor, but for an arrow at the edge: others would lie on each other.
FAR = 8.0
# Ticks of a ratio axis by preference; one is drawn where it has room.
TICKS = (1, 2, 0.5, 5, 0.2, 10, 0.1, 1.5, 0.67, 3, 0.33, 1.2, 0.8, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98)
TICK_ROOM = 0.07
# Points from the frame of ratios to the words beside it, so that arrowheads at its edges do not touch them.
BESIDE = 5
# Panels beside each other of the phases over the steps: with more, their letters are too small on a page.
STEP_COLUMNS = 2
# Height of the bars of a phase, those of all placements together.
GROUP = 0.84


@dataclass(frozen=True)
class Plot:
    """One figure of the report."""

    name: str
    """The file's name without its suffix."""
    title: str
    """Its heading."""
    caption: str
    """What it shows, for those who see it and those who do not."""
    figure: Figure
    """The figure."""


def captions(*, of_run: bool) -> Iterator[tuple[str, str, str]]:
    """Name, title and caption of every figure that the report of a run, or of chosen sides, may have."""
    for name, title, run_caption, caption, _ in _DRAWN:
        if chosen := run_caption if of_run else caption:
            yield name, title, chosen


def slowest_first() -> list[int]:
    """The places of all figures in their list, those first that take longest to draw."""
    return sorted(range(len(_DRAWN)), key=lambda place: _DRAWN[place][0] not in _SLOW)


def draw_plots(comparison: Comparison, places: Iterable[int] | None = None) -> Iterator[Plot]:
    """The figures for which there are measurements, most important first.

    Args:
        comparison: what they show.
        places: in the list of all figures, to draw these alone, in this order.
    """
    for name, title, of_run, of_chosen_sides, draw in _DRAWN if places is None else map(_DRAWN.__getitem__, places):
        caption = of_run if comparison.run else of_chosen_sides
        figure = draw(comparison) if caption else None
        if caption and figure:
            yield Plot(name, title, caption, figure)


def ratios(comparison: Comparison) -> Figure | None:
    """Times and throughput of every side against the first, with intervals; None where there is no ratio."""
    metrics = [metric for metric in comparison.metrics if metric.better is not Better.NEITHER]
    groups = [
        (side, [(metric, found) for metric in metrics if (found := side.ratios.get(metric.key))])
        for side in comparison.others
    ]
    groups = [(side, rows) for side, rows in groups if rows]
    if not groups:
        return None
    colors = phase_colors([*comparison.phases, STEP])
    lines = sum(len(rows) for _, rows in groups)
    figure = Figure(figsize=(WIDTH, 1.0 + 0.27 * lines + 0.5 * len(groups)), layout="constrained")
    counts = [len(rows) for _, rows in groups]
    panels = list(figure.subplots(len(groups), 1, sharex=True, squeeze=False, height_ratios=counts).flat)
    every = [found for _, rows in groups for _, found in rows]
    limits = _ratio_limits(every)
    for axes, (side, rows) in zip(panels, groups, strict=True):
        set_bold_title(axes, f"{side.name} / {comparison.first.name}")
        _draw_ratios(axes, rows, colors, limits, comparison.min_effect)
    panels[-1].set_xscale("log")
    panels[-1].set_xlim(*limits)
    ticks = _ticks(*limits)
    panels[-1].set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panels[-1].xaxis.set_minor_locator(NullLocator())
    note = note_on(every)
    axis = "ratio (log scale); times: below 1 is faster, tokens/s: above 1 is faster"
    panels[-1].set_xlabel("\n".join(filter(None, [axis, note])))
    return figure


def shares_of_peak(comparison: Comparison) -> Figure | None:
    """MFU and MBU of every phase, placements beside each other; None where no placement has any."""
    found = {
        metric.key.partition("/")[2]: metric
        for metric in EFFICIENCY
        # Of the peak at a lower clock it is another share, which stands in the table.
        if metric.key.startswith(("mfu/", "mbu/"))
        and any(side.estimate(metric.key).n for side in comparison.placements)
    }
    if not found:
        return None
    phases = phase_order(found)
    colors = phase_colors(phases)
    figure = Figure(
        figsize=(WIDTH, 1.4 + len(phases) * max(0.4, 0.2 * len(comparison.placements))), layout="constrained"
    )
    axes = figure.subplots()
    height = GROUP / len(comparison.placements)
    for index, side in enumerate(comparison.placements):
        for row, phase in enumerate(phases):
            place = row + (index + 0.5) * height - GROUP / 2
            _draw_share(axes, side, found[phase].key, place, height, colors[phase], hatch(index))
    axes.axvline(100, color="black", linewidth=1)
    axes.set_xlim(0, 104)
    axes.set_yticks(range(len(phases)), [found[phase].label for phase in phases], parse_math=False)
    axes.set_ylim(len(phases) - 0.45, -0.55)
    axes.set_xlabel("share of the devices' peak, %: FLOP/s (MFU), bytes/s of memory (MBU)")
    frame_panels([axes], grid="x")
    if len(comparison.placements) > 1:
        hatch_legend(figure, (side.name for side in comparison.placements))
    return figure


def phases(comparison: Comparison) -> Figure | None:
    """Every phase of every side in its device view, with the range of its launches."""
    keys = {f"phase/{phase}": phase for phase in comparison.phases} | {"unattributed": UNATTRIBUTED, "step_time": STEP}
    rows = []
    for side in comparison.sides:
        for key, phase in keys.items():
            if side.estimate(key).n:
                launches = side.launch_values[key]
                numbers = {"mean": side.value(key), "low": launches.min(), "high": launches.max()}
                rows.append({"placement": side.name, "phase": phase, **numbers})
    if not rows:
        return None
    return mean_per_phase(
        pd.DataFrame(rows),
        by="placement",
        interval="lowest to highest launch",
        seconds="seconds a step, mean of the launches' medians",
    )


def steps(comparison: Comparison) -> Figure | None:
    """Phases over the steps, one panel a side."""
    thinned = thinning(timings for side in comparison.sides for timings in side.background.timings.values())
    tables = [
        table.assign(placement=side.name)
        for side in comparison.sides
        if len(table := _mean_timings(side) if comparison.run else _logged_timings(side, thinned))
    ]
    if not tables:
        return None
    timings = pd.concat(tables, ignore_index=True)
    return phases_over_steps(
        timings[timings["kind"] != Kind.DETAIL], by="placement", thinned=thinned, most_columns=STEP_COLUMNS
    )


def _logged_timings(side: Side, thinned: int) -> pd.DataFrame:
    """The timings of so many steps at a time, of the launches of a side, in the columns that the figure takes."""
    return pd.concat(
        [pd.DataFrame(), *(timings.thinned(thinned).tidy(name) for name, timings in side.background.timings.items())]
    )


def _mean_timings(side: Side) -> pd.DataFrame:
    """Mean over a placement's launches of every step's timings, in the columns that the figure takes."""
    launches = [_timings(launch) for launch in side.launches] if isinstance(side, RunSide) else []
    launches = [timings for timings in launches if not timings.empty]
    if not launches:
        return pd.DataFrame()
    means = pd.concat(launches).groupby(level="step").mean()
    tidy = means.rename(columns=lambda name: str(name).removeprefix(TIMING)).melt(
        var_name="phase", value_name="seconds", ignore_index=False
    )
    kinds = tidy["phase"].map(lambda phase: Kind.STEP if phase == STEP else Kind.OVERLAP)
    return tidy.reset_index().assign(kind=kinds.to_numpy()).dropna(subset="seconds")


def _timings(launch: Launch) -> pd.DataFrame:
    """The timings of a launch's steps, those of spans where a job of the user's logs none but the whole step's."""
    logged, spans = launch.steps.filter(like=TIMING), launch.spans
    seen = spans[(spans["device"] == CONTROLLER) & (spans["phase"] != STEP)]
    if seen.empty or list(logged) != [f"{TIMING}{STEP}"]:
        return logged
    seconds = (seen["end"] - seen["start"]).groupby([seen["step"], seen["phase"]], sort=False).sum()
    return logged.join(seconds.unstack().add_prefix(TIMING))


def _ratio_limits(ratios: Sequence[Ratio]) -> tuple[float, float]:
    """Where the axis of ratios begins and ends: see `REACH` and `FAR` for what leaves it."""
    values = [found.value for found in ratios if 1 / FAR <= found.value <= FAR] + [1.0]
    ends = [end for found in ratios for end in (found.low, found.high) if not math.isnan(end)]
    low, high = min([*values, *ends]), max([*values, *ends])
    return max(low, min(values) / REACH) / 1.05, min(high, max(values) * REACH) * 1.05


def _draw_ratios(
    axes: Axes,
    rows: Sequence[tuple[Metric, Ratio]],
    colors: Mapping[str, str],
    limits: tuple[float, float],
    min_effect: float,
) -> None:
    """The ratios of one side, a line each, with what is too small to matter in gray."""
    bound = 1 + min_effect
    axes.axvspan(1 / bound, bound, color="#dddddd", linewidth=0)
    axes.axvline(1, color="#555555", linewidth=0.8)
    for place, (metric, found) in enumerate(rows):
        _draw_ratio(axes, place, found, colors.get(metric.key.removeprefix("phase/"), colors[STEP]), limits)
    axes.set_yticks(range(len(rows)), [metric.label for metric, _ in rows], fontsize="small", parse_math=False)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0, pad=BESIDE)
    axes.grid(axis="y", color="#eeeeee", linewidth=0.6)
    axes.set_axisbelow(True)


def _draw_ratio(axes: Axes, place: int, found: Ratio, color: str, ends: tuple[float, float]) -> None:
    if not math.isnan(found.low):
        axes.plot([found.low, found.high], [place, place], color=color, linewidth=2.2, solid_capstyle="butt")
        # The frame cuts what reaches beyond it, which would look like an end of the interval there.
        for marker, edge, is_cut in (("<", ends[0], found.low < ends[0]), (">", ends[1], found.high > ends[1])):
            if is_cut:
                axes.plot(edge, place, marker=marker, markersize=5.5, color=color, markeredgewidth=0, clip_on=False)
    at = min(max(found.value, ends[0]), ends[1])
    marker = "o" if at == found.value else "<" if at == ends[0] else ">"
    axes.plot(
        at, place, marker=marker, markersize=5.5, color=color, markeredgecolor="white", markeredgewidth=0.8,
        clip_on=False,
    )  # fmt: skip
    ends_text = "" if math.isnan(found.low) else f" ({interval(found.low, found.high)})"
    axes.annotate(
        f"{ratio(found.value, found.low, found.high)}{ends_text} {marked_verdict(found)}",
        (1, place), (BESIDE, 0), xycoords=("axes fraction", "data"), textcoords="offset points", va="center",
        fontsize=7.5, annotation_clip=False,
    )  # fmt: skip


def _draw_share(axes: Axes, side: RunSide, key: str, place: float, height: float, color: str, pattern: str) -> None:
    """A bar with its number, and the range of the launches where there are several."""
    if not side.estimate(key).n:
        return
    share = 100 * side.value(key)
    axes.barh(place, share, height=height * 0.92, color=color, hatch=pattern, edgecolor="white", linewidth=0)
    launches = 100 * side.launch_values[key].dropna()
    if len(launches) > 1:
        axes.plot([launches.min(), launches.max()], [place, place], color="black", linewidth=1)
    write_beside(axes, max(share, launches.max()), place, f"{share:.1f}", "x-small")


def _ticks(low: float, high: float) -> list[float]:
    ticks: list[float] = []
    room = TICK_ROOM * math.log(high / low)
    for tick in TICKS:
        if low <= tick <= high and all(abs(math.log(tick / other)) >= room for other in ticks):
            ticks.append(tick)
    return sorted(ticks)


# Each takes twice as long as one of the others.
_SLOW = ("timeline", "steps", "phases")
# Name, title, caption in the report of a run, caption where sides were chosen (None where it is not drawn), and how.
_DRAWN: tuple[tuple[str, str, str, str | None, Callable[[Comparison], Figure | None]], ...] = (
    (
        "timeline",
        "One typical step",
        "The measured step of each placement whose time is nearest to the mean, all to one scale: bars are phases"
        " on their device, below each other where processes share it, gray is waiting. The black line is the critical"
        " path, the chain of phases that made the step as long as it was.",
        None,
        timeline,
    ),
    ("roles", OBSERVED_TITLE, OBSERVED_CAPTION, None, roles_on_devices),
    (
        "difference",
        "Where the difference comes from",
        "From the first placement's step time to the other's: what each phase on the critical path adds or takes."
        " A phase adds less when it takes less time, or when more of it is hidden beside the path.",
        "From the first arm's step time to the other's, both of runs: what each phase on the critical path adds or"
        " takes.",
        waterfall,
    ),
    (
        "ratios",
        "Ratios",
        "Each time and throughput over the first placement's, with its 95 % interval, an arrowhead where it goes on"
        " beyond the frame; the gray band is the smallest effect of interest.",
        "Each time and throughput over the first arm's, with its 95 % interval where there are launches enough, an"
        " arrowhead where it goes on beyond the frame; the gray band is the smallest effect of interest.",
        ratios,
    ),
    (
        "efficiency",
        "Share of the devices' peak",
        "MFU of training and forward phases and MBU of decoding, mean of the launches with their range; 100 % is"
        " the data sheet's peak. " + FORMULAS,
        None,
        shares_of_peak,
    ),
    (
        "phases",
        "Mean of each phase",
        "Seconds a step of each phase on its slowest device, with the range of the launches. Phases of different"
        " pools overlap, so they do not add up to the step.",
        "Seconds a step of each phase, with the range of the launches. Phases that overlap do not add up.",
        phases,
    ),
    (
        "steps",
        "Phases over the steps",
        "Seconds of each phase from submission to result, mean of the launches, warm-up included.",
        "Seconds of each phase in every step, warm-up included.",
        steps,
    ),
    ("queue", QUEUE_TITLE, QUEUE_CAPTION, QUEUE_CAPTION, queue_over_steps),
)
