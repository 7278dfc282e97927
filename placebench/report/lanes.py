"""Bars of one row that overlap in time, as of processes that share a device, get lanes of it below each other."""

from collections.abc import Sequence

# Less than this share of a row's time cannot be seen.
VISIBLE = 0.003


def lanes_of(bars: Sequence[tuple[float, float]], whole: float) -> list[tuple[int, int]]:
    """The lane of its row that each bar gets, and of how many: of one where nothing is beside it that can be seen.

    Args:
        bars: start and end of each, the end of one that goes on infinite.
        whole: the row's time.
    """
    least = VISIBLE * whole
    found = [(0, 1)] * len(bars)
    group: list[int] = []
    ends: list[float] = []  # of each lane of the group
    for bar in sorted(range(len(bars)), key=bars.__getitem__):
        start, end = bars[bar]
        if all(last <= start + least for last in ends):
            group, ends = [], []
        lane = next((lane for lane, last in enumerate(ends) if last <= start + least), len(ends))
        ends[lane : lane + 1] = [end]
        group.append(bar)
        found[bar] = lane, len(ends)
        for other in group:
            found[other] = found[other][0], len(ends)
    return found
