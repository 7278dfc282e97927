"""Predictions of placements: the step of each, how far it is to be trusted, and which of them cannot be told apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan, sqrt

from placebench.predict.interval import (
    LEAST_CASES,
    USUAL_LAUNCH_SD,
    ClassError,
    Interval,
    PredictionClass,
    class_error,
    is_tie,
    step_interval,
)
from placebench.predict.phases import Basis
from placebench.predict.step import PredictedStep, StepModel
from placebench.predict.work import mean_response
from placebench.spec.phases import GEN
from placebench.spec.placement import Placement
from placebench.spec.workload import placed_workload

_HOUR_S = 3600
# Of a device for an hour, in any currency.
MOST_PRICE = 1e6


@dataclass(frozen=True)
class Prediction:
    """What is expected of a placement."""

    step: PredictedStep
    kind: PredictionClass
    error: ClassError
    """Of its class."""
    interval: Interval | None
    """Of the step, seconds; None where too few cases of its class are held out."""
    memory: Mapping[str, int]
    """The most bytes that a device of each pool holds; empty where that is not known."""
    tokens: float
    """Of a step; NaN where they are not known."""
    price: float | None
    """Of a device for an hour; None where nobody gave it."""

    @property
    def placement(self) -> Placement:
        """The placement."""
        return self.step.placement

    @property
    def tokens_per_s_per_device(self) -> float:
        """Tokens a second, divided by all devices of the placement."""
        return self.tokens / self.step.seconds / self.placement.size

    @property
    def cost(self) -> float | None:
        """Of a million tokens, in the currency of the price."""
        if self.price is None or isnan(self.tokens):
            return None
        return self.price * self.placement.size * self.step.seconds / _HOUR_S / self.tokens * 1e6

    @property
    def says_nothing(self) -> bool:
        """Whether it hangs on a host of which nothing was measured."""
        elsewhere = self.kind in (PredictionClass.OTHER_HOST, PredictionClass.MORE_NODES)
        return elsewhere and self.step.is_host_bound and self.step.phases[GEN].basis is Basis.MODELLED


@dataclass(frozen=True)
class Predictions:
    """Predictions that were made together, in the order in which they were asked for."""

    placements: tuple[Prediction, ...]

    @cached_property
    def fastest(self) -> Prediction:
        """The one with the shortest step."""
        return min(self.placements, key=lambda one: one.step.seconds)

    @cached_property
    def tied(self) -> tuple[Prediction, ...]:
        """Those that cannot be told from the fastest, itself left out."""
        best = self.fastest
        return tuple(
            one
            for one in self.placements
            if one is not best and is_tie(best.step.seconds, one.step.seconds, _wider(best.error, one.error))
        )


def predict(
    model: StepModel, placements: Sequence[Placement], *, elsewhere: bool = False, price: float | None = None
) -> Predictions:
    """Predict the step of each placement.

    Args:
        model: of the workload on the devices.
        placements: on the model's devices.
        elsewhere: whether the devices are known to be of another host than those that were measured.
        price: of a device for an hour.

    Raises:
        LookupError: a phase was never measured, and the peak of the devices is not known.
    """
    spread, launches = launch_spread(model)
    found = []
    for placement in placements:
        step, kind = model.step(placement), class_of(model, placement, elsewhere=elsewhere)
        error = class_error(kind, is_host_bound=step.is_host_bound)
        interval = step_interval(step.seconds, error, spread, launches)
        if kind is PredictionClass.SAME_RUN and all(one.basis is Basis.MEASURED for one in step.phases.values()):
            interval = step_interval(step.seconds, ClassError(kind, LEAST_CASES, 0.0, 0.0, 0.0, 0.0), spread, launches)
        memory = model.memory(placement) if model.phases.workload and model.phases.shapes else {}
        found.append(Prediction(step, kind, error, interval, memory, _tokens(model, placement), price))
    return Predictions(tuple(found))


def class_of(model: StepModel, placement: Placement, *, elsewhere: bool = False) -> PredictionClass:
    """What lies between what was measured and a placement."""
    phases, files = model.phases, model.phases.calibrations
    used = max(sum(1 for count in pool.counts if count) for pool in placement.pools)
    if used > max(file.nodes for file in files):
        return PredictionClass.MORE_NODES
    if elsewhere or phases.device.name not in {file.device for file in files}:
        return PredictionClass.OTHER_HOST
    cases = [case for file in files for case in file.cases]
    # A placement may let the same work be done in a way that was never measured, such as by engines of several devices.
    if (
        any(phases.is_same(case) for case in cases)
        and placement.size <= max(file.device_count for file in files)
        and not model.step(placement).extrapolated
    ):
        return PredictionClass.SAME_RUN
    if phases.shapes is not None and any(case.models and case.models.actor == phases.shapes.actor for case in cases):
        return PredictionClass.OTHER_SIZE
    return PredictionClass.OTHER_MODEL


def launch_spread(model: StepModel) -> tuple[float, int]:
    """Standard deviation of the logarithm of the step from launch to launch, and the launches that were measured."""
    cases = [case for file in model.phases.calibrations for case in file.cases]
    known = [(case.launch_sd, case.launches - 1) for case in cases if case.launch_sd is not None and case.launches > 1]
    launches = max((case.launches for case in cases), default=1)
    if not known:
        return USUAL_LAUNCH_SD, launches
    return sqrt(sum(sd**2 * free for sd, free in known) / sum(free for _, free in known)), launches


def _tokens(model: StepModel, placement: Placement) -> float:
    """Tokens of a step: as counted where this work was measured, else as the workload asks for them."""
    if model.phases.workload is None:
        return float("nan")
    workload = placed_workload(model.phases.workload, placement)
    if model.phases.counts:
        return model.phases.counts.tokens * workload.batch.size / model.phases.workload.batch.size
    return workload.batch.size * (workload.batch.max_prompt_length + mean_response(workload))


def _wider(first: ClassError, other: ClassError) -> ClassError:
    """The error of two predictions whose classes differ: that of the one which errs more."""
    return max(first, other, key=lambda one: (one.n < LEAST_CASES, one.ratio_spread))
