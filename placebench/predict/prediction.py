"""Predictions of placements: the step of each, how far it is to be trusted, and which of them cannot be told apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isnan, log, sqrt

from placebench.predict.classing import class_of
from placebench.predict.interval import (
    LEAST_CASES,
    USUAL_LAUNCH_SD,
    ClassError,
    Interval,
    LaunchNoise,
    PredictionClass,
    class_error,
    ratio_interval,
    run_ratio_interval,
    step_interval,
)
from placebench.predict.phases import Basis
from placebench.predict.step import PredictedStep, StepModel
from placebench.predict.work import mean_response
from placebench.record.calibration_file import MeasuredCase
from placebench.spec.phases import GEN
from placebench.spec.placement import Placement, Scaling
from placebench.spec.workload import placed_workload

_HOUR_S = 3600
_ELSEWHERE = (PredictionClass.OTHER_HOST, PredictionClass.OTHER_GPU, PredictionClass.MORE_NODES)
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
    noise: LaunchNoise | None
    """Of the launches that it is made of, of the same work where there are any; None where nothing tells, as of a
    single launch of each placement."""
    launches: int
    """Of the placement itself; 0 where it was not run."""
    tokens: float
    """Of a step; NaN where they are not known."""
    price: float | None
    """Of a device for an hour; None where nobody gave it."""

    @property
    def was_run(self) -> bool:
        """Whether the placement itself was measured, so that nothing but its launches tells how far it may be off."""
        is_measured = all(one.basis is Basis.MEASURED for one in self.step.phases.values())
        return self.launches > 0 and self.kind is PredictionClass.SAME_RUN and is_measured

    @property
    def placement(self) -> Placement:
        """The placement."""
        return self.step.placement

    @property
    def batches(self) -> int:
        """How many of the workload's batches a step has: replicas under weak scaling have one each."""
        return self.placement.size if self.placement.scaling is Scaling.WEAK else 1

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
        """Whether it depends on a host of which nothing was measured."""
        return (
            self.kind in _ELSEWHERE and bool(self.step.is_host_bound) and self.step.phases[GEN].basis is Basis.MODELLED
        )


@dataclass(frozen=True)
class Predictions:
    """Predictions that were made together, in the order in which they were asked for."""

    placements: tuple[Prediction, ...]

    @cached_property
    def of_same_work(self) -> tuple[Prediction, ...]:
        """Those whose steps can be compared, as they have the fewest batches of all."""
        fewest = min(one.batches for one in self.placements)
        return tuple(one for one in self.placements if one.batches == fewest)

    @cached_property
    def fastest(self) -> Prediction:
        """The one with the shortest step, of the same work."""
        return min(self.of_same_work, key=lambda one: one.step.seconds)

    @cached_property
    def tied(self) -> tuple[Prediction, ...]:
        """Those of the same work that cannot be told from the fastest, itself left out."""
        others = [(one, self.interval_over_fastest(one)) for one in self.of_same_work if one is not self.fastest]
        return tuple(one for one, interval in others if interval is None or interval.holds_one)

    def interval_over_fastest(self, one: Prediction) -> Interval | None:
        """Where the ratio of a step over the fastest one is expected to be.

        None where too few cases tell, where both were run and one of them in a single launch, which a report leaves
        open too, or where a step is of more batches.
        """
        best = self.fastest
        if one.batches != best.batches:
            return None
        ratio = one.step.seconds / best.step.seconds
        if self.single_launches(one):
            return None
        if all(each.was_run and each.noise and each.noise.round_steps for each in (best, one)):
            assert best.noise is not None
            assert one.noise is not None
            return run_ratio_interval(ratio, best.noise, one.noise)
        return ratio_interval(ratio, _wider(best.error, one.error), best.noise, one.noise)

    def single_launches(self, one: Prediction) -> int:
        """How many of a placement and the fastest, which were both run, were launched once, which shows nothing.

        0 where one of them was not run.
        """
        both = (self.fastest, one)
        return sum(each.launches == 1 for each in both) if all(each.was_run for each in both) else 0


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
    of_all = _pooled([case for file in model.phases.calibrations for case in file.cases], launches)
    found = []
    for placement in placements:
        step, kind = model.step(placement), class_of(model, placement, elsewhere=elsewhere)
        error = class_error(kind, is_host_bound=step.is_host_bound)
        noise = launch_noise(model, placement) if kind is PredictionClass.SAME_RUN else of_all
        memory = model.memory(placement) if model.phases.workload and model.phases.shapes else {}
        runs = sum(case.launches for case in _own(model, placement))
        one = Prediction(step, kind, error, None, memory, noise, runs, _tokens(model, placement), price)
        errs = ClassError(kind, LEAST_CASES, 0.0, 0.0, 0.0, 0.0) if one.was_run else error
        found.append(replace(one, interval=step_interval(step.seconds, errs, spread, launches, noise)))
    return Predictions(tuple(found))


