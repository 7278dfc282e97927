"""A predicted step: what its phases take under a placement, and the walk of the step graph with these times."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isnan, nan

from placebench.predict.memory.engine import EngineMemory
from placebench.predict.memory.estimate import MemoryEstimate
from placebench.predict.phases import Basis, PhaseModel, PhaseSeconds
from placebench.predict.walk import step_times, walked_graph
from placebench.spec.devices import Device, devices_per_node
from placebench.spec.phases import GEN, PHASE, Activity, Phase
from placebench.spec.placement import Placement, Pool, Role
from placebench.spec.placement_checks import Share
from placebench.spec.workload import Workload, placed_workload

# Beyond this share of generation a prediction depends on the host.
HOST_BOUND = 0.15


@dataclass(frozen=True)
class PredictedSpan:
    """A phase on all devices of a pool, in seconds from the start of the step."""

    phase: str
    pool: str
    """Empty for the controller's own."""
    start: float
    end: float


@dataclass(frozen=True)
class PredictedStep:
    """What a step is expected to take under a placement."""

    placement: Placement
    seconds: float
    phases: Mapping[str, PhaseSeconds]
    """By name, in the order of a step."""
    spans: tuple[PredictedSpan, ...]
    """In order of their start."""
    gaps: float
    """Of `seconds`, when no phase on the critical path runs; spans are without them."""
    find_host_share: Callable[[], float] = field(repr=False, compare=False)
    """Works out `expected_host_share`, for which what few ask has to be fitted."""

    @property
    def waits(self) -> Mapping[str, float]:
        """Seconds of the step in which each pool has no phase."""
        worked = dict.fromkeys((pool.name for pool in self.placement.pools), 0.0)
        for span in self.spans:
            if span.pool:
                worked[span.pool] += span.end - span.start
        return {pool: max(0.0, self.seconds - seconds) for pool, seconds in worked.items()}

    @property
    def expected_host_share(self) -> float:
        """Share of generation in which no kernel is expected to run; NaN where nothing tells."""
        return self.find_host_share()

    @property
    def host_bound_share(self) -> float:
        """Share of generation in which no kernel runs: what depends on the host, and carries over to no other.

        NaN where generation was measured and its kernels were not traced.
        """
        gen = self.phases.get(GEN)
        return nan if gen and isnan(gen.host) else self.expected_host_share

    @property
    def is_host_bound(self) -> bool | None:
        """Whether generation is expected to wait for the host for a large part of it; None where nothing tells."""
        share = self.expected_host_share
        return None if isnan(share) else share > HOST_BOUND

    @property
    def extrapolated(self) -> tuple[str, ...]:
        """The phases of which this work was not measured."""
        return tuple(name for name, phase in self.phases.items() if phase.basis is Basis.MODELLED)


