"""The single controller: walks the step graph and submits each phase as soon as its inputs are there.

It imports numpy, never torch. A pool works on one phase at a time; phases of different pools overlap as
far as the placement lets them. Where engines have a pool of their own, `gen` is theirs: see `engine_pool`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placebench.ppo.engine_pool import EnginePool
from placebench.ppo.generation import Generation
from placebench.ppo.metrics import PhaseIntervals
from placebench.ppo.rollout.gauges import Gauges
from placebench.ppo.rollout.queues import lag
from placebench.ppo.running import Running, RunningWork
from placebench.ppo.step_data import StepData, StepState
from placebench.record.checkpoints import Checkpoint
from placebench.sessions.base import Calls
from placebench.spec.phases import GEN, UPDATE_ACTOR, UPDATE_WEIGHTS, Phase
from placebench.spec.placement import Placement, Role
from placebench.spec.stepgraph import ready_phases, step_graph
from placebench.spec.workload import Workload
from placebench.tasks.rewards import is_judged_by_main
from placebench.telemetry.spans import SpanRecorder


@dataclass(frozen=True)
class StepRecord:
    """What is kept of a step."""

    metrics: dict[str, float]
    """Under verl's names."""
    spans: list[dict[str, Any]]
    """Of all devices and the controller, objects of `spans.jsonl`."""
    kernels: list[dict[str, Any]]
    """Objects of `kernels.jsonl`; none unless they are traced."""


