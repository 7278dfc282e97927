"""How far a prediction is to be trusted: its class, the held-out cases of that class, and intervals that follow.

Steps are taken as log-normal about what is predicted. Their spread has two parts: launches of one placement differ, and
predictions of a class err. The second is the spread of held-out cases, which the predictor had not seen: rows of a
kept table. Two placements predicted from the same measurements err alike, so that the interval of their ratio rests on
differences of the errors of cases that were predicted together, and is narrower. That of two that were both run rests
on their launches alone.

Where the launches that a prediction is made of vary more than that, no interval is narrower than what they showed
(`LaunchNoise`): held-out cases were measured on quiet hosts.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib.resources import files
from itertools import combinations
from math import exp, log, nan, sqrt
from statistics import fmean, stdev

LEVEL = 0.9
"""Of all intervals here."""
# Of a placement of which one launch alone was measured: what launches of one placement on quiet hosts differ by.
USUAL_LAUNCH_SD = 0.045
# With fewer held-out cases an interval says nothing of the class.
LEAST_CASES = 3


class PredictionClass(StrEnum):
    """What lies between what was measured and what is asked, from near to far."""

    SAME_RUN = "same run"
    """Another placement of the same work on the same host and day."""
    OTHER_SIZE = "other size"
    """The same model with another batch, other lengths or settings."""
    OTHER_MODEL = "other model"
    OTHER_HOST = "other host"
    """The same devices on another host or day."""
    OTHER_GPU = "other GPU"
    """Devices of another kind, scaled by their data sheets."""
    OTHER_JOB = "job of yours"
    """A job whose work is not known, on other numbers of devices than it was measured on."""
    MORE_DEVICES = "more devices"
    """Many times more of them than were measured, in one node."""
    OTHER_ENGINES = "other engines"
    """Engines of as many devices as none of those measured had."""
    MORE_NODES = "more nodes"


@dataclass(frozen=True)
class HeldOut:
    """A placement that was predicted without having been looked at, and measured."""

    kind: PredictionClass
    group: str
    """Cases of one group were predicted from the same measurements."""
    case: str
    """What was predicted."""
    model: str
    gpu: str
    is_host_bound: bool
    """Whether the host held up generation for more than 15 % of it."""
    predicted_s: float
    measured_s: float
    launches: int
    """That the measured time is the mean of."""
    source: str
    """Where it was measured."""

    @property
    def error(self) -> float:
        """Logarithm of what was predicted over what was measured."""
        return log(self.predicted_s / self.measured_s)


@dataclass(frozen=True)
class Interval:
    """Where a number is expected to be, with the probability `LEVEL`."""

    low: float
    high: float

    @property
    def holds_one(self) -> bool:
        """Whether a ratio may be 1."""
        return self.low <= 1 <= self.high


@dataclass(frozen=True)
class ClassError:
    """How predictions of a class have erred."""

    kind: PredictionClass
    n: int
    """Held-out cases."""
    mean: float
    """Mean of the absolute errors, a fraction of the measured times; NaN without cases."""
    worst: float
    """The largest of them."""
    spread: float
    """Root mean square of the logarithms; NaN without cases."""
    ratio_spread: float
    """The same of differences between cases that were predicted together."""
    is_host_bound: bool | None = None
    """Whether these are the cases where the host holds generation up, or those where it does not; None for all."""


@dataclass(frozen=True)
class LaunchNoise:
    """How launches vary that a prediction is made of, each placement about its own mean."""

    sd: float
    """Pooled standard deviation of the logarithm of the step: √(Σ (nᵢ − 1) sᵢ² / Σ (nᵢ − 1)) over the placements with
    two launches or more, each with its number of launches nᵢ and their standard deviation sᵢ."""
    free: int
    """Its degrees of freedom, Σ (nᵢ − 1)."""
    launches: int
    """Launches whose mean the predicted step is made of."""
    round_steps: Mapping[int, float] = field(default_factory=dict)
    """The step of each launch of the placement itself, by its round, seconds; empty where it was not run."""


@cache
def held_out_cases() -> tuple[HeldOut, ...]:
    """The kept table of held-out cases."""
    text = (files("placebench.predict").joinpath("data", "held_out.csv")).read_text(encoding="utf-8")
    return tuple(
        HeldOut(
            PredictionClass(row["class"]),
            row["group"],
            row["case"],
            row["model"],
            row["gpu"],
            row["host_bound"] == "yes",
            float(row["predicted_s"]),
            float(row["measured_s"]),
            int(row["launches"]),
            row["source"],
        )
        for row in csv.DictReader(text.splitlines())
    )


def class_error(
    kind: PredictionClass, *, is_host_bound: bool | None, cases: Iterable[HeldOut] | None = None
) -> ClassError:
    """How predictions of a class have erred, where the host holds generation up and where it does not apart.

    Without enough cases of the one kind, or where it is not known which it is, all of the class count.
    """
    known = tuple(held_out_cases() if cases is None else cases)
    of_class = [one for one in known if one.kind is kind]
    alike = [one for one in of_class if is_host_bound is not None and one.is_host_bound == is_host_bound]
    is_apart = len(alike) >= LEAST_CASES
    chosen = alike if is_apart else of_class
    errors = [one.error for one in chosen]
    relative = [abs(one.predicted_s / one.measured_s - 1) for one in chosen]
    differences = [
        first.error - second.error for first, second in combinations(chosen, 2) if first.group == second.group
    ]
    return ClassError(
        kind,
        len(chosen),
        fmean(relative) if relative else nan,
        max(relative, default=nan),
        _rms(errors),
        _rms(differences),
        is_host_bound if is_apart else None,
    )


def step_interval(
    seconds: float, found: ClassError, launch_sd: float, launches: int, noise: LaunchNoise | None = None
) -> Interval | None:
    """Where the mean step of one launch is expected to be; None where too few cases tell.

    Args:
        seconds: as predicted.
        found: of its class.
        launch_sd: standard deviation of the logarithm of the step from launch to launch.
        launches: that the prediction rests on.
        noise: of these launches, where they are of the work that is predicted.
    """
    if found.n < LEAST_CASES:
        return None
    reach = _reach(sqrt(found.spread**2 + launch_sd**2 / max(1, launches)), found.n)
    return _about(seconds, max(reach, _noise_reach(noise)))


def ratio_interval(ratio: float, found: ClassError, *noises: LaunchNoise | None) -> Interval | None:
    """Where the ratio of two steps predicted together is expected to be; None where too few cases tell.

    Args:
        ratio: as predicted.
        found: of the class that errs more.
        noises: of the launches that each step is made of; None for a step of other work than they are.
    """
    if found.n < LEAST_CASES or found.ratio_spread != found.ratio_spread:
        return None
    return _about(ratio, max(_reach(found.ratio_spread, found.n), _noise_reach(*noises)))


def run_ratio_interval(ratio: float, first: LaunchNoise, other: LaunchNoise) -> Interval:
    """Where the ratio of two steps is expected to be whose placements were both run.

    Nothing but their launches tells how far it is off; what these showed is in it.

    Args:
        ratio: as predicted, of the second step over the first one.
        first: of the launches of the first placement, with `round_steps`.
        other: of those of the second.
    """
    shown = fmean(other.round_steps.values()) / fmean(first.round_steps.values())
    return _about(ratio, max(_noise_reach(first, other), abs(log(shown / ratio))))


def _noise_reach(*noises: LaunchNoise | None) -> float:
    """Half the width, in logarithms, of an interval of a step, or of the ratio of two, by their launches alone."""
    known = [one for one in noises if one]
    if not known:
        return 0.0
    reach = _reach(sqrt(sum(one.sd**2 / one.launches for one in known)), min(one.free for one in known))
    rounds = set.intersection(*({*one.round_steps} for one in known))
    if len(known) < 2 or len(rounds) < 2:
        return reach
    # Launches of a round are compared in pairs, as a report of the run does, which may have fewer degrees of freedom.
    first, other = known
    pairs = [log(first.round_steps[number] / other.round_steps[number]) for number in rounds]
    return max(reach, _reach(stdev(pairs) / sqrt(len(pairs)), len(pairs) - 1))


def _reach(spread: float, free: int) -> float:
    # scipy.stats has it too, and takes a third of a second to import.
    from scipy.special import stdtrit

    return float(stdtrit(free, (1 + LEVEL) / 2)) * spread


def _about(value: float, reach: float) -> Interval:
    return Interval(value / exp(reach), value * exp(reach))


def _rms(values: Sequence[float]) -> float:
    return sqrt(fmean(value**2 for value in values)) if values else nan
