"""The factors of a phase's parts, from what was believed of them and what was measured.

The most probable factors (maximum a posteriori): each is log-normal about what is believed of it, every measured time
log-normal about what the factors give. So a part that nothing measured tells of keeps what is believed, and one that
much was measured of keeps little of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placebench.predict.interval import USUAL_LAUNCH_SD
from placebench.predict.parts import Array, Factor, PhaseParts, split

# How far a measured time is from what its parts would give: kernels repeat within 1 to 6 % between hosts and days, wall
# times as launches of one placement do.
KERNEL_NOISE = 0.02
WALL_NOISE = USUAL_LAUNCH_SD
# What was measured of another model is this much further off: its matrices have other shapes, and kernels other rates.
OTHER_MODEL_NOISE = 0.1
_LEAST_S = 1e-6
# From so many standard deviations on a time counts as held up by something else.
_OUTLIER = 2.0
# Logarithm of how much slower than believed a host is from which the search begins once more.
_SLOW_HOST = 1.5


@dataclass(frozen=True)
class Observation:
    """A phase that was measured: its parts, and seconds; None for what was not measured, or does not count."""

    parts: PhaseParts
    seconds: float | None
    kernel_s: float | None = None
    collective_s: float | None = None
    is_of_model: bool = True
    """Whether it is of the model that is asked about."""


def estimate_factors(beliefs: Mapping[str, Factor], observations: Sequence[Observation], spread: float = 0.0) -> Array:
    """The factors by name, in the order of `beliefs`.

    Args:
        beliefs: what is believed of each before anything was measured.
        observations: what was measured, parts of these names.
        spread: the least standard deviation that any of the beliefs has.
    """
    medians = np.array([one.median for one in beliefs.values()])
    spreads = np.array([max(spread, one.spread) for one in beliefs.values()])
    if not observations:
        return medians
    from scipy.optimize import least_squares

    def residuals(moved: Array) -> Array:
        factors = medians * np.exp(moved * spreads)
        found = [residual for one in observations for residual in _residuals(one, factors)]
        return np.concatenate([moved, found])

    # What the host takes for a unit shows only where it takes longer than the kernels, so that the search begins with
    # a slow host, too. Times that something else has held up weigh no more than those that are as expected.
    hosts = np.any([np.any(one.parts.host > 0, axis=0) for one in observations], axis=0)
    starts = (np.zeros(len(medians)), np.where(hosts, _SLOW_HOST / spreads, 0.0))
    found = [
        least_squares(residuals, start, loss="soft_l1", f_scale=_OUTLIER, xtol=1e-6, ftol=1e-8) for start in starts
    ]
    return np.asarray(medians * np.exp(min(found, key=lambda one: float(one.cost)).x * spreads))


def _residuals(one: Observation, factors: Array) -> list[float]:
    found = split(one.parts, factors)
    kernels, collective = one.kernel_s, one.collective_s
    unlike = 0.0 if one.is_of_model else OTHER_MODEL_NOISE
    wall, of_kernels = np.hypot(WALL_NOISE, unlike), np.hypot(KERNEL_NOISE, unlike)
    residuals = [] if one.seconds is None else [_log_ratio(found.total, one.seconds) / wall]
    if kernels is not None and kernels > _LEAST_S and found.kernels > 0:
        residuals.append(_log_ratio(found.kernels, kernels) / of_kernels)
    if collective is not None and one.seconds is not None and found.exposed > 0:
        # Of what is short beside the phase, no more is asked than beside the phase.
        residuals.append((found.exposed - collective) / (WALL_NOISE * one.seconds))
    return residuals


def _log_ratio(one: float, other: float) -> float:
    return float(np.log(max(one, _LEAST_S) / max(other, _LEAST_S)))