@dataclass
class StepModel:
    """Steps of one workload under any placement of given devices.

    Args:
        phases: what its phases take.
        devices: that placements may use.
    """

    phases: PhaseModel
    devices: Sequence[Device]
    _placed: dict[Workload, PhaseModel] = field(default_factory=dict, repr=False)
    _sizes: dict[tuple[frozenset[Role], int], tuple[int, ...]] = field(default_factory=dict, repr=False)

    def step(self, placement: Placement) -> PredictedStep:
        """What a step takes.

        Raises:
            LookupError: a phase of it was never measured, and the device's peak is not known.
        """
        model, shared_by = self.phases_of(placement), placement.tensor_parallel or 1
        if model.workload and placement.tensor_parallel is None:
            shared_by = model.workload.rollout.tensor_parallel_size
        graph = self.graph(placement)
        pools = {phase.name: placement.pool_of(phase.role) if phase.role else None for phase in graph}
        found = {
            name: model.seconds(
                name, pool.size if pool else 0, nodes=_nodes_of(placement, name), tensor_parallel=shared_by
            )
            for name, pool in pools.items()
        }
        times, seconds = step_times(
            list(found),
            {name: phase.total for name, phase in found.items()},
            {name: pool.name if pool else "" for name, pool in pools.items()},
            placement.overlap,
            staleness=placement.staleness,
            has_engines=placement.has_engines,
            inflight_updates=placement.inflight_updates,
        )
        gaps = model.gaps.seconds(len(placement.pools), len(graph))
        spans = [
            PredictedSpan(name, pool.name if (pool := pools[name]) else "", start, end)
            for name, (start, end) in times.items()
        ]
        ordered = tuple(sorted(spans, key=lambda span: (span.start, span.end)))
        gen = pools.get(GEN)

        def find_host_share() -> float:
            nodes = _nodes_of(placement, GEN)
            return model.host_share(GEN, gen.size, nodes=nodes, tensor_parallel=shared_by) if gen else 0.0

        return PredictedStep(placement, seconds + gaps, found, ordered, gaps, find_host_share)

    def phase_seconds(self, phase: str, devices: int, tensor_parallel: int, most_nodes: int) -> float:
        """The least seconds that a phase takes on a pool of so many devices, on whichever nodes they are.

        Collectives take least on as few nodes as hold the pool, handing memory over on as many as it may lie on.
        """
        apart = PHASE[phase].activity is Activity.HAND_OVER
        nodes = max(1, min(devices, most_nodes)) if apart else None
        return self.phases.seconds(phase, devices, nodes=nodes, tensor_parallel=tensor_parallel).total

    def gap_seconds(self, placement: Placement) -> float:
        """What a step takes beside its phases, in seconds."""
        return self.phases_of(placement).gaps.seconds(len(placement.pools), len(self.graph(placement)))

    def graph(self, placement: Placement) -> tuple[Phase, ...]:
        """The phases of a placement's step with what they wait for: see `walk.walked_graph`."""
        names = self.phases_of(placement).names
        return walked_graph(names, staleness=placement.staleness, has_engines=placement.has_engines)

    def covers(self, placement: Placement) -> bool:
        """Whether no pool of a placement is smaller or larger than those on which its phases were measured."""
        model = self.phases_of(placement)
        sizes = {name: model.measured_sizes(name) for name in model.names}
        return all(
            min(sizes[name]) <= placement.pool_of(role).size <= max(sizes[name])
            for name in model.names
            if (role := PHASE[name].role) and sizes[name]
        )

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """Devices of each node."""
        return devices_per_node(self.devices)

    def phases_of(self, placement: Placement) -> PhaseModel:
        """The phases as the placement runs them: replicas hold whole models, and may each have a batch."""
        if self.phases.workload is None or placement.scaling is None:
            return self.phases
        workload = placed_workload(self.phases.workload, placement)
        if workload not in self._placed:
            model = self.phases
            self._placed[workload] = PhaseModel(
                workload, model.shapes, model.calibrations, model.device, model.per_node, model.core_loop_s
            )
        return self._placed[workload]

    def memory(self, placement: Placement) -> Mapping[str, int]:
        """The most bytes that a device of each pool holds at a time."""
        workload = placed_workload(self._workload, placement)
        return {
            pool.name: self._estimate(workload, placement.roles_in(pool.name), pool.size).peak
            for pool in placement.pools
        }

    def sizes(self, roles: Collection[Role], *, tensor_parallel: int = 1) -> tuple[int, ...]:
        """The numbers of devices that a pool with these roles can have, in rising order.

        Its devices share batch and mini-batch equally, engines whole groups; what it holds fits into its devices.

        Args:
            roles: that live in the pool.
            tensor_parallel: devices that share an engine, where responses are generated in it.
        """
        key = frozenset(roles), tensor_parallel
        if key not in self._sizes:
            shareable = self._shareable(*key)
            rollout = self._workload.rollout.model_copy(update={"tensor_parallel_size": tensor_parallel})
            workload = self._workload.model_copy(update={"rollout": rollout})
            self._sizes[key] = tuple(size for size in shareable if self._fits(workload, roles, size))
        return self._sizes[key]

    def _shareable(self, roles: frozenset[Role], shared_by: int) -> tuple[int, ...]:
        batch = self._workload.batch
        has_rollout, is_apart = Role.ROLLOUT in roles, roles == {Role.ROLLOUT}
        step = shared_by if has_rollout else 1
        return tuple(
            size
            for size in range(step, len(self.devices) + 1, step)
            if batch.size % size == 0
            and not any(Share(Pool("", (size,)), size // shared_by if is_apart else 0).undivided(batch))
        )

    def _fits(self, workload: Workload, roles: Collection[Role], size: int) -> bool:
        have = self._least_memory
        estimate = self._estimate(workload, roles, size)
        if Role.ROLLOUT in roles and workload.rollout.backend == "vllm":
            engine = EngineMemory(estimate.workload, estimate.actor, size, estimate.kind, have)
            if engine.is_starved:
                return False
        return estimate.peak <= have

    def _estimate(self, workload: Workload, roles: Collection[Role], size: int) -> MemoryEstimate:
        shapes, device = self.phases.shapes, self.devices[0]
        assert shapes is not None
        return MemoryEstimate(
            workload, shapes.actor, shapes.critic, tuple(roles), size, device.kind, shapes.reward, self._least_memory
        )

    @cached_property
    def _least_memory(self) -> int:
        return min(device.memory_bytes for device in self.devices)

    @property
    def _workload(self) -> Workload:
        """The workload of placebench's own job; a job of the user's has none, and no sizes or memory that is known."""
        assert self.phases.workload is not None
        return self.phases.workload


def _nodes_of(placement: Placement, name: str) -> int:
    """How many nodes a phase's devices lie on, and those of the actor's first rank where it sends its weights."""
    role = PHASE[name].role
    if role is None:
        return 1
    nodes = placement.pool_of(role).nodes
    is_sent_to = PHASE[name].activity is Activity.SEND_WEIGHTS and placement.pool_of(Role.ACTOR).nodes[0] not in nodes
    return len(nodes) + is_sent_to
