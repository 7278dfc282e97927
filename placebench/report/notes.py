"""What the numbers of the report are, in words."""

from collections.abc import Iterator

from placebench.compare.metrics import placement_metrics
from placebench.report.schema import Summary
from placebench.spec.text import listing, threshold


def notes(summary: Summary, trace: str | None) -> tuple[str, ...]:
    """What the numbers are, one line each."""
    if summary.kind == "comparison":
        return _comparison_notes(summary)
    measured = {found.key for placement in summary.placements for found in placement.quantities}
    lines = (
        f"Steps: {summary.method.steps}; the warm-up of each launch is left out: {_warm_up(summary)} up to a change in"
        " its step times. Values are means over launches.",
        *([f"Steps a launch: {summary.method.chosen_steps}."] if summary.method.chosen_steps else ()),
        *_about_start(summary),
        *([_about_ratios(summary), _about_verdicts(summary)] if len(summary.placements) > 1 else ()),
        *(f"{found.label}: {found.meaning}." for found in placement_metrics(()) if found.key in measured),
        *_about_gains(summary),
        *_about_scaling(summary),
        "Phase: time of the device that worked longest on it. Phases in different pools overlap and do not add up.",
        f"Load: {summary.method.load}. A sample counts for a phase by the time they share; 'sampled' is that time and"
        " the number of samples.",
        *summary.method.efficiency,
        *((summary.method.noise,) if summary.method.noise else ()),
        *_missing_trace(summary),
    )
    return (*lines, f"Open {trace} at https://ui.perfetto.dev to see every phase of every launch.") if trace else lines


def _warm_up(summary: Summary) -> str:
    given = summary.method.warmup_steps
    first = "step" if given == 1 else f"{given:,} steps"
    return f"its first {first}, and those" if given else "its steps"


def _about_start(summary: Summary) -> Iterator[str]:
    if summary.method.steps_before:
        yield f"Every launch went on from a checkpoint: its first step is number {summary.method.steps_before + 1}."


def _about_ratios(summary: Summary) -> str:
    method = summary.method
    return f"Ratio: over {summary.placements[0].name}. Its {method.confidence:.0%} interval: {method.interval}."


def _about_verdicts(summary: Summary) -> str:
    effect = threshold(summary.method.min_effect)
    return (
        f"Verdict: faster, slower, higher or lower when the whole interval lies beyond {effect}, same when it lies"
        f" within {effect}, else undecided; of phases and other details, at a false discovery rate of 5 % together"
        f"{_about_headlines(summary)}."
    )


def _about_headlines(summary: Summary) -> str:
    others = len(summary.placements) - 1
    return f"; step and tokens/s are corrected for the {others} comparisons" if others > 1 else ""


def _about_gains(summary: Summary) -> Iterator[str]:
    if summary.overlap_gains:
        which = "each, paired as all ratios are"
        if summary.kind == "comparison":
            which = "of one run each, paired by its rounds where both have them"
        yield (
            f"Gain of the split and of the overlap: ratios of step times of two placements {which}; below 1 is faster."
            " They have no verdicts of their own and do not count in the correction of the verdicts. Each is measured"
            " by itself, so the two multiplied may differ a little from both together."
        )


def _about_scaling(summary: Summary) -> Iterator[str]:
    if summary.scaling:
        yield (
            "Speed-up: tokens/s over that of the placement with the fewest replicas; efficiency: the same a device."
            " Strong scaling keeps the batch of a step, weak scaling that of a device."
        )


def _comparison_notes(summary: Summary) -> tuple[str, ...]:
    effect = threshold(summary.method.min_effect)
    measured = {found.key for placement in summary.placements for found in placement.quantities}
    return (
        f"Steps: {summary.method.steps}. Values are means over launches.",
        _about_ratios(summary),
        f"Verdict: faster, slower, higher or lower when the whole interval lies beyond {effect}, same when it lies"
        f" within {effect}, else undecided; undecided, too, with one launch of an arm{_about_headlines(summary)}.",
        *(f"{found.label}: {found.meaning}." for found in placement_metrics(()) if found.key in measured),
        *_about_gains(summary),
        "A phase has placebench's name where it means the same, else the log's own. Phases that overlap, parts of"
        " phases and times outside the step are never added up.",
    )


def _missing_trace(summary: Summary) -> Iterator[str]:
    """Of which placements waiting inside a phase is not known, where the run has GPUs."""
    without = [placement.name for placement in summary.placements if placement.launches and not placement.kernels]
    if summary.host.get("gpus") and without:
        whose = "" if len(without) == len(summary.placements) else f" of {listing(without)}"
        yield f"No kernels{whose} were traced: time that a phase waits for collectives or for the host is not known."
