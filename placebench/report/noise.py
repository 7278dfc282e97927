"""What a placement's comparison with itself says, for `summary.json` and in words."""

from placebench.compare.comparison import Comparison
from placebench.compare.measure.placements import RunSide
from placebench.compare.measure.variation import SelfComparison, compare_with_itself
from placebench.compare.metrics import STEP_TIME
from placebench.compare.statistics.estimates import detectable_effect
from placebench.report.schema import CalibrationSummary, NoiseSummary
from placebench.spec.auto_rounds import DEFAULT_ROUNDS
from placebench.spec.text import change, percent

# The default number of rounds, and what more of them bring.
ROUNDS = (DEFAULT_ROUNDS, 5, 10)


def summarize_calibration(comparison: Comparison) -> CalibrationSummary | None:
    """The summary of a run that compares its placement with itself; None for any other, and with too few launches."""
    found = compare_if_calibrated(comparison)
    if found is None:
        return None
    return CalibrationSummary(
        headline=_headline(found, comparison.min_effect),
        pairs=found.noise.pairs,
        noise=tuple(
            NoiseSummary(
                key=metric.key,
                label=metric.label,
                pair=variation.pair,
                within=variation.within,
                between=variation.between,
                detectable={
                    rounds: detectable_effect(variation.pair, rounds, comparison.min_effect) for rounds in ROUNDS
                },
            )
            for metric in found.metrics
            for variation in [found.noise.variations[metric.key]]
        ),
    )


def compare_if_calibrated(comparison: Comparison) -> SelfComparison | None:
    """What a run that calibrates says of its placement against itself; None as above."""
    if comparison.run is None or not comparison.run.record.calibrates:
        return None
    return compare_with_itself(comparison.placements[0], comparison.metrics, comparison.min_effect)


def noise_on_record(side: RunSide, min_effect: float) -> str | None:
    """The step time's noise that a calibration of this host has left, in one sentence; None without one."""
    measured = side.noise
    noise = measured.of(STEP_TIME.key) if measured else None
    if measured is None or noise is None:
        return None
    least = detectable_effect(noise.sd, DEFAULT_ROUNDS, min_effect)
    return (
        f"Noise by {measured.run}: two launches of {measured.placement} differ by {percent(noise.sd)} in step"
        f" time; {DEFAULT_ROUNDS} rounds can show differences from {percent(least)} on."
    )


def _headline(found: SelfComparison, min_effect: float) -> str:
    noise, step = found.noise, found.step
    variation = noise.variations[STEP_TIME.key]
    least = detectable_effect(variation.pair, DEFAULT_ROUNDS, min_effect)
    more, ends = change(step.value, step.low, step.high)
    return (
        f"{noise.placement} against itself: a step takes {more} time (95 % interval {ends},"
        f" {noise.pairs} pairs of launches): {step.verdict}."
        f" Two launches differ by {percent(variation.pair)} here; {DEFAULT_ROUNDS} rounds can show differences from"
        f" {percent(least)} on."
    )
