"""The look that all figures share: a color for each phase, labels, and how figures are saved."""

import io
import re
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Literal, TypeAlias

import matplotlib as mpl
import matplotlib.colors
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Annotation, Text
from matplotlib.ticker import ScalarFormatter

from placebench.report.columns import broken
from placebench.report.palette import PHASE_COLORS
from placebench.spec.legible import visible_lines
from placebench.spec.phases import STEP

# Lines alone: with dots a vector graphic is many times as large.
HATCHES = ("", "////", "\\\\\\\\", "xx", "--", "||", "++", "//--")
LineStyle: TypeAlias = Literal["-"] | tuple[float, Sequence[float]]
LINE_STYLES: tuple[LineStyle, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)))

LABEL_WIDTH = 40
# Of a panel's bold title, characters.
TITLE_WIDTH = 56
# Of the report's figures, inches.
WIDTH = 7.2
# Of figures made of pixels, per inch.
DPI = 150
# Of a figure and of its lines of text on a phone: inches, characters.
NARROW_WIDTH, NARROW_LABEL, NARROW_TITLE, NARROW_NOTE = 4.0, 16, 34, 26
# What a tick with a number of four characters takes of the length of an axis there.
NARROW_TICK_ROOM = 0.2


def line_style(phase: str, phases: Sequence[str]) -> LineStyle:
    """The line of a phase, so that color is not all that tells phases apart; `phases` are all that are drawn."""
    if phase == STEP:
        return "-"
    known = list(PHASE_COLORS)
    return LINE_STYLES[(known if phase in known else phases).index(phase) % len(LINE_STYLES)]


def hatch(index: int) -> str:
    """The hatch of the bars of a launch or placement, by its place among those drawn."""
    return HATCHES[index % len(HATCHES)]


def hatch_legend(figure: Figure, names: Iterable[str]) -> None:
    """Tell, above a figure, which hatch is whose; names in the order of `hatch`."""
    handles = [
        Patch(facecolor="#888888", edgecolor="white", hatch=hatch(index), label=literal(wrap(name)))
        for index, name in enumerate(names)
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=2, frameon=False)


def ink(color: str) -> str:
    """Black or white, whichever is read better on a color."""
    red, green, blue = mpl.colors.to_rgb(color)
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "white"


def wrap(text: str) -> str:
    """A name broken into lines that fit beside a figure."""
    return broken(text, LABEL_WIDTH)


def whole(number: str) -> str:
    """A number that is not broken from its unit."""
    return number.replace(" ", "\u00a0")


def literal(label: str) -> str:
    """A label that matplotlib shows as it is: a leading underscore would hide it, a dollar would start a formula."""
    return (f" {label}" if label.startswith("_") else label).replace("$", r"\$")


def set_title(axes: Axes, text: str) -> None:
    """Put a panel's name above it, as it is written."""
    axes.set_title(wrap(text), fontsize="medium", loc="left", parse_math=False)


def set_bold_title(axes: Axes, text: str) -> None:
    """As `set_title`, where the panels are as wide as the figure."""
    axes.set_title(broken(text, TITLE_WIDTH), fontsize="medium", fontweight="bold", loc="left", parse_math=False)


def write_beside(axes: Axes, x: float, y: float, text: str, fontsize: float | str) -> None:
    """Write a number behind the end of a bar."""
    axes.annotate(text, (x, y), (4, 0), textcoords="offset points", va="center", fontsize=fontsize)


def frame_panels(panels: Iterable[Axes], grid: Literal["x", "y"] = "y") -> None:
    """Take away the frame of panels and give them a quiet grid across the bars or lines."""
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis=grid, color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)


def lay_out_narrowly(figure: Figure) -> None:
    """Lay a figure out for the width of a phone: panels and legends under each other, texts on more lines."""
    panels = [axes for axes in figure.axes if axes.get_visible()]
    rows = len({spec.rowspan.start for axes in panels if (spec := axes.get_subplotspec())})
    if rows < len(panels):
        grid = figure.add_gridspec(len(panels), 1)
        for place, axes in enumerate(panels):
            axes.set_subplotspec(grid[place])
            axes.tick_params(axis="y", labelleft=True)  # also of what stood beside another one with the same scale
    for axes in panels:
        title, where = axes.get_title(loc="left"), axes.get_title(loc="right")
        lines = "\n".join(filter(None, (_broken_anew(title, NARROW_TITLE), where)))
        axes.set_title(lines, fontsize="medium", fontweight="bold", loc="left", parse_math=False)
        axes.set_title("", loc="right")
        axes.set_xlabel("\n".join(broken(line, NARROW_TITLE) for line in axes.get_xlabel().splitlines()))
        if axes.get_xscale() == "log":
            _thin_out(axes)
        names = [_broken_anew(label.get_text(), NARROW_LABEL) for label in axes.get_yticklabels()]
        if not isinstance(axes.yaxis.get_major_formatter(), ScalarFormatter):
            axes.set_yticks(axes.get_yticks(), names, parse_math=False)
        for text in axes.texts:
            text.set_text(_broken_anew(text.get_text(), NARROW_NOTE))
            text.set_visible(isinstance(text, Annotation))  # what stands inside a bar has no room there
    entries = 0
    for legend in figure.legends:
        handles = [handle for handle in legend.legend_handles if handle]
        labels = [_broken_anew(text.get_text(), NARROW_NOTE) for text in legend.get_texts()]
        legend.remove()
        figure.legend(handles, labels, loc="outside upper left", ncols=2, frameon=False, fontsize="small")
        entries += len(labels)
    height = figure.get_figheight() * len(panels) / rows + 0.2 * len(panels) + 0.1 * entries
    figure.set_size_inches(NARROW_WIDTH, height)
    figure.set_layout_engine("constrained")


