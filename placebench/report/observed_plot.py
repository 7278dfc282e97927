"""Roles and the devices on which they were seen, as a grid of shares of the step."""

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from placebench.compare.comparison import Comparison
from placebench.compare.measure.observed import UNKNOWN, Arrangement
from placebench.compare.measure.placements import RunSide
from placebench.report.style import WIDTH, ink, set_bold_title
from placebench.spec.text import Scale

TITLE = "Who sits where"
CAPTION = (
    "Each role with the pool that was asked for, and the devices on which its phases were seen: their share of the"
    " measured steps in percent; white is no work. Where launches of a placement differ, most had this arrangement."
)
ROW_HEIGHT = 0.3
BAR = 0.9
PERCENT = Scale("", 0.01, 0)
# With more devices there is no room for numbers, and for the names of some of them only.
MOST_NUMBERS = 16
# Characters of the devices' names that have room beside each other.
ROOM = 70


def roles_on_devices(comparison: Comparison) -> Figure | None:
    """Draw where the roles of every placement were; None where no spans tell."""
    chosen = [
        (side, side.arrangements[0])
        for side in comparison.placements
        if side.arrangements and UNKNOWN not in set(side.arrangements[0].seen["role"])
    ]
    if not chosen:
        return None
    rows = [found.seen["role"].nunique() for _, found in chosen]
    figure = Figure(figsize=(WIDTH, ROW_HEIGHT * sum(rows) + 0.75 * len(rows) + 0.4), layout="constrained")
    panels = list(figure.subplots(len(rows), 1, squeeze=False, height_ratios=rows).flat)
    for axes, (side, found) in zip(panels, chosen, strict=True):
        _draw(axes, side, found)
    return figure


def _draw(axes: Axes, side: RunSide, found: Arrangement) -> None:
    devices = [device for device in side.run.labels if device in side.placement.devices]
    roles = list(dict.fromkeys(found.seen["role"]))
    for role, device, share in zip(found.seen["role"], found.seen["device"], found.seen["share"], strict=True):
        color = to_hex(colormaps["Blues"](0.15 + 0.75 * share) if share else "#ffffff")
        row, column = roles.index(role), devices.index(device)
        axes.barh(row, BAR, left=column - BAR / 2, height=BAR, color=color, edgecolor="#888888", linewidth=0.4)
        if len(devices) <= MOST_NUMBERS:
            text = PERCENT.text(share)
            axes.annotate(
                text, (column, row), color=ink(color), ha="center", va="center", fontsize=7.5, in_layout=False
            )
    labels = [side.run.labels[device] for device in devices]
    every = -(-len(devices) // MOST_NUMBERS)
    shown = labels[::every]
    axes.set_xticks(range(0, len(devices), every), shown, fontsize="small", parse_math=False)
    if sum(map(len, shown)) > ROOM:
        axes.tick_params(axis="x", labelrotation=90)
    asked = {role: side.placement.roles.get(role) for role in roles}
    names = [f"{role} · {pool} ({len(side.placement.pools[pool])})" if pool else role for role, pool in asked.items()]
    axes.set_yticks(range(len(roles)), names, fontsize="small", parse_math=False)
    axes.set_xlim(-0.5, len(devices) - 0.5)
    axes.set_ylim(len(roles) - 0.5, -0.5)
    some = len(found.rounds) < len(side.launches)
    set_bold_title(axes, f"{side.name}{f': {len(found.rounds)} of {len(side.launches)} launches' if some else ''}")
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
