"""Memory of one device, estimated before anything starts, by counting the tensors the job keeps.

Notation: a model of N parameters with L blocks of width h, keys and values of width v each, feed-forward width f and V
words; n ranks in the pool; b bytes a value that is computed (4 in float32, 2 in bfloat16); T tokens in one micro-batch
of a rank, R of them responses. Weights, gradients and optimizer states are float32 in either precision.

    weights      4·N for actor, reference and critic; / n when sharded
    optimizer    8·N of what is trained (Adam's two moments; Kingma and Ba 2015, arXiv:1412.6980); / n when sharded
    gradients    4·N of the model in training, twice when replicated (the buckets that are averaged); / n when sharded
    copies       weights as they are computed with: b·N of a replicated model in bfloat16, b·(V·h + 2 blocks) of a
                 sharded one in training, b·N of a sharded one that generates
    activations  T·(L·(a·h + b·(2v + 4f)) + 12·h): what a block of RMSNorm, attention that keeps no matrix and gated MLP
                 saves for the backward pass, counted as Korthikanti et al. 2022 (arXiv:2205.05198, section 4) count
                 theirs: queries, keys, values and the MLP's four tensors in b bytes; the rest, eight tensors of width h
                 (inputs and results of the norms, around attention), takes a = 32 bytes in float32, 30 in bfloat16 from
                 float32 weights, 20 in bfloat16 from sharded ones, whose norms keep a float32 copy.
                 With activation checkpointing T·(4·L·h + one block)
    logits       (20 + b mod 4)·R·V: five float32 tables of the response tokens' vocabulary, and the bfloat16 one
    kv cache     2·b·L·v for every token of the rank's sequences at full length
    sampling     56 bytes for every word and sequence (float32 and float64 tables of sorted probabilities)
    engine       b·N and the kv cache, of a generating engine of its own, from start to end; it samples by itself

The actor, with its logits, or the critic is in training at one time, and generation is over by then. The reference
holds 16·R·V of logits. So the peak is runtime + weights + optimizer + engine + the largest of generation (copies, kv
cache, sampling), the reference's pass, and an update (gradients, copies, activations, logits).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from math import ceil
from typing import Literal

from placebench.models import ModelShape
from placebench.placement import Role
from placebench.workload import Workload

COMPUTED_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2}
# What a worker holds before the first weight: interpreter, torch and transformers; on a GPU the CUDA context,
# cuBLAS workspaces and NCCL buffers.
RUNTIME_BYTES: Mapping[str, int] = {"cpu": 480 << 20, "gpu": 1 << 30}
_WIDTH_BYTES: Mapping[tuple[str, str], int] = {
    ("float32", "replicate"): 32,
    ("float32", "shard"): 32,
    ("bfloat16", "replicate"): 30,
    ("bfloat16", "shard"): 20,
}
_LOGIT_BYTES = 20
_REFERENCE_LOGIT_BYTES = 16
_SAMPLING_BYTES = 56


@dataclass(frozen=True)
class Generation:
    """Bytes held while responses are generated; the names are those of the module's formulas."""

    copies: int = 0
    kv_cache: int = 0
    sampling: int = 0