def _broken_anew(text: str, width: int) -> str:
    """A text that has been broken, broken for another width; no blank comes where its lines were parts of one name."""
    return broken(re.sub(r"(?<=\S-)\n|\n(?=[+/]\S)", "", text), width)


def _thin_out(axes: Axes) -> None:
    """Leave ticks around 1 that do not meet each other."""
    low, high = np.log(axes.get_xlim())
    kept: list[float] = []
    for tick in sorted(map(float, axes.get_xticks()), key=lambda tick: abs(np.log(tick))):
        if all(abs(np.log(tick / other)) >= NARROW_TICK_ROOM * (high - low) for other in kept):
            kept.append(tick)
    axes.set_xticks(sorted(kept), [f"{tick:g}" for tick in sorted(kept)])


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the path's suffix (png, svg, pdf); the same figure gives the same bytes."""
    _save(figure, path, path.suffix.lstrip("."))


def svg_text(figure: Figure, kind: str = "") -> str:
    """A figure as an `<svg>` element to embed in HTML: no XML header, text kept as text.

    Args:
        figure: the figure.
        kind: what tells its ids from those of another version of it on the same page.
    """
    stream = io.StringIO()
    _save(figure, stream, "svg", kind)
    text = stream.getvalue()
    return text[text.index("<svg") :]


def png_bytes(figure: Figure) -> bytes:
    """A figure as the content of a PNG file."""
    stream = io.BytesIO()
    _save(figure, stream, "png")
    return stream.getvalue()


def _make_legible(figure: Figure) -> None:
    """Let a figure show of names what can be looked at and has room; some characters are no XML, and others no text."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            labels = [label.get_text() for label in axis.get_ticklabels()]
            if (shown := [_fitting(label, LABEL_WIDTH // 2 + 5) for label in labels]) != labels:
                axis.set_ticklabels(shown)
    for text in figure.findobj(Text):
        text.set_text(_fitting(text.get_text(), LABEL_WIDTH + 5))


def _fitting(text: str, width: int) -> str:
    """Text without what cannot be seen, and without the middle of its longest lines."""
    lines = visible_lines(text).split("\n")
    return "\n".join(line if len(line) <= 2 * width else f"{line[:width]}…{line[-width + 1 :]}" for line in lines)


class _MeasuringCanvas(FigureCanvasAgg):
    """The canvas on which figures are laid out, never drawn: one renderer knows every text that it has measured."""

    def get_renderer(self) -> RendererAgg:
        """The renderer that all figures share."""
        return _measuring_renderer()


@cache
def _measuring_renderer() -> RendererAgg:
    return RendererAgg(1, 1, DPI)  # type: ignore[no-untyped-call]


def _lay_out(figure: Figure) -> None:
    """Place the parts of a figure, for good; with a layout engine, each file would be drawn twice."""
    if engine := figure.get_layout_engine():
        _make_legible(figure)
        for axes in figure.axes:
            axes.set_title("", y=1.0)  # which no tick is above: matplotlib need not look for one at every drawing
            for axis in (axes.xaxis, axes.yaxis):
                if not axis.get_label_text():
                    axis.set_label_coords(0, 0)  # nor for the place of a label that is not there
        figure.set_dpi(DPI)
        _MeasuringCanvas(figure)
        engine.execute(figure)
        figure.set_layout_engine(None)
        FigureCanvasBase(figure)


def _save(figure: Figure, target: Path | IO[str] | IO[bytes], file_format: str, kind: str = "") -> None:
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(file_format)
    # Without hinting, text is measured as wide as a browser draws it: else long names stick out of the figure.
    with (
        mpl.rc_context({"svg.hashsalt": f"placebench{kind}", "svg.fonttype": "none", "text.hinting": "no_hinting"}),
        warnings.catch_warnings(),
    ):
        # A log's name may hold letters that the font lacks: boxes in the picture, no reason to warn.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from", category=UserWarning)
        # Beside names of hundreds of letters there is no room for bars.
        warnings.filterwarnings("ignore", message="constrained_layout not applied", category=UserWarning)
        _lay_out(figure)
        figure.savefig(target, format=file_format, dpi=DPI, metadata=undated)
