"""A predicted step of every placement, drawn as a measured one is: pools as rows, phases as bars, to one scale."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from placebench.errors import UsageError
from placebench.predict.prediction import Predictions
from placebench.predict.step import PredictedSpan, PredictedStep
from placebench.report.palette import phase_colors
from placebench.report.style import WIDTH, save_figure, set_bold_title
from placebench.report.timeline import BAR, IDLE_COLOR, ROW_HEIGHT, label_bar
from placebench.spec.phases import phase_order
from placebench.spec.text import plural, quantity

_SUFFIXES = (".svg", ".png", ".pdf")


def refuse_other_formats(path: Path) -> None:
    """Refuse a file of a format that is not drawn.

    Raises:
        UsageError: its suffix is of none that is.
    """
    if path.suffix not in _SUFFIXES:
        raise UsageError(f"--plot {path}: name a file that ends in {', '.join(_SUFFIXES)}")


def draw_predictions(found: Predictions, path: Path) -> None:
    """Draw a step of each placement into a file.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        save_figure(predicted_timeline([one.step for one in found.placements]), path)
    except OSError as error:
        raise UsageError(f"--plot {path}: cannot write it: {error.strerror}") from None


def predicted_timeline(steps: Sequence[PredictedStep]) -> Figure:
    """A row for each pool of each placement, its phases as bars, gray where it waits."""
    longest = max(step.seconds for step in steps)
    colors = phase_colors(span.phase for step in steps for span in step.spans)
    rows = [len(step.placement.pools) for step in steps]
    height = sum(rows) * ROW_HEIGHT + 0.45 * len(rows) + 1.2
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    panels: list[Axes] = list(figure.subplots(len(rows), 1, sharex=True, squeeze=False, height_ratios=rows).flat)
    for axes, step in zip(panels, steps, strict=True):
        names = [pool.name for pool in step.placement.pools]
        for row in range(len(names)):
            axes.barh(row, step.seconds, height=BAR, color=IDLE_COLOR)
        for span in _within(step):
            row, width = names.index(span.pool), span.end - span.start
            color = colors[span.phase]
            axes.barh(row, width, left=span.start, height=BAR, color=color, edgecolor="white", linewidth=0.4)
            label_bar(axes, row, span.start, width, span.phase, color, longest)
        axes.axvline(step.seconds, color="black", linewidth=1)
        labels = [f"{pool.name} · {plural(pool.size, 'device')}" for pool in step.placement.pools]
        axes.set_yticks(range(len(names)), labels, fontsize="small", parse_math=False)
        axes.set_ylim(len(names) - 0.5, -0.5)
        set_bold_title(axes, f"{step.placement.name}: predicted step of {quantity(step.seconds, 's')}")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    panels[-1].set_xlim(0, longest * 1.01)
    panels[-1].set_xlabel("seconds from the start of the step, gaps at its end")
    figure.legend(handles=list(_legend(colors)), loc="outside lower center", ncols=5, frameon=False, fontsize="small")
    return figure


def _within(step: PredictedStep) -> Iterator[PredictedSpan]:
    """The spans of pools; the controller's own are too short to be seen."""
    return (span for span in step.spans if span.pool and span.end > span.start)


def _legend(colors: dict[str, str]) -> Iterable[Patch]:
    yield from (Patch(facecolor=colors[phase], label=phase) for phase in phase_order(colors))
    yield Patch(facecolor=IDLE_COLOR, label="waiting")
