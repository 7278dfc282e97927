"""Which class a prediction is of: what lies between what was measured and the placement that is asked about."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from placebench.predict.interval import PredictionClass
from placebench.predict.known import is_shipped
from placebench.predict.phases import Basis, PhaseModel
from placebench.predict.step import StepModel
from placebench.record.calibration_file import CalibrationFile, MeasuredCase
from placebench.spec.phases import GEN
from placebench.spec.placement import Placement

# Held-out cases reach from one GPU to four.
_MOST_TIMES = 4


def class_of(model: StepModel, placement: Placement, *, elsewhere: bool = False) -> PredictionClass:
    """What lies between what was measured and a placement.

    Args:
        model: with what was measured.
        placement: what is asked about.
        elsewhere: whether the devices are known to be of another host than those that were measured.
    """
    distance = _Distance(model, placement, elsewhere)
    return next((kind for kind, holds in _CLASSES if holds(distance)), PredictionClass.OTHER_MODEL)


@dataclass(frozen=True)
class _Distance:
    """A placement beside what was measured."""

    model: StepModel
    placement: Placement
    elsewhere: bool

    def has_more_nodes(self) -> bool:
        used = {node for pool in self.placement.pools for node in pool.nodes}
        return len(used) > max(file.nodes for file in self._files)

    def has_many_more_devices(self) -> bool:
        return self.placement.size > _MOST_TIMES * max(file.device_count for file in self._files)

    def has_other_engines(self) -> bool:
        workload = self._phases.workload
        phases = (phase for file in self._files for case in file.cases for phase in case.phases)
        measured = {phase.tensor_parallel for phase in phases if phase.name == GEN}
        if workload is None or not measured:
            return False
        return (self.placement.tensor_parallel or workload.rollout.tensor_parallel_size) not in measured

    def is_on_other_gpu(self) -> bool:
        return self._phases.device.name not in {file.device for file in self._files}

    def is_on_other_host(self) -> bool:
        if self.elsewhere or self._phases.device.name not in {file.device for file in self._files_of_host}:
            return True
        # Where something that is shipped is nearer to the job, the step is what that took.
        return self._nearness(self._shipped_cases) > self._nearness(self._cases_of_host)

    def _nearness(self, cases: Sequence[MeasuredCase]) -> int:
        """Of the nearest case: 2 where it is of the same work, 1 of the same model, else 0."""
        return max((2 if self._phases.is_same(one) else 1 if self._has_model(one) else 0 for one in cases), default=0)

    def _has_model(self, case: MeasuredCase) -> bool:
        shapes = self._phases.shapes
        return bool(shapes and case.models and case.models.actor == shapes.actor)

    def is_of_same_run(self) -> bool:
        step = self.model.step(self.placement)
        return (
            any(map(self._phases.is_same, self._cases_of_host))
            and self.placement.size <= max(file.device_count for file in self._files_of_host)
            # The same work may be done in a way that was never measured, such as by engines of several devices.
            and not step.extrapolated
            and (not self.is_of_unknown_job() or all(one.basis is Basis.MEASURED for one in step.phases.values()))
        )

    def is_of_unknown_job(self) -> bool:
        return self._phases.shapes is None

    def is_of_same_model(self) -> bool:
        return any(map(self._has_model, self._cases_of_host))

    @cached_property
    def _phases(self) -> PhaseModel:
        return self.model.phases_of(self.placement)

    @property
    def _files(self) -> Sequence[CalibrationFile]:
        return self._phases.calibrations

    @cached_property
    def _files_of_host(self) -> list[CalibrationFile]:
        """Without what is shipped, which was measured on another host than whatever is asked about.

        A job of the user's tells nothing of the times of placebench's own.
        """
        of_host = [file for file in self._files if not is_shipped(file)]
        if self.is_of_unknown_job():
            return of_host
        return [file for file in of_host if any(case.models for case in file.cases)]

    @property
    def _shipped_cases(self) -> list[MeasuredCase]:
        return [case for file in self._files if is_shipped(file) for case in file.cases]

    @property
    def _cases_of_host(self) -> list[MeasuredCase]:
        return [case for file in self._files_of_host for case in file.cases]


# The first that holds is the class, of another model where none does; each takes it that none before it holds.
_CLASSES: tuple[tuple[PredictionClass, Callable[[_Distance], bool]], ...] = (
    (PredictionClass.MORE_NODES, _Distance.has_more_nodes),
    (PredictionClass.MORE_DEVICES, _Distance.has_many_more_devices),
    (PredictionClass.OTHER_ENGINES, _Distance.has_other_engines),
    (PredictionClass.OTHER_GPU, _Distance.is_on_other_gpu),
    (PredictionClass.OTHER_HOST, _Distance.is_on_other_host),
    (PredictionClass.SAME_RUN, _Distance.is_of_same_run),
    (PredictionClass.OTHER_JOB, _Distance.is_of_unknown_job),
    (PredictionClass.OTHER_SIZE, _Distance.is_of_same_model),
)
