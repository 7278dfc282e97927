"""What a training step knows: gives each phase of it what the phase's row names, and takes its result.

It imports numpy, never torch, and knows nothing of pools and time: see `controller`.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placebench.ppo.advantages import (
    KLController,
    estimate_kl,
    generalized_advantages,
    group_advantages,
    token_rewards,
    whiten,
)
from placebench.ppo.batch import SequenceBatch, balanced_shares, merge_shares, rank_indices
from placebench.ppo.generation import Generation
from placebench.ppo.metrics import StepMetrics
from placebench.record.checkpoints import Checkpoint
from placebench.spec.nested import flatten
from placebench.spec.phases import GEN, PHASE, SEQUENCE_FIELDS, Activity, Phase
from placebench.spec.workload import Workload
from placebench.tasks.data import Prompt


@dataclass
class StepState:
    """What one step knows so far."""

    step: int
    """Number of the step, counted from 1."""
    prompts: list[Prompt]
    """Prompts of the sequences; with engines of their own known when `gen` is done."""
    done: set[str] = field(default_factory=set)
    """Names of the finished phases."""
    batch: SequenceBatch | None = None
    """The sequences, once `gen` is done."""
    metrics: StepMetrics = field(default_factory=StepMetrics)
    version: int = 0
    """Updates that the weights which generated had had, where they share the actor's pool."""
    kl_coef: float = 0.0
    """Coefficient of the KL, once `adv` is done."""

    @property
    def sequences(self) -> SequenceBatch:
        """The batch, for phases that come after `gen`."""
        assert self.batch is not None, "the graph runs gen before every phase that reads its sequences"
        return self.batch


class StepData:
    """Gives phases what they read of a step, and takes their results into it.

    Args:
        workload: the job.
        generation: what is generated.
        is_stale: whether older weights than the actor's may have generated.

    Attributes:
        kl: the coefficient of the KL, of the step whose `adv` comes next.
    """

    def __init__(self, workload: Workload, generation: Generation, *, is_stale: bool) -> None:
        self._workload, self._generation, self._is_stale = workload, generation, is_stale
        self.kl = KLController(workload.algorithm, workload.algorithm.kl_coef)

    def go_on_from(self, checkpoint: Checkpoint) -> None:
        """Let the coefficient of the KL go on as it had moved, unless it is now another one or moves no more."""
        algorithm = self._workload.algorithm
        then = flatten(checkpoint.workload).get("algorithm.kl_coef")
        if algorithm.kl_control == "adaptive" and algorithm.kl_coef == then:
            self.kl.coefficient = checkpoint.kl_coef

    def shares(self, state: StepState, phase: str, ranks: int) -> list[np.ndarray[Any, Any]]:
        """The sequences of each rank in a phase: by their lengths once these are known, which is after `gen`.

        Phases of weights and memory have none, whatever the number of ranks.
        """
        batch = self._workload.batch
        if not PHASE[phase].has_sequences:
            return [np.arange(0)] * ranks
        if state.batch is None:
            return rank_indices(batch.size, ranks)
        return balanced_shares(state.batch.lengths, batch.mini_batch_size, ranks)

    def arguments(self, state: StepState, phase: str, share: np.ndarray[Any, Any]) -> dict[str, Any]:
        """What one rank needs for a phase: its share of the sequences, and what the phase reads and takes."""
        row = PHASE[phase]
        if phase == GEN:
            return self._generation.arguments(state.step, state.prompts, share)
        arguments = {name: self._known(state, name, share) for name in row.takes}
        if row.has_sequences:
            reads = row.reads + (row.stale_reads if self._is_stale else ())
            arguments["batch"] = state.sequences.select(share, (name for name in reads if name not in SEQUENCE_FIELDS))
        return arguments

    def _known(self, state: StepState, name: str, share: np.ndarray[Any, Any]) -> Any:
        """What a phase takes besides sequences, by the name that its row gives it."""
        match name:
            case "prompts":
                return [state.prompts[index].text for index in share]
            case "answers":
                return [state.prompts[index].answer for index in share]
            case "mini_batch_tokens":
                lengths = state.sequences.response_lengths.reshape(-1, self._workload.batch.mini_batch_size)
                return lengths.sum(axis=1).tolist()
            case "kl_coef":
                return state.kl_coef
            case "version":
                return state.step
        raise AssertionError(f"no step knows {name}")

    def absorb(self, state: StepState, phase: str, shares: list[np.ndarray[Any, Any]], results: list[Any]) -> None:
        """Take a phase's results, one per rank, into the step's batch and metrics."""
        row = PHASE[phase]
        match row.activity:
            case Activity.GENERATE:
                state.batch = merge_shares(results, shares)
            case Activity.UPDATE:
                state.metrics.update(row, results)
            case Activity.FORWARD:
                state.batch = self._with_field(state.sequences, row, shares, results)

    def _with_field(
        self, batch: SequenceBatch, row: Phase, shares: list[np.ndarray[Any, Any]], results: list[Any]
    ) -> SequenceBatch:
        (name,) = row.writes
        if row.per_sequence:
            values = np.concatenate(results)[np.argsort(np.concatenate(shares))]
            return batch.with_fields(per_sequence={name: values})
        shards = [
            batch.select(share, ()).with_fields({name: values}) for share, values in zip(shares, results, strict=True)
        ]
        return batch.with_fields({name: merge_shares(shards, shares).per_token[name]})

    def compute(self, state: StepState, phase: str) -> None:
        """Run a phase that is the controller's own."""
        getattr(self, f"_compute_{phase}")(state)

    def _compute_adv(self, state: StepState) -> None:
        """Rewards with KL, advantages, whitening; in float64."""
        algorithm, batch = self._workload.algorithm, state.sequences
        state.kl_coef = self.kl.coefficient
        mask = batch.response_mask()
        table = {name: batch.padded(batch.per_token[name].astype(np.float64)) for name in batch.per_token}
        old, ref = table["old_log_probs"], table["ref_log_probs"]
        kl = np.where(mask, estimate_kl(old, ref, algorithm.kl_estimator), 0.0)
        scores = batch.per_sequence["scores"].astype(np.float64)
        rewards = token_rewards(scores, kl, mask, state.kl_coef if algorithm.kl_in_reward else 0.0)
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
        state.metrics.rewards(scores, rewards, kl, mask, state.kl_coef)
        self.kl.update(float(kl[mask].mean()), len(batch))
