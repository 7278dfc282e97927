"""A placement of a run whose memory is in question: what it needs, as asked for or changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from placebench.predict.engine_memory import EngineMemory
from placebench.predict.fitting import Shortfall, engine_memory, pool_estimates, shortfalls
from placebench.predict.memory import MemoryEstimate
from placebench.spec.bound import BoundPlacement
from placebench.spec.config import merge, nest
from placebench.spec.devices import Device
from placebench.spec.placement import Placement, Role
from placebench.spec.shapes import JobShapes
from placebench.spec.workload import EACH_ALONE, Workload

Settings = Mapping[str, Any]

# Share of the memory that settings may need to be proposed. Estimates are known to within 10 % of the peak, either way;
# half of that is kept free, since all of it would turn down much that does fit.
ROOMY = 0.95


@dataclass(frozen=True)
class MemoryCase:
    """A placement of a run, whose memory is in question.

    Attributes:
        workload: the job.
        shapes: of its models.
        bound: the placement on its devices.
        devices: all devices of the run, which share a node's memory.
        placements: all of the run, which must share whatever batch is proposed.
    """

    workload: Workload
    shapes: JobShapes
    bound: BoundPlacement
    devices: Sequence[Device]
    placements: Sequence[Placement]

    def changed(self, settings: Settings) -> "MemoryCase":
        """The case with other values under some dotted keys of the workload."""
        content = self.workload.model_dump(mode="json")
        for key, value in settings.items():
            content = merge(content, nest(key.split("."), value))
        # Of a plan that is refused for other values, too, these need not go together.
        return replace(self, workload=Workload.model_validate(content, context=EACH_ALONE))

    def short(self, share: float = 1.0) -> Shortfall | None:
        """The worst place that needs more than this share of its memory."""
        found = shortfalls(self.workload, self.shapes, self.bound, self.devices, share)
        return max(found, key=lambda one: one.need - share * one.have, default=None)

    def is_roomy(self, settings: Settings) -> bool:
        """Whether it fits, with some memory to spare, under other settings."""
        changed = self.changed(settings)
        return changed.short(ROOMY) is None and not (changed.engine and changed.engine.is_starved)

    @property
    def engine(self) -> EngineMemory | None:
        """What an engine takes of each device; None where torch generates."""
        placement = self.bound.placement
        devices = self.bound.devices[placement.roles[Role.ROLLOUT]]
        return engine_memory(self.workload, self.shapes, placement, devices)

    @property
    def fullest(self) -> MemoryEstimate:
        """The estimate of the devices that need most."""
        estimates = pool_estimates(self.workload, self.shapes, self.bound).values()
        return max(estimates, key=lambda estimate: estimate.peak)

    @property
    def length(self) -> int:
        """Tokens of a sequence at full length."""
        return self.workload.batch.max_prompt_length + self.workload.batch.max_response_length
