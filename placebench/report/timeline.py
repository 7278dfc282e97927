"""The timeline: one typical step of every placement, devices as rows, phases as bars, to one scale."""

from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from placebench.compare.comparison import Comparison
from placebench.compare.measure.critical_path import Segment, SpanGraph
from placebench.compare.measure.placements import RunSide
from placebench.compare.measure.steps import Flags, Step, split_steps
from placebench.compare.metrics import STEP_TIME
from placebench.report.lanes import VISIBLE, lanes_of
from placebench.report.palette import phase_colors
from placebench.report.style import WIDTH, ink, set_bold_title, whole
from placebench.spec.bound import RunPlacement
from placebench.spec.phases import phase_order
from placebench.spec.text import quantity, scale
from placebench.telemetry.spans import CONTROLLER

ROW_HEIGHT = 0.3
BAR = 0.82
# Width of a character of a bar's label and of the plotting area, in points: what fits is written into the bar.
CHARACTER = 4.4
AREA = 430.0
PATH_WIDTH = 1.8
IDLE_COLOR = "#ececec"
# Of a row that is cut into more lanes, for processes that share a device, none is high enough for a label.
MOST_LABELED_LANES = 2


@dataclass(frozen=True)
class TypicalStep:
    """The measured step whose time is nearest to the placement's."""

    round: int
    """Round of its launch."""
    step: Step
    """The step."""
    path: tuple[Segment, ...]
    """Its critical path; empty where it has none."""
    placement: RunPlacement
    """The placement on the devices of its launch."""


def typical_step(side: RunSide) -> TypicalStep | None:
    """Choose the step to show; None where no launch has finished, or no span says when phases ran."""
    if "step_time" not in side.steps:
        return None
    distance = (side.steps["step_time"] - side.value(STEP_TIME.key)).abs()
    row = side.steps.iloc[int(distance.argmin())]
    launch = next(launch for launch in side.launches if launch.round == int(row["round"]))
    if not launch.has_phases:
        return None
    steps = split_steps(launch.spans, launch.last_warmup_step)
    step = next(step for step in steps if step.number == int(row["step"]))
    placed = side.placed(launch)
    graph = SpanGraph(launch.spans, placed, joins_updates=launch.is_of_job)
    path = graph.critical_path(step.number) if launch.has_path else ()
    return TypicalStep(launch.round, step, path, placed)


def timeline(comparison: Comparison) -> Figure | None:
    """Draw the typical step of every placement that has one; None where none has."""
    chosen = [(side, typical) for side in comparison.placements if (typical := typical_step(side))]
    if not chosen:
        return None
    colors = phase_colors(phase for _, typical in chosen for phase in typical.step.phases)
    longest = max(typical.step.end - typical.step.start for _, typical in chosen)
    work = max(typical.step.length(typical.step.during(_works(typical.step, CONTROLLER))) for _, typical in chosen)
    first_rows = [CONTROLLER] if work >= VISIBLE * longest else []
    rows = [len(first_rows) + len(side.placement.devices) for side, _ in chosen]
    height = sum(rows) * ROW_HEIGHT + 0.45 * len(rows) + 1.2
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    panels: list[Axes] = list(figure.subplots(len(rows), 1, sharex=True, squeeze=False, height_ratios=rows).flat)
    for axes, (side, typical) in zip(panels, chosen, strict=True):
        names = [*first_rows, *typical.placement.devices]
        _draw_step(axes, typical.step, names, colors, longest)
        _draw_path(axes, typical, names)
        _name_rows(axes, side, typical, names)
    panels[-1].set_xlim(0, longest * 1.01)
    panels[-1].set_xlabel("seconds from the start of the step")
    phases = phase_order(colors)
    handles: list[Artist] = [Patch(facecolor=colors[phase], label=phase) for phase in phases]
    handles.append(Patch(facecolor=IDLE_COLOR, label="waiting"))
    if any(typical.path for _, typical in chosen):
        handles.append(Line2D([], [], color="black", linewidth=PATH_WIDTH, label="critical path"))
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize="small")
    return figure


def _works(step: Step, device: str) -> Flags:
    return np.asarray(step.works & (step.device == device))


def _draw_step(axes: Axes, step: Step, devices: list[str], colors: dict[str, str], longest: float) -> None:
    """The bars of one step: a row a device, the part of the step in which it waits in gray."""
    seconds = step.end - step.start
    starts = np.concatenate([[0.0], np.cumsum(step.seconds)])
    for row, device in enumerate(devices):
        if device != CONTROLLER:
            axes.barh(row, seconds, height=BAR, color=IDLE_COLOR)
        spans = np.flatnonzero(_works(step, device) & step.active.any(axis=1))
        begins = [float(starts[step.active[span].argmax()]) for span in spans]
        bars = [(start, start + step.length(step.active[span])) for span, start in zip(spans, begins, strict=True)]
        for span, (start, end), (lane, lanes) in zip(spans, bars, lanes_of(bars, longest), strict=True):
            phase, width, height = str(step.phase[span]), end - start, BAR / lanes
            middle = row - BAR / 2 + (lane + 0.5) * height
            axes.barh(middle, width, left=start, height=height, color=colors[phase], edgecolor="white", linewidth=0.4)
            if lanes <= MOST_LABELED_LANES:
                label_bar(axes, middle, start, width, phase, colors[phase], longest)
    axes.axvline(seconds, color="black", linewidth=1)


def _draw_path(axes: Axes, typical: TypicalStep, devices: list[str]) -> None:
    """One line through the step: along the lower edge of the bars on the path, and across the gaps between them."""
    times: list[float] = []
    rows: list[int] = []
    for segment in typical.path:
        among = [devices.index(device) for device in _last_devices(typical.step, segment) if device in devices]
        if among:
            times += [segment.start - typical.step.start, segment.end - typical.step.start]
            rows += [rows[-1] if rows and rows[-1] in among else among[-1]] * 2
    axes.plot(times, [row + BAR / 2 for row in rows], color="black", linewidth=PATH_WIDTH, zorder=3)


def _last_devices(step: Step, segment: Segment) -> list[str]:
    """The device that ended a phase last, after those that ended so little earlier that the line need not change row.

    None for a gap.
    """
    if segment.is_gap:
        return []
    late = step.ends >= segment.end - VISIBLE * (step.end - step.start)
    return [*step.device[step.works & (step.phase == segment.phase) & late], str(segment.device)]


def _name_rows(axes: Axes, side: RunSide, typical: TypicalStep, devices: list[str]) -> None:
    labels = side.run.labels
    names = [
        CONTROLLER if device == CONTROLLER else f"{labels[device]} · {typical.placement.pool_of(device)}"
        for device in devices
    ]
    axes.set_yticks(range(len(names)), names, fontsize="small", parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    seconds = quantity(typical.step.end - typical.step.start, "s")
    set_bold_title(axes, f"{side.name}: step of {whole(seconds)}")
    where = f"round {typical.round}, step {typical.step.number}"
    axes.set_title(where, loc="right", fontsize="small", color="#555555")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def label_bar(axes: Axes, row: float, start: float, width: float, phase: str, color: str, longest: float) -> None:
    """Write the phase's name into its bar, with its seconds where there is room."""
    room = width / longest * AREA / CHARACTER
    seconds = scale("s", [longest]).text(width)
    text = next((text for text in (f"{phase}  {seconds}", phase) if len(text) <= room), None)
    if text:
        axes.text(
            start + width / 2, row, text, color=ink(color), ha="center", va="center", fontsize=7.5, parse_math=False,
            in_layout=False,
        )  # fmt: skip
