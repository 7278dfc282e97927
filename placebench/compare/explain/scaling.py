"""What more replicas bring: speed-up and parallel efficiency of data-parallel placements.

Speed-up is tokens/s over tokens/s of the placement with the fewest replicas. Under strong scaling the work of a step
stays the same, so that this is the quotient of the step times (Amdahl 1967); under weak scaling it grows with the
devices, and the quotient of the rates is the scaled speed-up (Gustafson 1988). Efficiency is speed-up over the quotient
of the devices: 1 where every device does as much as one alone. Launches are paired as everywhere (`pairing`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from placebench.compare.comparison import Comparison
from placebench.compare.measure.placements import RunSide
from placebench.compare.metrics import TOKENS, TOKENS_PER_DEVICE
from placebench.compare.pairing import pair
from placebench.compare.statistics.estimates import Ratio


@dataclass(frozen=True)
class ScalingResult:
    """A placement of replicas against one of fewer."""

    side: RunSide
    """The placement."""
    base: RunSide
    """The one with the fewest replicas."""
    kind: str
    """`strong` or `weak`."""
    speedup: Ratio | None
    """Tokens/s over the base's; None where either has no finished launch."""
    efficiency: Ratio | None
    """Tokens/s/device over the base's; likewise."""


def measure_scaling(comparison: Comparison) -> tuple[ScalingResult, ...]:
    """Every placement of replicas against the one with the fewest that scales alike; none without two of them.

    Of the placements of one run: what differs between runs is not the number of replicas alone.
    """
    if comparison.run is None:
        return ()
    replicas = [side for side in comparison.placements if side.placement.scaling]
    found = []
    for side in replicas:
        base = _base(side, replicas)
        if base is not None:
            pairing = pair(base, side, comparison.min_effect)
            ratios = (pairing.ratio(metric) for metric in (TOKENS, TOKENS_PER_DEVICE))
            found.append(ScalingResult(side, base, str(side.placement.scaling), *ratios))
    return tuple(found)


def _base(side: RunSide, replicas: Sequence[RunSide]) -> RunSide | None:
    """The placement with the fewest replicas, fewer than the side's; one alone is the same under either scaling."""
    fewer = [
        other
        for other in replicas
        if len(other.placement.devices) < len(side.placement.devices)
        and (len(other.placement.devices) == 1 or other.placement.scaling == side.placement.scaling)
    ]
    return min(fewer, key=lambda other: len(other.placement.devices), default=None)
