"""From one step time to another: what each phase of the critical path, and the gaps between them, add and take."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from placebench.compare.comparison import Comparison
from placebench.compare.explain.breakdown import PartChange, StepChange, step_changes
from placebench.compare.metrics import NOTABLE
from placebench.report.palette import phase_colors
from placebench.report.style import WIDTH, set_bold_title, whole, wrap, write_beside
from placebench.spec.phases import STEP, UNATTRIBUTED
from placebench.spec.text import Scale, scale

ROW_HEIGHT = 0.3
BAR = 0.7
# Room right of the bars, as a share of the axis; the numbers beside them stand in the margin.
MARGIN = 0.05


@dataclass(frozen=True)
class _Bar:
    """One row: its name, the seconds that it adds, and a word on why."""

    name: str
    color: str
    seconds: float
    note: str = ""


def waterfall(comparison: Comparison) -> Figure | None:
    """Draw the difference of every side's step to the first's, part by part; None where no paths are known."""
    changes = step_changes(comparison)
    if not changes:
        return None
    colors = phase_colors([*comparison.phases, STEP, UNATTRIBUTED])
    told = scale("s", [seconds for _, change in changes for seconds in (change.first_s, change.other_s)])
    bars = [_bars(change, colors, told) for _, change in changes]
    rows = [len(group) + 2 for group in bars]
    figure = Figure(figsize=(WIDTH, 0.9 + ROW_HEIGHT * sum(rows) + 0.6 * len(rows)), layout="constrained")
    panels: list[Axes] = list(figure.subplots(len(rows), 1, squeeze=False, height_ratios=rows).flat)
    for axes, group, (name, change) in zip(panels, bars, changes, strict=True):
        _draw(axes, (comparison.first.name, name), change, group, told)
    panels[-1].set_xlabel("seconds of the step")
    return figure


def _bars(change: StepChange, colors: dict[str, str], told: Scale) -> list[_Bar]:
    """The phases that differ enough to be seen, in the step's order, then the gaps and all that are smaller."""
    least = NOTABLE * min(change.first_s, change.other_s)
    shown = [part for part in change.phases if abs(part.difference) >= least]
    bars = [
        _Bar(part.first.phase, colors[part.first.phase], part.difference, _note(part, least, told)) for part in shown
    ]
    gaps = sum(part.difference for part in change.parts if part.first.is_gap)
    rest = change.difference - sum(bar.seconds for bar in bars)
    if abs(gaps) >= least:
        bars.append(_Bar("gaps between phases", colors[UNATTRIBUTED], gaps))
        rest -= gaps
    return [*bars, _Bar("smaller parts", colors[UNATTRIBUTED], rest)] if abs(rest) >= least / 10 else bars


def _note(part: PartChange, least: float, told: Scale) -> str:
    """How much of the difference is the phase itself and how much is hidden, where both play a part."""
    if abs(part.hidden) < least:
        return ""
    words = [f"{whole(told.text(abs(part.hidden)))} {'more' if part.hidden > 0 else 'less'} hidden"]
    if abs(part.longer) >= least:
        words.insert(0, f"takes {whole(told.text(abs(part.longer)))} {'longer' if part.longer > 0 else 'less'}")
    return ", ".join(words)


def _draw(axes: Axes, names: tuple[str, str], change: StepChange, bars: Sequence[_Bar], told: Scale) -> None:
    """A bar for each step time, and between them one for each part, from where the one before it ended."""
    first, other = names
    axes.barh(0, change.first_s, height=BAR, color="#555555")
    axes.barh(len(bars) + 1, change.other_s, height=BAR, color="#555555")
    at = highest = change.first_s
    for row, bar in enumerate(bars, start=1):
        axes.barh(row, bar.seconds, left=at, height=BAR, color=bar.color, edgecolor="black", linewidth=0.4)
        axes.plot([at, at], [row - 1, row], color="#555555", linewidth=0.7, zorder=0)
        text = f"{told.signed(bar.seconds)}{f'  ({bar.note})' if bar.note else ''}"
        write_beside(axes, max(at, at + bar.seconds), row, text, 7.5)
        at += bar.seconds
        highest = max(highest, at)
    axes.plot([at, at], [len(bars), len(bars) + 1], color="#555555", linewidth=0.7, zorder=0)
    for row, seconds in ((0, change.first_s), (len(bars) + 1, change.other_s)):
        write_beside(axes, seconds, row, told.text(seconds), 7.5)
    axes.set_yticks(
        range(len(bars) + 2), [wrap(name) for name in (first, *(bar.name for bar in bars), other)], parse_math=False
    )
    axes.tick_params(axis="y", length=0, labelsize="small")
    axes.set_ylim(len(bars) + 1.5, -0.5)
    axes.set_xlim(0, highest * (1 + MARGIN))
    set_bold_title(axes, f"{other} against {first}: {whole(told.signed(change.difference))}")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
