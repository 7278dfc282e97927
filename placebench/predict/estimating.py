"""The factors of a phase's parts, from what was believed of them and what was measured.

The most probable factors (maximum a posteriori): each is log-normal about what is believed of it, every measured time
log-normal about what the factors give. So a part that nothing measured tells of keeps what is believed, and one that
much was measured of keeps little of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placebench.predict.interval import USUAL_LAUNCH_SD
from placebench.predict.parts import Array, Factor, PhaseParts

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
# Half the squared standard deviations up to which times are as what is believed has them.
_AS_BELIEVED = 0.5
# Step of finite differences: square root of what floats tell apart.
_SMALL = float(np.sqrt(np.finfo(float).eps))


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
    from scipy.optimize import OptimizeResult, least_squares

    measured = _Observations(observations)

    def residuals(moved: Array) -> Array:
        return np.concatenate([moved, measured.residuals(medians * np.exp(moved * spreads))])

    def slopes(moved: Array) -> Array:
        steps = _SMALL * np.maximum(1.0, np.abs(moved))
        nearby = moved[:, None] + np.concatenate([np.zeros((len(moved), 1)), np.diag(steps)], axis=1)
        found = measured.residuals(medians[:, None] * np.exp(nearby * spreads[:, None]))
        return np.concatenate([np.eye(len(moved)), (found[:, 1:] - found[:, :1]) / steps])

    def search(start: Array) -> OptimizeResult:
        return least_squares(residuals, start, slopes, loss="soft_l1", f_scale=_OUTLIER, xtol=1e-6, ftol=1e-8)

    # Times that something else has held up weigh no more than those that are as expected.
    found = search(np.zeros(len(medians)))
    hosts = np.any(measured.host > 0, axis=0)
    if found.cost > _AS_BELIEVED and hosts.any():
        # What the host takes for a unit shows only where it takes longer than the kernels, so that the search begins
        # with a slow host, too.
        found = min(found, search(np.where(hosts, _SLOW_HOST / spreads, 0.0)), key=lambda one: float(one.cost))
    return np.asarray(medians * np.exp(found.x * spreads))


class _Observations:
    """All observations in common arrays, as residuals are asked for some hundred times: as `split`, of all at once."""

    def __init__(self, observations: Sequence[Observation]) -> None:
        parts = [one.parts for one in observations]
        counts = [len(one.units) for one in parts]
        self._units = np.zeros((len(parts), sum(counts)))
        """How many units of each kind an observation has: its own kinds only."""
        self._units[np.repeat(np.arange(len(parts)), counts), np.arange(sum(counts))] = np.concatenate(
            [one.units for one in parts]
        )
        self._kernels = np.concatenate([one.kernels for one in parts])
        self.host = np.concatenate([one.host for one in parts])
        self._collective = np.concatenate(
            [np.broadcast_to(one.collective, count) for one, count in zip(parts, counts, strict=True)]
        )[:, None]
        self._beyond = np.stack([one.beyond for one in parts])
        self._exposed = np.stack([one.exposed for one in parts])
        unlike = np.array([[0.0 if one.is_of_model else OTHER_MODEL_NOISE] for one in observations])
        self._wall_noise, self._kernel_noise = np.hypot(WALL_NOISE, unlike), np.hypot(KERNEL_NOISE, unlike)
        # NaN is what was not measured.
        self._seconds = np.array([[one.seconds] for one in observations], float)
        self._kernel_s = np.array([[one.kernel_s] for one in observations], float)
        self._collective_s = np.array([[one.collective_s] for one in observations], float)

    def residuals(self, factors: Array) -> Array:
        """How far times are from what the factors give, in standard deviations; 0 for what was not measured.

        Args:
            factors: shape (names,), or (names, columns) for several at once; residuals are (3 · observations,) or
                (3 · observations, columns).
        """
        several = factors.reshape(len(factors), -1)
        kernels, host = self._kernels @ several, self.host @ several
        longer = np.maximum(kernels, host)
        exposed = self._exposed @ several + self._units @ np.maximum(0.0, self._collective - longer)
        total = self._units @ longer + self._beyond @ several + exposed
        in_kernels = self._units @ kernels
        has_kernels = (self._kernel_s > _LEAST_S) & (in_kernels > 0)
        # Of what is short beside the phase, no more is asked than beside the phase.
        of_collectives = np.where(exposed > 0, (exposed - self._collective_s) / (WALL_NOISE * self._seconds), 0.0)
        found = (
            _log_ratio(total, self._seconds) / self._wall_noise,
            np.where(has_kernels, _log_ratio(in_kernels, self._kernel_s) / self._kernel_noise, 0.0),
            of_collectives,
        )
        return np.asarray(np.nan_to_num(np.concatenate(found))).reshape(-1, *factors.shape[1:])


def _log_ratio(one: Array, other: Array) -> Array:
    return np.asarray(np.log(np.maximum(one, _LEAST_S) / np.maximum(other, _LEAST_S)))
