"""How a phase of which no kernels were traced goes with the number of its devices (Amdahl 1967)."""

from collections.abc import Sequence

import numpy as np


def amdahl_seconds(times: Sequence[tuple[int, float]], devices: int) -> float:
    """Seconds a + b/n on n devices; with one number of devices measured b/n, as if the work were divided perfectly.

    Args:
        times: numbers of devices that were measured, 0 for the controller, and the seconds on them.
        devices: n.
    """
    by_count: dict[int, list[float]] = {}
    for count, seconds in times:
        by_count.setdefault(count, []).append(seconds)
    means = {count: float(np.mean(found)) for count, found in by_count.items()}
    if 0 in means:
        fixed, divided = means[0], 0.0
    elif len(means) == 1:
        ((count, seconds),) = means.items()
        fixed, divided = 0.0, seconds * count
    else:
        from scipy.optimize import nnls

        counts = np.array(list(means), dtype=np.float64)
        (fixed, divided), _ = nnls(np.column_stack([np.ones_like(counts), 1 / counts]), list(means.values()))
    return float(fixed + (divided / devices if devices else 0.0))