def launch_spread(model: StepModel) -> tuple[float, int]:
    """Standard deviation of the logarithm of the step from launch to launch, and the launches that were measured."""
    cases = [case for file in model.phases.calibrations for case in file.cases]
    launches = max((case.launches for case in cases), default=1)
    pooled = _pooled(cases, launches)
    return pooled.sd if pooled else USUAL_LAUNCH_SD, launches


def launch_noise(model: StepModel, placement: Placement) -> LaunchNoise | None:
    """How the launches vary that a placement of the measured work is predicted from; None where nothing tells."""
    phases, own = model.phases_of(placement), _own(model, placement)
    cases = phases.same_cases
    launches = sum(case.launches for case in own) or max((case.launches for case in cases), default=1)
    if len(own) > 1:
        # Rounds of several runs are not the same ones, and the runs differ from each other too.
        return _across_runs(own)
    found = _pooled(cases, launches)
    return replace(found, round_steps=own[0].round_steps) if found and own else found


def _across_runs(cases: Sequence[MeasuredCase]) -> LaunchNoise:
    """How all launches of a placement vary about their common mean that were measured in several runs."""
    known = [(log(case.step_s), case.launches, case.launch_sd or 0.0) for case in cases if case.step_s]
    launches = sum(count for _, count, _ in known)
    mean = sum(count * step for step, count, _ in known) / launches
    squares = sum((count - 1) * sd**2 + count * (step - mean) ** 2 for step, count, sd in known)
    return LaunchNoise(sqrt(squares / (launches - 1)), launches - 1, launches)


def _own(model: StepModel, placement: Placement) -> list[MeasuredCase]:
    """The launches of a placement itself, with the work that is asked about."""
    phases = model.phases_of(placement)
    return [case for case in phases.same_cases if case.name == placement.name and case.step_s]


def _pooled(cases: Sequence[MeasuredCase], launches: int) -> LaunchNoise | None:
    known = [(case.launch_sd, case.launches - 1) for case in cases if case.launch_sd is not None and case.launches > 1]
    free = sum(one for _, one in known)
    return LaunchNoise(sqrt(sum(sd**2 * one for sd, one in known) / free), free, launches) if free else None


def _tokens(model: StepModel, placement: Placement) -> float:
    """Tokens of a step: as counted where this work was measured, else as the workload asks for them."""
    if model.phases.workload is None:
        return float("nan")
    workload = placed_workload(model.phases.workload, placement)
    for phases in (model.phases_of(placement), model.phases):
        if phases.workload and (counted := phases.step_tokens):
            return counted * workload.batch.size / phases.workload.batch.size
    return workload.batch.size * (workload.batch.max_prompt_length + mean_response(workload))


def _wider(first: ClassError, other: ClassError) -> ClassError:
    """The error of two predictions whose classes differ: that of the one which errs more."""
    return max(first, other, key=lambda one: (one.n < LEAST_CASES, one.ratio_spread))
