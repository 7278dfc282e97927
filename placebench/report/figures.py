"""The figures of the project: phases over steps, mean per phase, share of the step.

Each function takes a tidy frame and returns a matplotlib `Figure` that belongs to no window and no pyplot
state. A phase has the same color in every figure. Phases that overlap are drawn beside each other, never
stacked into a bar that would look like the whole step.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from placebench.logs.timing import Kind, Timings
from placebench.report.palette import phase_colors
from placebench.report.style import (
    LineStyle,
    frame_panels,
    hatch,
    hatch_legend,
    ink,
    line_style,
    literal,
    set_title,
    wrap,
    write_beside,
)
from placebench.spec.phases import phase_order
from placebench.spec.text import scale

PANEL_COLUMNS = 3
MOST_POINTS = 2000
# Panels whose highest values differ by more than this do not share a scale.
SCALE_RATIO = 5
# Height of a lane of overlapping phases and of the gap between blocks, where a stacked bar is 1 high.
LANE = 0.42
BLOCK_GAP = 0.7


@dataclass(frozen=True)
class _ShareBlock:
    """The bars of one launch or placement in the share figure."""

    name: str
    shares: "pd.Series[float]"
    stacked: bool

    @property
    def height(self) -> float:
        return 1.0 if self.stacked else max(1.0, LANE * len(self.shares))

    @property
    def reach(self) -> float:
        """Where the longest bar ends, in percent, with room for the numbers beside the lanes."""
        longest = float(self.shares.sum() if self.stacked else self.shares.max()) if len(self.shares) else 0.0
        return max(100.0, longest if self.stacked else longest + 8)


def thinning(logs: Iterable[Timings]) -> int:
    """How many steps at a time are drawn as one point: more points than a figure is wide would hide each other."""
    return max((-(-len(timings.steps) // MOST_POINTS) for timings in logs), default=1)


def phases_over_steps(
    timing: pd.DataFrame, *, by: str = "launch", smooth: int = 1, thinned: int = 1, most_columns: int = PANEL_COLUMNS
) -> Figure:
    """Seconds of every phase over the steps, one panel per value of `by`.

    The panels share one scale, unless one of them would be unreadable on it; the axis label then says so.

    Args:
        timing: columns `by`, step, phase, seconds, kind, as `Timings.tidy` gives them. Details are left out.
        by: the column whose values get a panel each: launch, or placement.
        smooth: width in steps of the centered moving average drawn as the line. The steps themselves stay as faint
            points, and so do the launches where `by` puts several into one panel and the line is their mean.
        thinned: of how many steps each step of `timing` is the mean.
        most_columns: panels beside each other.
    """
    drawn = timing[timing["kind"] != Kind.DETAIL]
    phases = phase_order(drawn["phase"])
    colors = phase_colors(phases)
    groups = list(drawn[by].unique())
    columns = min(len(groups), most_columns)
    rows = -(-len(groups) // columns)
    highest = drawn.groupby(by)["seconds"].max()
    same_scale = bool(highest.max() <= SCALE_RATIO * highest.min())
    figure = Figure(figsize=(max(7.5, 4.2 * columns) + 1.8, max(4.2, 3.4 * rows)), layout="constrained")
    panels: list[Axes] = list(figure.subplots(rows, columns, sharey=same_scale, squeeze=False).flat)
    width = max(1, round(smooth / thinned))
    lines = average_lines(drawn, width, by=by)
    for panel, group in zip(panels, groups, strict=False):
        points_of, lines_of = drawn[drawn[by] == group], lines[lines[by] == group]
        for phase in phases:
            points, line = points_of[points_of["phase"] == phase], lines_of[lines_of["phase"] == phase]
            _draw_series(panel, points, line, colors[phase], line_style(phase, phases), smoothed=width > 1)
        set_title(panel, str(group))
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    for panel in panels[: len(groups)]:
        panel.set_ylim(bottom=0)
    for panel in panels[len(groups) :]:
        panel.set_visible(False)
    frame_panels(panels[: len(groups)])
    notes = [f"each point the mean of {thinned:,} steps"] * (thinned > 1)
    notes += [f"moving average of {width * thinned:,} steps"] * (width > 1) + ["scales differ"] * (not same_scale)
    figure.supxlabel("training step", fontsize="medium")
    figure.supylabel("\n".join(["seconds per step", *notes]), fontsize="medium")
    handles = [
        Line2D(
            [], [], color=colors[phase], linestyle=line_style(phase, phases), linewidth=2, label=literal(wrap(phase))
        )
        for phase in phases
    ]
    figure.legend(handles=handles, loc="outside right upper", frameon=False, title="phase")
    return figure


def average_lines(timing: pd.DataFrame, width: int, *, by: str = "launch") -> pd.DataFrame:
    """The lines of `phases_over_steps`: the mean of each step, averaged over `width` steps around it.

    Phases that fewer than half of the steps have are left out: they are drawn as points.

    Returns:
        Columns `by`, phase, step and average (seconds), by step.
    """
    lines = timing.groupby([by, "phase", "step"])["seconds"].mean().rename("average").reset_index()
    steps_of_phase = lines.groupby([by, "phase"])["step"].transform("size")
    lines = lines[2 * steps_of_phase >= lines.groupby(by)["step"].transform("nunique")]
    average = lines.groupby([by, "phase"])["average"].transform(
        lambda seconds: seconds.rolling(width, center=True, min_periods=1).mean()
    )
    return lines.assign(average=average)


def mean_table(timing: pd.DataFrame, *, by: str = "launch") -> pd.DataFrame:
    """Mean seconds of every phase with the 10th and 90th percentile of its steps.

    Returns:
        Columns `by`, phase, mean, low, high (seconds) and steps (how many have the phase).
    """
    drawn = timing[timing["kind"] != Kind.DETAIL]
    seconds = drawn.groupby([by, "phase"], sort=False)["seconds"]
    table = pd.DataFrame(
        {"mean": seconds.mean(), "low": seconds.quantile(0.1), "high": seconds.quantile(0.9), "steps": seconds.size()}
    )
    return table.reset_index()


def mean_per_phase(
    means: pd.DataFrame,
    *,
    by: str = "launch",
    interval: str | None = "10th to 90th percentile of the steps",
    seconds: str = "mean seconds of the steps that have the phase",
) -> Figure:
    """Mean seconds of every phase as bars, those of the values of `by` beside each other.

    Args:
        means: columns `by`, phase, mean, and where there is an interval low and high, all in seconds; NaN bounds
            are not drawn.
        by: the column whose values stand beside each other, told apart by hatch.
        interval: what low and high are, for the axis label; None draws no whiskers.
        seconds: what mean is, for the axis label.
    """
    phases = phase_order(means["phase"])
    colors = phase_colors(phases)
    groups = list(means[by].unique())
    height = 0.84 / len(groups)
    told = scale("s", means["mean"])
    figure = Figure(figsize=(8.5, 1.5 + len(phases) * max(0.4, 0.2 * len(groups))), layout="constrained")
    axes = figure.subplots()
    for index, group in enumerate(groups):
        rows = means[means[by] == group].set_index("phase").reindex(phases)
        positions = [place + (index + 0.5) * height - 0.42 for place in range(len(phases))]
        axes.barh(
            positions,
            rows["mean"],
            height=height * 0.92,
            color=[colors[phase] for phase in phases],
            hatch=hatch(index),
            edgecolor="white",
            linewidth=0,
        )
        ends = rows["mean"]
        if interval is not None:
            _draw_whiskers(axes, rows, positions)
            ends = ends.combine(rows["high"].fillna(0), max)
        for place, mean, end in zip(positions, rows["mean"], ends, strict=True):
            if not math.isnan(mean):
                write_beside(axes, end, place, told.text(mean), "x-small")
    axes.set_yticks(range(len(phases)), [wrap(phase) for phase in phases], parse_math=False)
    axes.set_ylim(len(phases) - 0.45, -0.55)
    axes.margins(x=0.1)
    axes.set_xlim(left=0)
    axes.set_xlabel(seconds + (f"\nwhiskers: {interval}" if interval else ""))
    frame_panels([axes], grid="x")
    if len(groups) > 1:
        hatch_legend(figure, map(str, groups))
    else:
        set_title(axes, str(groups[0]))
    return figure


def share_of_step(timing: pd.DataFrame, *, by: str = "launch") -> Figure:
    """The share of the step that each phase takes: sum of its seconds over the sum of the step's seconds.

    Where phases run one after the other they are stacked and fill the step together with `unattributed`. Where
    they overlap each has a bar of its own from zero, and the sum of the shares stands beside the name. A log
    without step times shows shares of the timed phases, and says so.

    Args:
        timing: columns `by`, launch, step, phase, seconds, kind, as `Timings.tidy` gives them.
        by: the column whose values get a block of bars each.
    """
    blocks = [_share_block(str(group), timing[timing[by] == group]) for group in timing[by].unique()]
    phases = phase_order(phase for block in blocks for phase in block.shares.index)
    colors = phase_colors(phases)
    height = sum(block.height + BLOCK_GAP for block in blocks)
    figure = Figure(figsize=(10.5, max(3.0, 1.4 + 0.7 * height)), layout="constrained")
    axes = figure.subplots()
    top, middles = 0.0, []
    for block in blocks:
        _draw_shares(axes, block, colors, top)
        middles.append(top + block.height / 2)
        top += block.height + BLOCK_GAP
    axes.set_yticks(middles, [block.name for block in blocks], parse_math=False)
    axes.set_ylim(top - BLOCK_GAP / 2, -BLOCK_GAP / 2)
    axes.set_xlim(0, max(block.reach for block in blocks))
    axes.set_xlabel("share of the step time, %")
    frame_panels([axes], grid="x")
    handles = [Patch(facecolor=colors[phase], label=literal(wrap(phase))) for phase in phases]
    figure.legend(handles=handles, loc="outside right upper", frameon=False, title="phase")
    return figure


def share_table(timing: pd.DataFrame) -> "pd.Series[float]":
    """Percent of the step time per phase, over the steps of `timing` that have a step time.

    Without step times the whole is the sum of the timed phases. Phases that overlap add up to more than 100.

    Args:
        timing: columns launch, step, phase, seconds, kind, of one launch or of all launches of a placement.
    """
    inside = timing[timing["kind"].isin([Kind.PHASE, Kind.OVERLAP, Kind.UNATTRIBUTED])]
    steps = timing[timing["kind"] == Kind.STEP]
    if not steps.empty:
        inside = inside.merge(steps[["launch", "step"]], on=["launch", "step"])
    whole = float((inside if steps.empty else steps)["seconds"].sum())
    shares = 100 * inside.groupby("phase")["seconds"].sum() / (whole or float("nan"))
    return shares.reindex(phase_order(shares.index)).dropna()


def _draw_series(
    axes: Axes, points: pd.DataFrame, line: pd.DataFrame, color: str, style: LineStyle, *, smoothed: bool
) -> None:
    """Draw one phase: a line, and the single steps as faint points where the line is an average of them."""
    if len(line) < 2:
        axes.plot(points["step"], points["seconds"], color=color, linestyle="none", marker="D", markersize=4)
        return
    averaged = smoothed or len(points) > len(line)
    if averaged:
        axes.plot(
            points["step"], points["seconds"], color=color, linestyle="none", marker=".", markersize=3, alpha=0.25
        )
    marker = "o" if len(line) <= 30 and not averaged else None
    axes.plot(line["step"], line["average"], color=color, linestyle=style, linewidth=1.5, marker=marker, markersize=3)


def _draw_whiskers(axes: Axes, rows: pd.DataFrame, positions: Sequence[float]) -> None:
    """Gray with a white rim: to be seen on the black bar of the step as well as on the paper."""
    below = (rows["mean"] - rows["low"]).clip(lower=0)
    above = (rows["high"] - rows["mean"]).clip(lower=0)
    for color, width in (("white", 3.0), ("#555555", 1.2)):
        axes.errorbar(rows["mean"], positions, xerr=[below, above], fmt="none", ecolor=color, elinewidth=width)


def _share_block(name: str, timing: pd.DataFrame) -> _ShareBlock:
    shares = share_table(timing)
    kinds = set(timing["kind"])
    label = wrap(name)
    if shares.empty:
        return _ShareBlock(f"{label}\n(no phases inside the step)", shares, stacked=True)
    if Kind.STEP not in kinds:
        label += "\n(no step time: shares of the timed phases)"
    if Kind.OVERLAP in kinds:
        label += f"\n(phases {'overlap' if shares.sum() > 101 else 'may overlap'}: shares sum to {shares.sum():.0f} %)"
    return _ShareBlock(label, shares, stacked=Kind.OVERLAP not in kinds)


def _draw_shares(axes: Axes, block: _ShareBlock, colors: Mapping[str, str], top: float) -> None:
    left = 0.0
    for lane, (phase, share) in enumerate(block.shares.items()):
        color = colors[str(phase)]
        if block.stacked:
            axes.barh(top + 0.5, share, left=left, height=1.0, color=color, edgecolor="white", linewidth=0.8)
            if share >= 4:
                axes.text(left + share / 2, top + 0.5, f"{share:.0f}", color=ink(color), ha="center", va="center")
            left += share
        else:
            place = top + (lane + 0.5) * LANE
            axes.barh(place, share, height=LANE * 0.9, color=color)
            axes.text(share + 0.8, place, f"{share:.1f}", ha="left", va="center", fontsize="small")
