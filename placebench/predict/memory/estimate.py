"""Memory of one device, estimated before anything starts, by counting the tensors the job keeps.

Notation: a model of N parameters with L blocks of B parameters each, width h, heads that are a wide together (h in
most models), keys and values of width v each, feed-forward width f and V words; its root, which is all but the blocks,
has E parameters. n ranks in the pool; b bytes a value that is computed (4 in float32, 2 in bfloat16); T tokens in one
micro-batch of a rank, R of them responses. Trained weights, their gradients and optimizer states are float32 in either
precision.

    weights      4·N for actor and critic, b·N for the reference and a reward model; / n when sharded
    optimizer    8·N of what is trained (Adam's two moments; Kingma and Ba 2015, arXiv:1412.6980); / n when sharded
    gradients    of the model in training. Replicated: 4·N where several micro-batches add up, and always as much for
                 the buckets that are averaged.
                 Sharded: 4·N/n, reduced after every micro-batch, so that the first one's activations are there before
                 them; while the blocks run backward, on top b·V·h of the head and twice (4 + b)·B (one block's own and
                 the float32 that is reduced, while the next one computes); at the end of the pass (4 + b)·E
    copies       weights as they are computed with: b·N of a replicated model in bfloat16, b·(E + 2·B) of a
                 sharded one in training, b·N of one of up to `KEPT_WHOLE` parameters on a single rank, which casts
                 them once for all micro-batches, and of a sharded one that generates by itself, b·(E or B) while
                 weights go to an engine
    activations  T·(L·block + 12·h), block = w·b·h + b·(2a + 2v + 4f): what a block of RMSNorm, attention that keeps no
                 matrix and gated MLP saves for the backward pass, counted as Korthikanti et al. 2022
                 (arXiv:2205.05198, section 4) count theirs: queries, keys, values, attention's result and the MLP's
                 four tensors; the rest is w tensors of width h (inputs and results of the norms): 6 in float32, 8 in
                 bfloat16 whose norms keep a float32 copy, 13 in bfloat16 from float32 weights. A compiled block
                 computes pointwise results anew and keeps 4·b·h + b·(3a + 2v + 3f). Attention without a kernel for
                 packed sequences keeps padded copies: 2·b·(a + v) more, b·a where compiled. Norms of the heads keep
                 b·(a + v) once where compiled, else 2 times in float32 and 3 times in bfloat16.
                 With activation checkpointing T·(r·L·h + block), r = b when sharded, else 4 (the residual stream).
                 While a block runs backward, T·b·(3f + 2h + 2a) more
    logits       of as many rows as make 2^28 logits, R at most: forward and backward need six float32 tables, a mask
                 of one byte and one table in b bytes; compiled, the products and their gradient alone. Beside them the
                 head's gradient b·V·h, and where there are several chunks 4·V·h, in which it is summed
    kv cache     2·b·L·v for every token of a rank's sequences at full length; of an engine in blocks of 128 tokens,
                 v / t on each of t devices, one head at least; no more than `rollout.memory_share` of the device leaves
                 beside the engine, its graphs and prefill
    sampling     56 bytes for every word and sequence (float32 and float64 tables of sorted probabilities)
    engine       b·N/t of a generating engine of its own that t devices share, in a pool apart from the actor's in any
                 case; weights then go there in buckets of 256 MiB, or of the embedding where that is more, of which
                 both ends hold one
    graphs       CUDA graphs and the engine's workspaces (`engine.ENGINE_BYTES`)
    allocator    on GPUs shares of the tensors (`ALLOCATOR_SHARES`): what torch's caching allocator holds and cannot
                 use, between blocks and for the streams that gather weights and reduce gradients
    prefill      min(16,384, prompt tokens of the engine) · b·(3f/t + 2h + 2a), and 16 bytes for every word and sequence
                 of the engine for its sampler

The job goes through moments, each with its own sum: building (weights, with the whole float32 root 4·E of the model
that is built last), generating, waking and writing weights, the passes of reference and reward model, and the update
of the actor or critic. An engine that sleeps holds weights and cache in the moments of generating and writing alone,
otherwise in all of them. The peak is the largest moment.
"""

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from placebench.predict.memory.engine import COMPUTED_BYTES, EngineMemory
from placebench.predict.memory.model import ModelMemory, Parts, generation_bytes
from placebench.spec.devices import Kind
from placebench.spec.phases import PHASES, Activity
from placebench.spec.placement import Role
from placebench.spec.shapes import ModelShape
from placebench.spec.workload import Workload

