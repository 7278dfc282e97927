"""The single controller: walks the step graph and submits each phase as soon as its inputs are there.

It imports numpy and ray, never torch. A pool works on one phase at a time; phases of different pools overlap as
far as the placement lets them.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any

import numpy as np
import ray

from placebench.errors import UsageError
from placebench.placement import Placement
from placebench.ppo.advantages import (
    KLController,
    estimate_kl,
    generalized_advantages,
    group_advantages,
    token_rewards,
    whiten,
)
from placebench.ppo.batch import SequenceBatch, balanced_shares, merge_shares, rank_indices
from placebench.ppo.checkpoints import Checkpoint
from placebench.ppo.data import Prompt, PromptSource
from placebench.ppo.metrics import StepMetrics
from placebench.ppo.tokenizer import Tokenizer
from placebench.stepgraph import HAND_OVER, Phase, ready_phases, step_graph
from placebench.telemetry.spans import SpanRecorder
from placebench.workload import Workload

# Per-token fields that each phase reads; nothing else is sent.
READS: Mapping[str, tuple[str, ...]] = {
    "update_actor": ("old_log_probs", "ref_log_probs", "advantages"),
    "update_critic": ("values", "returns"),
}
# Per-token field that each phase's result becomes.
WRITES: Mapping[str, str] = {"old_log_prob": "old_log_probs", "ref": "ref_log_probs", "values": "values"}


@dataclass(frozen=True)
class StepRecord:
    """What is kept of a step.

    Attributes:
        metrics: under verl's names.
        spans: of all devices and the controller, objects of `spans.jsonl`.
        kernels: objects of `kernels.jsonl`; none in steps that are not traced.
    """

    metrics: dict[str, float]
    spans: list[dict[str, Any]]
    kernels: list[dict[str, Any]]


@dataclass
class _StepState:
    """What one step knows so far."""

    step: int
    prompts: list[Prompt]
    batch: SequenceBatch | None = None
    metrics: StepMetrics = field(default_factory=StepMetrics)

    @property
    def sequences(self) -> SequenceBatch:
        assert self.batch is not None, "the graph runs gen before every phase that reads its sequences"
        return self.batch


class Controller:
    """Runs training steps over pools of workers.

    Args:
        workload: the job.
        placement: where phases run and what may overlap.
        pools: the worker handles of each pool, by rank.
        prompts: where prompts come from.
        tokenizer: the actor's.
        on_progress: called with the step and the names of the phases running, at every change.
        hands_over: whether the rollout's engine gives its memory back while its pool trains.
    """

    def __init__(
        self,
        workload: Workload,
        placement: Placement,
        pools: Mapping[str, Sequence[Any]],
        prompts: PromptSource,
        tokenizer: Tokenizer,
        on_progress: Callable[[int, tuple[str, ...]], None],
        *,
        hands_over: bool,
    ) -> None:
        self._workload, self._placement, self._pools = workload, placement, pools
        self._prompts, self._tokenizer = prompts, tokenizer
        self._on_progress = on_progress
        self._graph = step_graph(hands_over=hands_over, has_critic=workload.algorithm.has_critic)
        self._kl = KLController(workload.algorithm, workload.algorithm.kl_coef)
        self._recorder = SpanRecorder("controller")
        self._worker_spans: list[dict[str, Any]] = []
        self._kernels: list[dict[str, Any]] = []

    @property
    def kl_coef(self) -> float:
        """The coefficient of the KL after the steps so far."""
        return self._kl.coefficient

    def go_on_from(self, checkpoint: Checkpoint) -> None:
        """Let the next step be the one after a checkpoint's."""
        self._kl.coefficient = checkpoint.kl_coef

    def run_step(self, step: int) -> "StepRecord":
        """Run one step."""
        start = time.monotonic()
        state = _StepState(step, self._step_prompts(step))
        done: frozenset[str] = frozenset()
        running: dict[Any, _Running] = {}
        while len(done) < len(self._graph):
            for phase in self._submittable(done, running.values()):
                if phase.role is None:
                    self._compute_advantages(state, phase)
                    done |= {phase.name}
                else:
                    submitted = self._submit(state, phase)
                    running.update(dict.fromkeys(submitted.pending, submitted))
            if not self._submittable(done, running.values()):
                self._on_progress(step, tuple(dict.fromkeys(one.phase.name for one in running.values())))
                done |= self._wait(state, running)
        end = self._recorder.now()
        self._recorder.add(step, "step", start, end)
        metrics = state.metrics.finish(state.sequences, end - start, self._placement.size, self._workload)
        record = StepRecord(metrics, self._worker_spans + self._recorder.drain(), self._kernels)
        self._worker_spans, self._kernels = [], []
        return record

    def _step_prompts(self, step: int) -> list[Prompt]:
        """One prompt a sequence: each of the step's prompts as often as its group is large."""
        batch = self._workload.batch
        prompts = self._prompts.step_prompts(step, batch.size // batch.group_size)
        return [prompt for prompt in prompts for _ in range(batch.group_size)]

    def _submittable(self, done: frozenset[str], running: Any) -> tuple[Phase, ...]:
        """Ready phases whose pool is free, at most one a pool."""
        busy = {one.pool for one in running}
        names = frozenset(one.phase.name for one in running)
        chosen: list[Phase] = []
        for phase in ready_phases(self._graph, done, names, self._placement.overlap):
            pool = self._placement.roles[phase.role] if phase.role else None
            if pool not in busy:
                chosen.append(phase)
                busy |= {pool} if pool else set()
        return tuple(chosen)

    def _submit(self, state: _StepState, phase: Phase) -> "_Running":
        assert phase.role is not None
        pool = self._placement.roles[phase.role]
        workers = self._pools[pool]
        start = self._recorder.now()
        shares = self._shares(state, len(workers))
        pending = [
            worker.run.remote(state.step, phase.name, phase.role.value, self._arguments(state, phase.name, share))
            for worker, share in zip(workers, shares, strict=True)
        ]
        return _Running(phase, pool, start, shares, pending)

    def _shares(self, state: _StepState, ranks: int) -> list[np.ndarray[Any, Any]]:
        """The sequences of each rank: by their lengths once these are known, which is after `gen`."""
        batch = self._workload.batch
        if state.batch is None:
            return rank_indices(batch.size, ranks)
        return balanced_shares(state.batch.lengths, batch.mini_batch_size, ranks)

    def _wait(self, state: _StepState, running: dict[Any, "_Running"]) -> frozenset[str]:
        """Wait until a phase is done on all its ranks; a rank's error is raised at once."""
        finished: set[str] = set()
        while not finished:
            ready, _ = ray.wait(list(running), num_returns=1)
            for reference in ready:
                one = running.pop(reference)
                one.results[one.pending.index(reference)] = ray.get(reference)
                if len(one.results) == len(one.pending):
                    self._collect(state, one)
                    finished.add(one.phase.name)
        return frozenset(finished)

    def _collect(self, state: _StepState, one: "_Running") -> None:
        ordered = [one.results[rank] for rank in range(len(one.pending))]
        for told in ordered:
            self._worker_spans += told.spans
            self._kernels += told.kernels
        self._absorb(state, one, [told.result for told in ordered])
        end = self._recorder.now()
        self._recorder.add(state.step, one.phase.name, one.start, end, one.phase.role, one.pool)
        state.metrics.timing(one.phase.name, one.start, end)

    def _arguments(self, state: _StepState, phase: str, share: np.ndarray[Any, Any]) -> dict[str, Any]:
        """What one rank needs for a phase: its share of the sequences, and the fields the phase reads."""
        if phase == "update_weights" or phase in HAND_OVER:
            return {}
        if phase == "gen":
            return self._generation(state, share)
        arguments: dict[str, Any] = {"batch": state.sequences.select(share, READS.get(phase, ()))}
        if phase == "reward":
            arguments["prompts"] = [state.prompts[index].text for index in share]
            arguments["answers"] = [state.prompts[index].answer for index in share]
        if phase in READS:
            lengths = state.sequences.response_lengths.reshape(-1, self._workload.batch.mini_batch_size)
            arguments["mini_batch_tokens"] = lengths.sum(axis=1).tolist()
        if phase == "update_actor":
            arguments["kl_coef"] = self._kl.coefficient
        return arguments

    def _generation(self, state: _StepState, share: np.ndarray[Any, Any]) -> dict[str, Any]:
        sources = [np.random.default_rng([self._workload.seed, state.step, int(index)]) for index in share]
        return {
            "prompts": [self._encode(state.prompts[index].text) for index in share],
            "longest": [self._longest_response(source) for source in sources],
            "seeds": [int(source.integers(2**32)) for source in sources],
        }

    def _longest_response(self, source: np.random.Generator) -> int:
        rollout, longest = self._workload.rollout, self._workload.batch.max_response_length
        if rollout.response_lengths == "longest":
            return longest
        drawn = source.lognormal(log(rollout.response_length_median), rollout.response_length_sigma)
        return min(longest, max(1, round(drawn)))

    def _encode(self, text: str) -> list[int]:
        tokens, limit = self._tokenizer.encode(text), self._workload.batch.max_prompt_length
        if not 0 < len(tokens) <= limit:
            raise UsageError(
                f"a prompt has {len(tokens)} tokens, batch.max_prompt_length allows 1 to {limit}: {text[:60]!r};"
                " raise it with --set batch.max_prompt_length=N"
            )
        return tokens

    def _absorb(self, state: _StepState, one: "_Running", results: list[Any]) -> None:
        """Take a phase's results, one per rank, into the step's batch and metrics."""
        phase = one.phase.name
        if phase == "gen":
            state.batch = merge_shares(results, one.shares)
        elif phase == "reward":
            scores = np.concatenate(results)[np.argsort(np.concatenate(one.shares))]
            state.batch = state.sequences.with_fields(per_sequence={"scores": scores})
        elif phase in WRITES:
            state.batch = self._with_token_field(state, WRITES[phase], one.shares, results)
        elif phase in READS:
            state.metrics.update(phase, results, self._workload)
        elif phase == "update_weights" and results[0]:
            state.metrics.weights_written(results[0])

    def _with_token_field(
        self, state: _StepState, name: str, shares: list[np.ndarray[Any, Any]], results: list[Any]
    ) -> SequenceBatch:
        shards = [
            state.sequences.select(share, ()).with_fields({name: values})
            for share, values in zip(shares, results, strict=True)
        ]
        return state.sequences.with_fields({name: merge_shares(shards, shares).per_token[name]})

    def _compute_advantages(self, state: _StepState, phase: Phase) -> None:
        """The `adv` phase: rewards with KL, advantages, whitening; in float64 on the controller."""
        start = self._recorder.now()
        algorithm, batch = self._workload.algorithm, state.sequences
        mask = batch.response_mask()
        table = {name: batch.padded(batch.per_token[name].astype(np.float64)) for name in batch.per_token}
        old, ref = table["old_log_probs"], table["ref_log_probs"]
        kl = np.where(mask, estimate_kl(old, ref, algorithm.kl_estimator), 0.0)
        scores = batch.per_sequence["scores"].astype(np.float64)
        rewards = token_rewards(scores, kl, mask, self._kl.coefficient if algorithm.kl_in_reward else 0.0)
        if algorithm.whiten_rewards:
            rewards = whiten(rewards, mask, shift_mean=False)
        fields: dict[str, np.ndarray[Any, Any]] = {}
        if algorithm.has_critic:
            raw, fields["returns"] = generalized_advantages(
                rewards, table["values"], mask, algorithm.gamma, algorithm.lam
            )
        else:
            by_std = algorithm.norm_adv_by_std_in_grpo
            raw = group_advantages(rewards, mask, self._workload.batch.group_size, by_std=by_std)
        fields["advantages"] = whiten(raw, mask) if algorithm.whiten_advantages else raw
        state.batch = batch.with_fields({name: values[mask].astype(np.float32) for name, values in fields.items()})
        state.metrics.rewards(scores, rewards, kl, mask, self._kl.coefficient)
        self._kl.update(float(kl[mask].mean()), len(batch))
        end = self._recorder.now()
        self._recorder.add(state.step, phase.name, start, end)
        state.metrics.timing(phase.name, start, end)


@dataclass
class _Running:
    """A submitted phase: its ranks' sequences and pending results, and those that are in, by rank."""

    phase: Phase
    pool: str
    start: float
    shares: list[np.ndarray[Any, Any]]
    pending: list[Any]
    results: dict[int, Any] = field(default_factory=dict)
