"""Memory of one device, estimated before anything starts, by counting the tensors the job keeps.

Notation: a model of N parameters with L layers of width h, keys and values of width v each, feed-forward width f and V
words; b bytes a value; n ranks in the pool; T tokens in one micro-batch of a rank, R of them responses.

    weights      b·N for actor, reference and critic; / n when sharded; a separate engine holds b·N more
    optimizer    2·b·N of what is trained (Adam's two moments; Kingma and Ba 2015); / n when sharded
    gradients    b·N of the model being trained, twice when replicated (the buckets that are averaged); / n when sharded
    activations  b·T·L·(9h + 2v + 4f), what a block of RMSNorm, attention that does not keep its matrix, and gated MLP
                 keeps for the backward pass, counted as Korthikanti et al. 2022 (arXiv:2205.05198, section 4) count
                 theirs: 2h inputs and 2h normalised inputs of the norms, 2h their outputs, h + 2v of queries, keys and
                 values, 2h around the output projection, 4f of gate, activation, up-projection and product.
                 With activation checkpointing b·T·(L·h + 9h + 2v + 4f): block inputs and one block at a time
    logits       24·R·V: six float32 tables of the response tokens' vocabulary (logits, log-softmax, its exponential,
                 their product, and two of gradients)
    kv cache     2·b·L·v for every token of the rank's sequences at full length
    sampling     56 bytes for every word and sequence (float32 and float64 tables of sorted probabilities); none
                 in a separate engine

The actor, with its logits, or the critic is trained at one time, and generation is over by then. So the peak is
runtime + weights + optimizer + the larger of generation and update.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Literal

from placebench.models import ModelShape
from placebench.placement import Role
from placebench.workload import Workload

VALUE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2}
# What a worker holds before the first weight: interpreter, torch and transformers; on a GPU the CUDA context,
# cuBLAS workspaces and NCCL buffers.
RUNTIME_BYTES: Mapping[str, int] = {"cpu": 450 << 20, "gpu": 1 << 30}
_LOGIT_TABLES_BYTES = 24
_SAMPLING_BYTES = 56


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on each device of a pool; the names are those of the module's formulas."""

    runtime: int
    weights: int
    optimizer: int
    gradients: int
    activations: int
    logits: int
    kv_cache: int
    sampling: int

    @property
    def peak(self) -> int:
        """The most that is held at one time."""
        update = self.gradients + self.activations + self.logits
        return self.runtime + self.weights + self.optimizer + max(self.kv_cache + self.sampling, update)

    @property
    def parts(self) -> Mapping[str, int]:
        """Name of each part that is not zero → bytes, largest first."""
        sizes = {name.replace("_", " "): size for name, size in vars(self).items() if size}
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
    value = VALUE_BYTES[workload.precision]
    shards = ranks if workload.sharding == "shard" else 1
    trained = {
        role: parameters
        for role, parameters in ((Role.ACTOR, actor.parameters), (Role.CRITIC, critic.critic_parameters))
        if role in roles
    }
    shapes = {Role.ACTOR: actor, Role.CRITIC: critic}
    weights = sum(trained.values()) + (actor.parameters if Role.REF in roles else 0)
    buckets = 1 if workload.sharding == "shard" else 2
    generation = _generation(workload, actor, ranks) if Role.ROLLOUT in roles else (0, 0, 0)
    return MemoryEstimate(
        runtime=RUNTIME_BYTES[kind],
        weights=value * weights // shards + generation[0],
        optimizer=2 * value * sum(trained.values()) // shards,
        gradients=buckets * value * max(trained.values(), default=0) // shards,
        activations=max((_activations(workload, shapes[role], ranks) for role in trained), default=0),
        logits=_logits(workload, actor, ranks) if Role.ACTOR in roles or Role.REF in roles else 0,
        kv_cache=generation[1],
        sampling=generation[2],
    )


def micro_batch_sequences(workload: Workload, ranks: int) -> int:
    """Sequences of full length in the largest micro-batch of an update on one rank."""
    batch = workload.batch
    length = batch.max_prompt_length + batch.max_response_length
    return min(ceil(batch.mini_batch_size / ranks), batch.micro_batch_tokens // length)


def _activations(workload: Workload, shape: ModelShape, ranks: int) -> int:
    batch = workload.batch
    tokens = micro_batch_sequences(workload, ranks) * (batch.max_prompt_length + batch.max_response_length)
    kv_width = shape.num_key_value_heads * shape.head_dim
    block = 9 * shape.hidden_size + 2 * kv_width + 4 * shape.intermediate_size
    layers = shape.num_hidden_layers
    kept = layers * shape.hidden_size + block if workload.activation_checkpointing else layers * block
    return VALUE_BYTES[workload.precision] * tokens * kept


def _logits(workload: Workload, shape: ModelShape, ranks: int) -> int:
    responses = micro_batch_sequences(workload, ranks) * workload.batch.max_response_length
    return _LOGIT_TABLES_BYTES * responses * shape.vocab_size


def _generation(workload: Workload, shape: ModelShape, ranks: int) -> tuple[int, int, int]:
    """Bytes of the weights that only generation holds, of the key-value cache and of sampling."""
    batch = workload.batch
    value = VALUE_BYTES[workload.precision]
    sequences = ceil(batch.size / ranks)
    length = batch.max_prompt_length + batch.max_response_length
    kv_width = shape.num_key_value_heads * shape.head_dim
    kv_cache = 2 * value * shape.num_hidden_layers * kv_width * length * sequences
    if workload.rollout.backend == "vllm":
        return value * shape.parameters, kv_cache, 0
    # A sharded policy is gathered whole for generation.
    gathered = value * shape.parameters if workload.sharding == "shard" and ranks > 1 else 0
    return 0, kv_cache + gathered, _SAMPLING_BYTES * sequences * shape.vocab_size
