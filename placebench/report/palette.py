"""A color for each phase, the same in every figure and on every page."""

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from placebench.spec.phases import HAND_OVER, PHASES, STEP, UNATTRIBUTED, phase_order

COLORS = Path(__file__).parent / "templates" / "colors.css"
"""The colors of pages, light and dark, as variables of CSS."""
# The step graph's phases, those that hand memory over last, and what is none of its phases.
PHASE_COLORS: Mapping[str, str] = {
    **{phase.name: phase.color for phase in sorted(PHASES, key=lambda phase: phase.name in HAND_OVER)},
    "testing": "#ee7733",
    "save_checkpoint": "#0077bb",
    STEP: "#000000",
    UNATTRIBUTED: "#bbbbbb",
}
# Paul Tol's 'vibrant' and 'high-contrast' schemes for every other phase.
SPARE_COLORS = ("#ee3377", "#ddaa33", "#004488", "#bb5566", "#009988", "#997700")


def phase_colors(phases: Iterable[str]) -> dict[str, str]:
    """A color for each phase; unknown phases get a spare one by their name, the same in every figure.

    Two unknown phases whose names fall on the same spare color are moved apart while spare colors last.
    """
    colors: dict[str, str] = {}
    used: set[int] = set()
    for phase in phase_order(phases):
        if phase in PHASE_COLORS:
            colors[phase] = PHASE_COLORS[phase]
            continue
        slot = zlib.crc32(phase.encode()) % len(SPARE_COLORS)
        while slot in used and len(used) < len(SPARE_COLORS):
            slot = (slot + 1) % len(SPARE_COLORS)
        used.add(slot)
        colors[phase] = SPARE_COLORS[slot]
    return colors
