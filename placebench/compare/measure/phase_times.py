"""What the finished placements of a run tell of the times of phases on other numbers of devices."""

from collections.abc import Sequence
from statistics import fmean

from placebench.compare.breakdown import path_parts
from placebench.compare.comparison import PlacementResult
from placebench.predict.forecast import Forecaster, PhaseTimes


def forecaster(results: Sequence[PlacementResult]) -> Forecaster | None:
    """Learn from the finished placements of a run; None without any.

    Replicas are left out: their devices keep whole models, so that their phases are others.
    """
    known = [(result, parts) for result in results if not result.placement.scaling and (parts := path_parts(result))]
    if not known:
        return None
    times: dict[str, dict[int, list[float]]] = {}
    gaps: dict[int, list[float]] = {}
    for result, parts in known:
        for part in parts:
            if not part.is_gap:
                pool = result.role_pool(part.phase)
                devices = len(result.placement.pools[pool]) if pool else 0
                times.setdefault(part.phase, {}).setdefault(devices, []).append(part.whole)
        gaps.setdefault(len(result.placement.pools), []).append(sum(part.on_path for part in parts if part.is_gap))
    return Forecaster(
        {phase: PhaseTimes({count: fmean(found) for count, found in by.items()}) for phase, by in times.items()},
        {count: fmean(found) for count, found in gaps.items()},
    )
