"""The queue between engines and learners over the steps: how many sequences wait for the trainer."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from placebench.compare.comparison import Comparison
from placebench.compare.measure.placements import RunSide
from placebench.report.style import WIDTH, frame_panels, set_title

MEAN, MOST = "training/queue_mean", "training/queue_max"
TITLE = "Sequences that wait for the trainer"
CAPTION = (
    "Where engines are apart from learners: sequences ready to be trained on in each step, on average and at most, mean"
    " of the launches, warm-up included. The dashed line, batch size · staleness, is where engines have nothing left to"
    " do until the next update."
)
PANEL_COLUMNS = 2
PANEL_HEIGHT = 2.3
COLOR = "#004488"
BAND_COLOR = "#a6bcd3"
AHEAD_STYLE = (0, (5, 2))


def queue_over_steps(comparison: Comparison) -> Figure | None:
    """Sequences that wait in every step, one panel a placement; None where no placement has such a queue."""
    queues = [(side, fill) for side in comparison.placements if not (fill := _fill(side)).empty]
    if not queues:
        return None
    columns = min(len(queues), PANEL_COLUMNS)
    rows = -(-len(queues) // columns)
    figure = Figure(figsize=(WIDTH, PANEL_HEIGHT * rows + 0.7), layout="constrained")
    panels: list[Axes] = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    for panel, (side, fill) in zip(panels, queues, strict=False):
        _draw(panel, side.name, fill, _ahead(side))
    for panel in panels[len(queues) :]:
        panel.set_visible(False)
    panels[0].set_ylim(bottom=0)
    panels[0].yaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    frame_panels(panels[: len(queues)])
    figure.supxlabel("training step", fontsize="medium")
    figure.supylabel("sequences", fontsize="medium")
    handles = [
        Line2D([], [], color=COLOR, linewidth=1.8, label="mean over the step"),
        Patch(facecolor=BAND_COLOR, label="up to the most at a time"),
    ]
    if any(_ahead(side) for side, _ in queues):
        label = "as far ahead as the staleness allows"
        handles.append(Line2D([], [], color="black", linestyle=AHEAD_STYLE, linewidth=1, label=label))
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False, fontsize="small")
    return figure


def _fill(side: RunSide) -> pd.DataFrame:
    """The queue of a placement: `MEAN` and `MOST` in sequences, a row a step from the first to the last; else empty."""
    launches = [launch.steps[[MEAN, MOST]] for launch in side.launches if {MEAN, MOST} <= set(launch.steps)]
    fill = pd.concat(launches).groupby(level="step").mean().dropna() if launches else pd.DataFrame()
    # Steps without a queue are NaN.
    return fill if fill.empty else fill.reindex(range(int(fill.index.min()), int(fill.index.max()) + 1))


def _ahead(side: RunSide) -> int:
    """Sequences that engines may be ahead of the step that trains; 0 at staleness 0, and where not known."""
    batch = side.run.record.workload.get("batch", {})
    return side.placement.staleness * int(batch.get("size", 0))


def _draw(axes: Axes, name: str, fill: pd.DataFrame, ahead: int) -> None:
    """Steps as stairs, each as wide as the step that it is the mean of."""
    mean, most = (fill[column].to_numpy(dtype=np.float64) for column in (MEAN, MOST))
    edges = np.arange(len(fill) + 1) + fill.index[0] - 0.5
    axes.stairs(most, edges, baseline=mean, fill=True, color=BAND_COLOR)
    axes.stairs(mean, edges, baseline=None, color=COLOR, linewidth=1.8)
    if ahead:
        axes.axhline(ahead, color="black", linestyle=AHEAD_STYLE, linewidth=1)
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    axes.margins(x=0)
    set_title(axes, name)