@dataclass(frozen=True)
class Pass:
    """Bytes held while a model is trained, or the reference runs; the names are those of the module's formulas."""

    gradients: int = 0
    copies: int = 0
    activations: int = 0
    logits: int = 0


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on each device of a pool.

    Attributes:
        always: what is held from start to end: runtime, weights, optimizer, engine.
        largest: the most demanding of generation and the updates.
    """

    always: Mapping[str, int]
    largest: Generation | Pass

    @property
    def peak(self) -> int:
        """The most that is held at one time."""
        return sum(self.parts.values())

    @property
    def parts(self) -> Mapping[str, int]:
        """Name of each part of the peak that is not zero → bytes, largest first."""
        transient = {one.name.replace("_", " "): int(getattr(self.largest, one.name)) for one in fields(self.largest)}
        sizes = {name: size for name, size in {**self.always, **transient}.items() if size}
        return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def estimate_memory(
    workload: Workload,
    actor: ModelShape,
    critic: ModelShape,
    roles: Collection[Role],
    ranks: int,
    kind: Literal["cpu", "gpu"],
) -> MemoryEstimate:
    """Memory of each device of a pool.

    Args:
        workload: the job.
        actor: shape of actor and reference.
        critic: shape of the critic's decoder.
        roles: the roles that live in the pool.
        ranks: devices of the pool.
        kind: of these devices.
    """
    shards = ranks if workload.sharding == "shard" else 1
    parameters = {
        role: count
        for role, count in (
            (Role.ACTOR, actor.parameters),
            (Role.REF, actor.parameters),
            (Role.CRITIC, critic.critic_parameters),
        )
        if role in roles
    }
    trained = {role: count for role, count in parameters.items() if role is not Role.REF}
    generation = _generation(workload, actor, ranks) if Role.ROLLOUT in roles else Generation()
    has_engine = Role.ROLLOUT in roles and workload.rollout.backend == "vllm"
    engine = COMPUTED_BYTES[workload.precision] * actor.parameters + generation.kv_cache if has_engine else 0
    always = {
        "runtime": RUNTIME_BYTES[kind],
        "weights": 4 * sum(parameters.values()) // shards,
        "optimizer": 8 * sum(trained.values()) // shards,
        "engine": engine,
    }
    shapes = {Role.ACTOR: actor, Role.CRITIC: critic}
    transient: list[Generation | Pass] = [
        _update(workload, shapes[role], count, ranks, role is Role.ACTOR) for role, count in trained.items()
    ]
    transient.append(Generation() if has_engine else generation)
    if Role.REF in roles:
        responses = _sequences(workload, workload.batch.size, ranks) * workload.batch.max_response_length
        transient.append(Pass(logits=_REFERENCE_LOGIT_BYTES * responses * actor.vocab_size))
    return MemoryEstimate(always, max(transient, key=lambda one: sum(vars(one).values())))


def _sequences(workload: Workload, at_once: int, ranks: int) -> int:
    """Sequences of full length in a rank's largest micro-batch, when `at_once` are dealt to the ranks."""
    length = workload.batch.max_prompt_length + workload.batch.max_response_length
    return min(ceil(at_once / ranks), workload.batch.micro_batch_tokens // length)


def _update(workload: Workload, shape: ModelShape, parameters: int, ranks: int, has_logits: bool) -> Pass:
    batch, value = workload.batch, COMPUTED_BYTES[workload.precision]
    length = batch.max_prompt_length + batch.max_response_length
    sequences = _sequences(workload, batch.mini_batch_size, ranks)
    tables = _LOGIT_BYTES + (value if value == 2 else 0)
    if workload.sharding == "shard":
        vocabulary = shape.vocab_size * shape.hidden_size * (1 if shape.tie_word_embeddings else 2)
        gathered = vocabulary + 2 * (parameters - vocabulary) // shape.num_hidden_layers
        gradients, copies = 4 * parameters // ranks, value * gathered if ranks > 1 else 0
    else:
        gradients, copies = 8 * parameters, value * parameters if value == 2 else 0
    return Pass(
        gradients,
        copies,
        activations=sequences * length * _activation_bytes(workload, shape),
        logits=tables * sequences * batch.max_response_length * shape.vocab_size if has_logits else 0,
    )


def _activation_bytes(workload: Workload, shape: ModelShape) -> int:
    """Bytes a token that are saved for the backward pass."""
    value = COMPUTED_BYTES[workload.precision]
    kv_width = shape.num_key_value_heads * shape.head_dim
    block = _WIDTH_BYTES[workload.precision, workload.sharding] * shape.hidden_size
    block += value * (2 * kv_width + 4 * shape.intermediate_size)
    if workload.activation_checkpointing:
        return 4 * shape.num_hidden_layers * shape.hidden_size + block
    return shape.num_hidden_layers * block + 12 * shape.hidden_size


def _generation(workload: Workload, shape: ModelShape, ranks: int) -> Generation:
    batch, value = workload.batch, COMPUTED_BYTES[workload.precision]
    sequences = ceil(batch.size / ranks)
    tokens = sequences * (batch.max_prompt_length + batch.max_response_length)
    kv_width = shape.num_key_value_heads * shape.head_dim
    kv_cache = 2 * value * shape.num_hidden_layers * kv_width * tokens
    copied = value == 2 or (workload.sharding == "shard" and ranks > 1)
    copies = value * shape.parameters if copied else 0
    return Generation(copies, kv_cache, _SAMPLING_BYTES * sequences * shape.vocab_size)
