"""What the devices of a pool have to do in a phase of a step: counted, not timed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, erf, inf, log, sqrt

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from placebench.record.calibration_file import MeasuredCase, StepCounts
from placebench.spec.phases import GEN, PHASE, UPDATE_WEIGHTS, Phase
from placebench.spec.placement import Role
from placebench.spec.shapes import JobShapes, ModelShape
from placebench.spec.workload import Workload

# Into so many stretches of equal length generation is cut, each taken as at its middle.
_STRETCHES = 12


@dataclass(frozen=True)
class Stretch:
    """Token steps of an engine that are alike."""

    steps: float
    sequences: float
    """That are generated at a time."""
    context: float
    """Mean number of tokens that a new one attends to."""


@dataclass(frozen=True)
class RankWork:
    """What a rank of a phase's pool does in it; of generation, what an engine does."""

    phase: Phase
    shape: ModelShape
    """Of the model that it works with; the actor's where it has none."""
    has_head: bool
    """Whether the model ends in logits over the words; else in one score."""
    devices: int
    """Of the pool; 0 for the controller."""
    nodes: int
    """That the pool lies on."""
    shared_by: int
    """Devices that share an engine."""
    is_sharded: bool
    sequences: float
    """Of a rank, or of an engine."""
    tokens: float
    """Of a rank, those of all passes over it."""
    length: float
    """Mean length of a sequence over its tokens."""
    responses: float
    """Those of the tokens that are of responses."""
    micro_batches: float
    """Of a rank, over all passes."""
    micro_batch_tokens: int
    """That one of them may have."""
    updates: float
    """Optimizer steps."""
    prompt: float
    """Tokens of a prompt."""
    prompts: float
    """Tokens of an engine's prompts, those that others begin with alike counted once."""
    recomputes: bool = False
    """Whether the backward pass computes the activations of the blocks anew."""
    decoding: tuple[Stretch, ...] = ()
    """Of generation."""


