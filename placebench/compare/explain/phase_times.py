"""What the finished placements of a run tell of the times of phases on other numbers of devices."""

from collections.abc import Sequence
from statistics import fmean

from placebench.compare.explain.breakdown import path_parts
from placebench.compare.measure.placements import RunSide
from placebench.predict.forecast import Forecaster


def forecaster(sides: Sequence[RunSide]) -> Forecaster | None:
    """Learn from the finished placements of a run; None without any.

    Replicas are left out: their devices keep whole models, so that their phases are others.
    """
    known = [(side, parts) for side in sides if not side.placement.scaling and (parts := path_parts(side))]
    if not known:
        return None
    times: dict[str, dict[int, list[float]]] = {}
    gaps: dict[int, list[float]] = {}
    for side, parts in known:
        for part in parts:
            if not part.is_gap:
                pool = side.role_pool(part.phase)
                devices = len(side.placement.pools[pool]) if pool else 0
                times.setdefault(part.phase, {}).setdefault(devices, []).append(part.whole)
        gaps.setdefault(len(side.placement.pools), []).append(sum(part.on_path for part in parts if part.is_gap))
    return Forecaster(
        {phase: {count: fmean(found) for count, found in by.items()} for phase, by in times.items()},
        {count: fmean(found) for count, found in gaps.items()},
    )