class Controller:
    """Runs training steps over pools of workers.

    Args:
        workload: the job.
        placement: where phases run and what may overlap.
        pools: the worker handles of each pool, by rank.
        calls: how their answers are waited for.
        generation: what is generated.
        on_progress: called with the step and the names of the phases running, at every change.
        hands_over: whether the rollout's engine gives its memory back while its pool trains.
    """

    def __init__(
        self,
        workload: Workload,
        placement: Placement,
        pools: Mapping[str, Sequence[Any]],
        calls: Calls,
        generation: Generation,
        on_progress: Callable[[int, tuple[str, ...]], None],
        *,
        hands_over: bool,
    ) -> None:
        self._workload, self._placement, self._pools = workload, placement, pools
        self._generation, self._on_progress = generation, on_progress
        self._graph = step_graph(
            hands_over=hands_over,
            has_critic=workload.algorithm.has_critic,
            staleness=placement.staleness,
            has_engines=placement.has_engines,
        )
        self._engines: EnginePool | None = None
        if placement.has_engines:
            self._engines = EnginePool(workload, placement, pools[placement.roles[Role.ROLLOUT]], generation)
        self._data = StepData(workload, generation, is_stale=placement.staleness > 0)
        self._recorder = SpanRecorder("controller")
        self._gauges = Gauges(self._recorder.now())
        self._times = PhaseIntervals()
        self._running = RunningWork(calls)
        # Steps whose sequences the actor's pool generates beforehand.
        self._ahead = 0 if self._engines else placement.staleness
        # Steps that have begun and are not over, or of which a phase goes on, and those ahead, in order.
        self._open: dict[int, StepState] = {}
        self._now = 0
        # Updates that the weights which generate have had, where they share the actor's pool.
        self._version = 0
        self._ended: float | None = None
        self._worker_spans: list[dict[str, Any]] = []
        self._kernels: list[dict[str, Any]] = []

    @property
    def kl_coef(self) -> float:
        """The coefficient of the KL after the steps so far."""
        return self._data.kl.coefficient

    def go_on_from(self, checkpoint: Checkpoint) -> None:
        """Let the next step be the one after a checkpoint's."""
        self._data.go_on_from(checkpoint)
        self._version = checkpoint.step
        if self._engines:
            self._engines.go_on_from(checkpoint.step)

    def run_step(self, step: int) -> StepRecord:
        """Run one step; with a staleness above 0, sequences of later ones are generated meanwhile."""
        start = self._recorder.now()
        if self._engines and self._placement.staleness and self._ended is not None:
            start = self._ended  # work goes on between steps, and that time belongs to the later one
        else:
            self._gauges.cut(start)
        self._now = step
        for opened in range(step, step + self._ahead + 1):
            if opened not in self._open:
                prompts = [] if self._engines else self._generation.step_prompts(opened)
                self._open[opened] = StepState(opened, prompts)
        state = self._open[step]
        while not self._is_over(state):
            if self._engines:
                self._serve(self._engines, state)
            for phase, owner in self._submittable():
                if phase.role is None:
                    self._compute(owner, phase)
                else:
                    self._running.add(self._submit(owner, phase, phase.role))
            if not self._is_over(state) and not any(self._submittable()):
                self._wait(state)
        self._ended = self._recorder.now()
        return self._record(state, start, self._ended)

    def settle(self) -> None:
        """Let weights that are on their way arrive: until then learners may not answer anybody else.

        The next step begins when it is called for, as if it were the first.
        """
        while any(one.phase == UPDATE_WEIGHTS for one in self._running.all):
            self._collect()
        self._ended = None

    def finish(self) -> StepRecord:
        """Wait for what still goes on when the last step is over; returns its spans and kernels."""
        while self._running.all:
            self._collect()
        return self._drain({})

    def _is_over(self, state: StepState) -> bool:
        """Whether the next step may begin."""
        return all(phase.name in state.done for phase in self._graph if not phase.outlasts)

    def _is_done(self, step: int, phase: str) -> bool:
        """Whether a phase of any step is done; what would have come before the first step is."""
        if step in self._open:
            return phase in self._open[step].done
        return step < max(self._open, default=1)

    def _record(self, state: StepState, start: float, end: float) -> StepRecord:
        self._recorder.add(state.step, "step", start, end)
        for one in self._running.all:
            self._times.add(one.phase, one.start, end)
        if self._engines:
            state.metrics.engines(self._gauges.cut(end), self._engines.cut_flow(), self._engines.engines)
        elif self._ahead:
            state.metrics.lags([lag(state.step, state.version)])
        times = self._times.cut(start, end)
        metrics = state.metrics.finish(state.sequences, times, end - start, self._placement.size, self._workload)
        return self._drain(metrics)

    def _drain(self, metrics: dict[str, float]) -> StepRecord:
        """A record of the metrics, with all spans and kernels that are not in one yet."""
        record = StepRecord(metrics, self._worker_spans + self._recorder.drain(), self._kernels)
        self._worker_spans, self._kernels = [], []
        return record

    def _submittable(self) -> list[tuple[Phase, StepState]]:
        """Ready phases whose pools are free, at most one a pool, and the step of each."""
        busy = {pool for one in self._running.all for pool in one.occupies}
        chosen: list[tuple[Phase, StepState]] = []
        # In a step, too, generation comes first: after it the engine's memory may be training's.
        for state in sorted(self._open.values(), key=lambda state: GEN in state.done):
            names = self._beside(state, chosen)
            for phase in ready_phases(self._graph, frozenset(state.done), names, self._placement.overlap):
                pools = self._pools_of(phase)
                if not pools & busy and self._may_start(phase, state.step):
                    chosen.append((phase, state))
                    busy |= pools
        return chosen

    def _beside(self, state: StepState, chosen: Sequence[tuple[Phase, StepState]]) -> frozenset[str]:
        """Names of the phases beside which one of a step would run, as far as the placement may forbid that."""
        if self._engines:
            # Parts that engines generate hold up nothing: the step may have others.
            return frozenset(one.phase for one in self._running.all if one.step == state.step and one.occupies)
        return frozenset([*(one.phase for one in self._running.all), *(phase.name for phase, _ in chosen)])

    def _may_start(self, phase: Phase, step: int) -> bool:
        """What the graph's own edges within the step do not say."""
        if step > self._now and phase.name != GEN:
            return False
        if self._engines and phase.name == GEN:
            return False  # it runs part by part, see `_serve`
        if self._engines and phase.name == UPDATE_WEIGHTS and not self._placement.inflight_updates:
            return not self._engines.generating
        return all(self._is_done(step - back, name) for name, back in phase.across)

    def _pools_of(self, phase: Phase) -> frozenset[str]:
        """The pools that work on a phase: none for the controller's own."""
        return frozenset(self._placement.roles[role] for role in (phase.role, phase.partner) if role)

    def _serve(self, engines: EnginePool, state: StepState) -> None:
        """Let steps' prompts in whose weights are new enough, keep engines busy, and take what a step needs."""
        gen = next(phase for phase in self._graph if phase.name == GEN)
        # Beyond the last step too: the last steps are to be measured with engines as busy as before.
        while all(self._is_done(engines.admitted + 1 - back, name) for name, back in gen.across):
            engines.admit_next()
        if not self._weights_due():
            for one in engines.submit(self._recorder.now):
                self._running.add(one)
        if state.batch is None and (taken := engines.take(state.step)):
            state.prompts, state.batch = taken.prompts, taken.batch
            state.done.add(GEN)

    def _weights_due(self) -> bool:
        """Whether there are newer weights than the engines'; they get these before they generate more."""
        return any(UPDATE_ACTOR in state.done and UPDATE_WEIGHTS not in state.done for state in self._open.values())

    def _submit(self, state: StepState, phase: Phase, role: Role) -> Running:
        pool, start = self._placement.roles[role], self._recorder.now()
        workers = self._pools[pool]
        if role is Role.REWARD and is_judged_by_main(self._workload):
            workers = workers[:1]
        shares = self._data.shares(state, phase.name, len(workers))
        if phase.name == GEN:
            state.version = self._version
        if self._engines and phase.name == UPDATE_WEIGHTS:
            pending = self._engines.update(state.step) + self._send_weights(state.step)
        else:
            pending = [
                worker.run.remote(state.step, phase.name, role.value, self._data.arguments(state, phase.name, share))
                for worker, share in zip(workers, shares, strict=True)
            ]

        def finish(results: list[Any]) -> None:
            self._data.absorb(state, phase.name, shares, results)
            if phase.name == UPDATE_WEIGHTS:
                self._weights_arrived(state.step, max(results))
            state.done.add(phase.name)

        return Running(state.step, phase.name, role, pool, self._pools_of(phase), start, pending, finish)

    def _send_weights(self, step: int) -> list[Any]:
        role = Role.ACTOR
        return [
            worker.run.remote(step, UPDATE_WEIGHTS, role.value, {"version": step})
            for worker in self._pools[self._placement.roles[role]]
        ]

    def _weights_arrived(self, step: int, written: int) -> None:
        self._version = step
        if written:
            # Where weights outlast their step, it is the next one that goes on now.
            self._open[self._now].metrics.weights_written(written)

    def _compute(self, state: StepState, phase: Phase) -> None:
        """Run a phase that is the controller's own."""
        start = self._recorder.now()
        self._data.compute(state, phase.name)
        state.done.add(phase.name)
        end = self._recorder.now()
        self._recorder.add(state.step, phase.name, start, end)
        self._times.add(phase.name, start, end)

    def _wait(self, state: StepState) -> None:
        """Report what goes on, and wait until some of it is done."""
        phases = [one.phase for one in self._running.all]
        self._on_progress(state.step, tuple(dict.fromkeys(phases)))
        if self._engines:
            starved = state.batch is None and set(phases) <= {GEN}
            levels = self._engines.levels(updating=UPDATE_WEIGHTS in phases, starved=starved)
            self._gauges.set(self._recorder.now(), levels)
        self._collect()

    def _collect(self) -> None:
        """Wait until something is done on all its ranks, and take its answers."""
        for one in self._running.wait():
            answers = [one.answers[rank] for rank in range(len(one.pending))]
            for answer in answers:
                self._worker_spans += answer.spans
                self._kernels += answer.kernels
            one.finish([answer.result for answer in answers])
            end = self._recorder.now()
            self._recorder.add(one.step, one.phase, one.start, end, one.role, one.pool)
            self._times.add(one.phase, one.start, end)
        for step in [step for step, known in self._open.items() if len(known.done) == len(self._graph)]:
            del self._open[step]
        if self._engines:
            for one in self._engines.catch_up(self._recorder.now):
                self._running.add(one)