def micro_batch_count(workload: Workload, sequences: int, length: float) -> int:
    """Micro-batches of a rank's sequences, as few as the token budget allows (see `ppo.batch.micro_batches`)."""
    whole = max(1, int(workload.batch.micro_batch_tokens // length))
    return (
        ceil(sequences / whole)
        if has_equal_lengths(workload)
        else ceil(sequences * length / workload.batch.micro_batch_tokens)
    )


def has_equal_lengths(workload: Workload) -> bool:
    """Whether all sequences are as long as the workload allows."""
    rollout, data = workload.rollout, workload.data
    are_full = data.source == "arithmetic" and data.fill_prompts  # no other prompts are filled up
    return rollout.ignore_eos and rollout.response_lengths == "longest" and are_full


def phase_shape(phase: Phase, shapes: JobShapes) -> ModelShape:
    """Shape of the model that a phase computes with; the actor's where it computes with none."""
    return {Role.CRITIC: shapes.critic, Role.REWARD: shapes.reward}.get(phase.role or Role.ACTOR) or shapes.actor


def phase_work(
    name: str,
    workload: Workload,
    shapes: JobShapes,
    devices: int,
    *,
    tensor_parallel: int = 1,
    nodes: int = 1,
    counts: StepCounts | None = None,
    at_once: float = inf,
) -> RankWork:
    """What a phase has to do on a pool.

    Args:
        name: of the phase.
        workload: the job, as its placement runs it.
        shapes: of its models.
        devices: of the pool; 0 for the controller's own phases.
        tensor_parallel: devices that share an engine.
        nodes: that the pool lies on.
        counts: what the sequences of a step were; None for those that the workload asks for, at full length where it
            does not say how long responses become.
        at_once: sequences that an engine has room for.
    """
    phase, batch = PHASE[name], workload.batch
    ranks = max(1, devices)
    shared_by = tensor_parallel if name == GEN else 1
    trained = (phase.trains and workload.algorithm.epochs) or 1
    prompt, response = batch.max_prompt_length, mean_response(workload)
    length = counts.attention_length if counts else float(prompt + response)
    tokens = (counts.tokens if counts else batch.size * (prompt + response)) / ranks * trained
    sequences = batch.size / ranks * (shared_by if name == GEN else 1)
    steps = batch.size // batch.mini_batch_size if phase.trains else 1
    in_update = ceil((batch.mini_batch_size if phase.trains else batch.size) / ranks)
    return RankWork(
        phase=phase,
        shape=phase_shape(phase, shapes),
        has_head=phase.role in (Role.ACTOR, Role.REF),
        devices=devices,
        nodes=nodes,
        shared_by=shared_by,
        is_sharded=workload.sharding == "shard",
        sequences=sequences,
        tokens=tokens,
        length=length,
        responses=tokens * response / (prompt + response),
        micro_batches=micro_batch_count(workload, in_update, prompt + response) * steps * trained,
        micro_batch_tokens=batch.micro_batch_tokens,
        updates=steps * trained if phase.trains else 0,
        prompt=prompt,
        prompts=sequences * prompt / batch.group_size,
        recomputes=phase.trains and workload.activation_checkpointing,
        decoding=tuple(_decoding(workload, sequences, counts, at_once)) if name == GEN else (),
    )


def counted(
    workload: Workload | None, same: Sequence[MeasuredCase], others: Sequence[MeasuredCase]
) -> StepCounts | None:
    """What the sequences of a step are, as they were counted; None where nobody did.

    Args:
        workload: the job.
        same: cases of it.
        others: cases of other jobs; where sequences end by themselves, one whose end alike tells of any batch.
    """
    if found := next((case.counts for case in same if case.counts), None):
        return found
    if workload is None or has_equal_lengths(workload):
        return None
    for case in others:
        measured = workload_of_case(case) if case.counts else None
        if measured and case.counts and _sequences(measured) == _sequences(workload):
            more = workload.batch.size / measured.batch.size
            tokens, context = case.counts.tokens * more, case.counts.context_tokens * more
            return case.counts.model_copy(update={"tokens": tokens, "context_tokens": context})
    return None


def _sequences(workload: Workload) -> tuple[object, ...]:
    """What decides how long sequences become."""
    batch, rollout = workload.batch, workload.rollout
    how = (rollout.temperature, rollout.top_p, rollout.ignore_eos, rollout.response_lengths)
    drawn = (rollout.response_length_median, rollout.response_length_sigma)
    return workload.model, workload.data, batch.max_prompt_length, batch.max_response_length, *how, *drawn


def workload_of_case(case: MeasuredCase) -> Workload | None:
    """The workload of a case; None of a job of the user's, and of a version that has other keys."""
    try:
        return Workload.model_validate(case.workload) if case.workload else None
    except ValidationError:
        return None


def mean_response(workload: Workload) -> float:
    """Tokens of a response, on average: as drawn, else the most there may be."""
    longest = workload.batch.max_response_length
    return float(_survivors(workload, np.arange(longest)).sum())


def _survivors(workload: Workload, step: NDArray[np.int64]) -> NDArray[np.float64]:
    """The share of responses that have more than so many tokens."""
    rollout = workload.rollout
    if rollout.response_lengths != "lognormal":
        return np.ones(len(step))
    spread = (np.log(np.maximum(step, 0.5)) - log(rollout.response_length_median)) / rollout.response_length_sigma
    return np.array([0.5 * (1 - erf(one / sqrt(2))) for one in spread])


def _decoding(workload: Workload, sequences: float, counts: StepCounts | None, at_once: float) -> Iterator[Stretch]:
    """The token steps of an engine: as many as the longest of its responses has, with fewer sequences as others end.

    Of sequences for which its keys and values have no room, as many as there is room for go one lot after the other.
    """
    batch = workload.batch
    lots = max(1.0, sequences / at_once)
    running = sequences / lots
    if counts:
        yield Stretch(counts.decode_steps * lots, running, counts.context_tokens / counts.decode_steps / batch.size)
        return
    step = np.arange(batch.max_response_length)
    left = running * _survivors(workload, step)
    # The longest of n responses is beyond a step with the probability 1 - (1 - share)^n.
    going = 1 - (1 - left / running) ** running
    for part in np.array_split(step, min(_STRETCHES, len(step))):
        steps = float(going[part].sum()) * lots
        if steps > 0:
            yield Stretch(steps, max(1.0, float(left[part].mean())), batch.max_prompt_length + float(part.mean()))


def weight_bytes(work: RankWork) -> float:
    """Bytes of the model in bfloat16."""
    is_policy = work.has_head or work.phase.name in (GEN, UPDATE_WEIGHTS)
    return 2.0 * (work.shape.parameters if is_policy else work.shape.critic_parameters)
