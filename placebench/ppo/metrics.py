"""A step's metrics, under verl's names."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placebench.ppo.batch import SequenceBatch
from placebench.ppo.engine_pool import Flow
from placebench.ppo.rollout.gauges import LevelTimes
from placebench.spec.intervals import Intervals, length, union
from placebench.spec.phases import Phase
from placebench.spec.workload import Workload

NOT_SUMMED = ("grad_norm", "lr")
"""What an update phase reports of its optimizer, beside sums over tokens."""


class PhaseIntervals:
    """When phases were under way, as the controller sees it: from submission to result, monotonic seconds."""

    def __init__(self) -> None:
        self._intervals: dict[str, list[tuple[float, float]]] = {}

    def add(self, phase: str, start: float, end: float) -> None:
        """Record a phase."""
        self._intervals.setdefault(phase, []).append((start, end))

    def cut(self, start: float, end: float) -> dict[str, Intervals]:
        """What was recorded since the last call and lies between two times, each phase disjoint."""
        recorded, self._intervals = self._intervals, {}
        return {phase: union(np.clip(np.asarray(pairs), start, end)) for phase, pairs in recorded.items()}


class StepMetrics:
    """Collects what the phases of one step report."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}
        self._loss_sums: dict[str, float] = {}

    def update(self, phase: Phase, results: Sequence[dict[str, float]]) -> None:
        """Losses of an update phase from its ranks' sums; what is no sum is equal in all ranks."""
        for name in results[0]:
            if name in NOT_SUMMED:
                self._values[f"{phase.role}/{name}"] = results[0][name]
            else:
                self._loss_sums[name] = sum(result[name] for result in results)

    def rewards(
        self,
        scores: NDArray[np.float64],
        rewards: NDArray[np.float64],
        kl: NDArray[np.float64],
        mask: NDArray[np.bool_],
        kl_coef: float,
    ) -> None:
        """Keep what the step was rewarded with.

        Args:
            scores: of the responses, [sequences].
            rewards: per token, [sequences, longest response]; their sums over each response are told.
            kl: to the reference per token in nats, likewise; its mean is told.
            mask: True on response tokens, likewise.
            kl_coef: coefficient of the KL.
        """
        self._spread("critic/score", scores)
        self._spread("critic/rewards", np.where(mask, rewards, 0.0).sum(axis=1))
        self._values["actor/reward_kl_penalty"] = float(kl[mask].mean())
        self._values["actor/reward_kl_penalty_coeff"] = kl_coef

    def finish(
        self, batch: SequenceBatch, times: Mapping[str, Intervals], seconds: float, devices: int, workload: Workload
    ) -> dict[str, float]:
        """All metrics of the step.

        Args:
            batch: the step's sequences with every field.
            times: when each phase was under way during the step, as the controller sees it.
            seconds: wall time of the step.
            devices: devices of the placement; throughput is tokens/s/device.
            workload: the job.
        """
        loss_tokens = batch.response_tokens * workload.algorithm.epochs
        for name, total in self._loss_sums.items():
            self._values[name] = total / loss_tokens
        for name in ("advantages", "returns", "values"):
            if name in batch.per_token:  # without a critic there are advantages alone
                self._spread(f"critic/{name}", batch.per_token[name])
        self._probability_difference(batch)
        self._spread("response_length", batch.response_lengths)
        cut = batch.response_lengths == workload.batch.max_response_length
        self._values["response_length/clip_ratio"] = float(cut.mean())
        self._spread("prompt_length", batch.prompt_lengths)
        self._work(batch)
        tokens = int(batch.lengths.sum())
        self._values["perf/total_num_tokens"] = tokens
        self._values["perf/time_per_step"] = seconds
        self._values["perf/throughput"] = tokens / seconds / devices
        timing = {f"timing_s/{phase}": length(intervals) for phase, intervals in times.items()}
        attributed = length(union(np.concatenate([np.empty((0, 2)), *times.values()])))
        timing |= {"timing_s/unattributed": seconds - attributed, "timing_s/step": seconds}
        return timing | self._values  # times first, as a reader of the line looks for them

    def weights_written(self, bytes_written: int) -> None:
        """Bytes of weights written into the engine of one device."""
        self._values["perf/update_weights_bytes"] = bytes_written

    def lags(self, updates: Sequence[int]) -> None:
        """By how many updates the weights that generated are older than those that the step begins with."""
        self._values["training/lag_mean"] = float(np.mean(updates))
        self._values["training/lag_max"] = max(updates)

    def engines(self, levels: LevelTimes, flow: Flow, engines: int) -> None:
        """What lay between engines in a pool of their own and the trainer during the step."""
        seconds, integrals = levels.seconds, levels.integrals
        self.lags(flow.lags)
        self._values["training/dropped_sequences"] = flow.dropped
        self._values["training/queue_mean"] = integrals["queued"] / seconds
        self._values["training/queue_max"] = levels.peaks["queued"]
        self._values["training/trainer_wait_s"] = integrals["starved"]
        self._values["training/engine_wait_s"] = integrals["idle"] / engines
        self._values["training/generated_tokens"] = flow.generated
        self._values["training/generating_s"] = integrals["generating"] / engines

    def _work(self, batch: SequenceBatch) -> None:
        """What the step's arithmetic and its traffic of keys and values follow from."""
        lengths, responses = batch.lengths.astype(np.float64), batch.response_lengths.astype(np.float64)
        # Mean length of a sequence over tokens: attention works on the sum of squared lengths.
        self._values["perf/attention_length"] = float((lengths**2).sum() / lengths.sum())
        # Tokens that a new one attends to, summed over all new ones.
        read = batch.prompt_lengths * responses + responses * (responses - 1) / 2
        self._values["perf/decode_context_tokens"] = float(read.sum())
        self._values["perf/decode_steps"] = int(responses.max())

    def _probability_difference(self, batch: SequenceBatch) -> None:
        """How far the rollout's probabilities of its tokens, where it told them, are from the policy's own."""
        if "rollout_log_probs" not in batch.per_token:
            return
        rollout, policy = (np.exp(batch.per_token[name]) for name in ("rollout_log_probs", "old_log_probs"))
        difference = np.abs(rollout - policy)
        self._values["training/rollout_probs_diff_mean"] = float(difference.mean())
        self._values["training/rollout_probs_diff_max"] = float(difference.max())

    def _spread(self, name: str, values: NDArray[Any]) -> None:
        for word, reduce in (("mean", np.mean), ("max", np.max), ("min", np.min)):
            self._values[f"{name}/{word}"] = float(reduce(values))


def format_step(step: int, metrics: dict[str, float]) -> str:
    """Verl's console line of a step: `step:3 - timing_s/gen:1.234 - ...`."""
    return " - ".join([f"step:{step}", *(f"{name}:{value!r}" for name, value in metrics.items())])
