"""How near each phase of every placement came to the peak of its devices, as bars."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from placebench.compare.comparison import Comparison
from placebench.compare.measure.placements import RunSide
from placebench.compare.metrics import EFFICIENCY
from placebench.logs.timing import phase_order
from placebench.report.style import WIDTH, frame_panels, hatch, hatch_legend, phase_colors

GROUP = 0.84


def shares_of_peak(comparison: Comparison) -> Figure | None:
    """MFU and MBU of every phase, placements beside each other; None where no placement has any."""
    found = {
        metric.key.partition("/")[2]: metric
        for metric in EFFICIENCY
        if metric.unit == "1" and any(side.estimate(metric.key).n for side in comparison.placements)
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


def _draw_share(axes: Axes, side: RunSide, key: str, place: float, height: float, color: str, pattern: str) -> None:
    """A bar with its number, and the range of the launches where there are several."""
    if not side.estimate(key).n:
        return
    share = 100 * side.value(key)
    axes.barh(place, share, height=height * 0.92, color=color, hatch=pattern, edgecolor="white", linewidth=0)
    launches = 100 * side.launch_values[key].dropna()
    if len(launches) > 1:
        axes.plot([launches.min(), launches.max()], [place, place], color="black", linewidth=1)
    end = (max(share, launches.max()), place)
    axes.annotate(f"{share:.1f}", end, (4, 0), textcoords="offset points", va="center", fontsize="x-small")