# What nobody can count, only measure. Before the first weight a worker holds: interpreter, torch and transformers;
# on a GPU the CUDA context, cuBLAS workspaces and NCCL buffers.
RUNTIME_BYTES: Mapping[str, int] = {"cpu": 480 << 20, "gpu": 1_200 << 20}
# Of what lasts from step to step (`_STATE`), and of the rest: by whether the pool trains the actor, the critic, or two
# models, whose blocks differ, and whether they are on one rank, sharded over several, or replicated on any number.
# Measured on H200s, and one rank on an H100, from 0.5 to 8 billion parameters; two replicated models are taken to be
# like two on one rank.
ALLOCATOR_SHARES: Mapping[tuple[Role | None, Literal["one", "shard", "replicate"]], tuple[float, float]] = {
    (Role.ACTOR, "one"): (0.09, 0.09),
    (Role.ACTOR, "shard"): (0.17, 0.05),
    (Role.ACTOR, "replicate"): (0.07, 0.07),
    (Role.CRITIC, "one"): (0.05, 0.05),
    (Role.CRITIC, "shard"): (0.0, 0.1),
    (Role.CRITIC, "replicate"): (0.07, 0.07),
    (None, "one"): (0.28, 0.02),
    (None, "shard"): (0.36, 0.04),
    (None, "replicate"): (0.28, 0.02),
}
BUCKET_BYTES = 256 << 20
"""Most bytes of weights that are sent to another pool at a time, but for a single weight that has more."""
_STATE = ("weights", "optimizer", "gradients", "copies")


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on each device of a pool."""

    workload: Workload
    """The job, as its placement runs it."""
    actor: ModelShape
    """Shape of actor and reference."""
    critic: ModelShape
    """Shape of the critic's decoder."""
    roles: Collection[Role]
    """The roles that live in the pool."""
    ranks: int
    """Devices of the pool."""
    kind: Kind
    """Kind of these devices."""
    reward: ModelShape | None = None
    """Shape of the reward model's decoder; None where the reward is a function."""
    device_bytes: int = sys.maxsize
    """Memory of the smallest device, of which an engine may take a share."""

    @cached_property
    def moments(self) -> Mapping[str, Parts]:
        """Name of each moment of the job, in the order of a step → bytes of each part that is held then."""
        moments: dict[str, Parts] = {"idle": {**self._always, **self._resting}}
        moments |= self._building() | self._generating() | self._writing() | self._computing()
        if self.kind != "gpu" or not self._trained:
            return moments
        spread: Literal["one", "shard", "replicate"] = "replicate"
        if self._is_sharded:
            spread = "shard" if self.ranks > 1 else "one"
        trained = next(iter(self._trained)) if len(self._trained) == 1 else None
        shares = ALLOCATOR_SHARES[trained, spread]
        return {name: {**parts, "allocator": _wasted(parts, *shares)} for name, parts in moments.items()}

    @property
    def moment(self) -> str:
        """The moment that needs most."""
        return max(self.moments, key=lambda name: sum(self.moments[name].values()))

    @property
    def peak(self) -> int:
        """The most that is held at one time."""
        return sum(self.parts.values())

    @property
    def parts(self) -> Parts:
        """Name of each part of the peak that is not zero → bytes, largest first."""
        sizes = {name: size for name, size in self.moments[self.moment].items() if size}
        return dict(sorted(sizes.items(), key=lambda item: -item[1]))

    @property
    def _value(self) -> int:
        """Bytes of a value that is computed."""
        return COMPUTED_BYTES[self.workload.precision]

    @property
    def _is_sharded(self) -> bool:
        return self.workload.sharding == "shard"

    @property
    def _has_engine(self) -> bool:
        return Role.ROLLOUT in self.roles and self.workload.rollout.backend == "vllm"

    @property
    def _is_apart(self) -> bool:
        """Whether the rollout lives here and the actor in another pool."""
        return Role.ROLLOUT in self.roles and Role.ACTOR not in self.roles

    @cached_property
    def _models(self) -> Mapping[Role, ModelMemory]:
        """The models that live here, as far as the algorithm has them; the rollout's aside."""
        shapes = {
            Role.ACTOR: self.actor,
            Role.REF: self.actor,
            Role.CRITIC: self.critic if self.workload.algorithm.has_critic else None,
            Role.REWARD: self.reward,
        }
        return {
            role: ModelMemory(self.workload, shape, role in (Role.ACTOR, Role.REF), self.ranks, self.kind)
            for role, shape in shapes.items()
            if shape and role in self.roles
        }

    @cached_property
    def _trained(self) -> Mapping[Role, ModelMemory]:
        return {role: model for role, model in self._models.items() if role in self.workload.algorithm.trained_roles}

    @cached_property
    def _always(self) -> Parts:
        """What is held from the first step to the last."""
        shards = self.ranks if self._is_sharded else 1
        weights = (
            (4 if role in self._trained else self._value) * model.parameters // shards
            for role, model in self._models.items()
        )
        trained = sum(model.parameters for model in self._trained.values())
        parts = {
            "runtime": RUNTIME_BYTES[self.kind],
            "weights": sum(weights),
            "optimizer": 8 * trained // shards,
            "gradients": 0 if self._is_sharded else 4 * trained,
        }
        return {**parts, "graphs": self._engine_memory.graphs} if self._has_engine else parts

    @property
    def _engine_memory(self) -> EngineMemory:
        """Memory of a vLLM engine, where one lives here."""
        return EngineMemory(self.workload, self.actor, self.ranks, self.kind, self.device_bytes)

    @cached_property
    def _engine(self) -> Parts:
        """What the rollout holds of its own while it generates."""
        if self._has_engine:
            return {"engine": self._engine_memory.weights, "kv cache": self._engine_memory.cache}
        return {"engine": self._value * self.actor.parameters} if self._is_apart else {}

    @property
    def _resting(self) -> Parts:
        """What of it stays while others work."""
        sleeps = self.workload.rollout.sleep and self.kind == "gpu" and not self._is_apart
        return {} if sleeps else self._engine

    def _building(self) -> dict[str, Parts]:
        if not self._models:
            return {}
        largest_root = max(model.root for model in self._models.values())
        held = {name: self._always[name] for name in ("runtime", "weights", "gradients")}
        return {"build_models": {**held, "building": 4 * largest_root if self._is_sharded else 0}}

    def _generating(self) -> dict[str, Parts]:
        if self._has_engine:
            return _during(Activity.GENERATE, {**self._always, **self._engine, "prefill": self._engine_memory.prefill})
        if Role.ROLLOUT not in self.roles:
            return {}
        held = generation_bytes(self.workload, self.actor, self.ranks)
        copies = {"copies": 0} if self._is_apart else {}
        return _during(Activity.GENERATE, {**self._always, **self._engine, **held, **copies})

    def _writing(self) -> dict[str, Parts]:
        """The actor's weights on their way into the rollout, here or in another pool."""
        is_sent = (Role.ACTOR in self.roles) != (Role.ROLLOUT in self.roles)
        if not is_sent and not self._has_engine:
            return {}
        copies = 0
        if is_sent:
            embedding = self._value * self.actor.vocab_size * self.actor.hidden_size
            copies = min(max(BUCKET_BYTES, embedding), self._value * self.actor.parameters)
        if Role.ACTOR in self.roles and self._is_sharded and self.ranks > 1:
            copies += self._value * max(self._models[Role.ACTOR].units)
        return _during(Activity.SEND_WEIGHTS, {**self._always, **self._engine, "copies": copies})

    def _computing(self) -> dict[str, Parts]:
        """Updates of the models that are trained, in which these need most, and passes of the others."""
        moments: dict[str, Parts] = {}
        for role, model in self._models.items():
            activity = Activity.UPDATE if role in self._trained else Activity.FORWARD
            for phase in [phase.name for phase in PHASES if phase.role is role and phase.activity is activity]:
                for number, one in enumerate(model.update() if role in self._trained else model.scoring()):
                    gradients = {"gradients": self._always["gradients"] + one.get("gradients", 0)}
                    name = f"{phase} {number}" if number else phase
                    moments[name] = {**self._always, **self._resting, **one, **gradients}
        return moments


def _during(activity: Activity, parts: Parts) -> dict[str, Parts]:
    """The moments of the phases that do this."""
    return {phase.name: parts for phase in PHASES if phase.activity is activity}


def _wasted(parts: Parts, of_state: float, of_rest: float) -> int:
    """Shares of the tensors; an engine's weights and cache have memory of their own."""
    tensors = {name: size for name, size in parts.items() if name not in ("runtime", "engine", "kv cache")}
    return round(sum(size * (of_state if name in _STATE else of_rest) for name, size in tensors.items()))
