"""Memory that a vLLM engine takes of each of its devices; formulas and letters as in `estimate`.

The job sizes the cache of keys and values from vLLM's own settings, `ppo.rollout.vllm_build.kv_cache_bytes`, and a test
holds the two equal, so that an engine has the one that was planned for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf

from placebench.spec.devices import Kind
from placebench.spec.shapes import ModelShape
from placebench.spec.workload import Workload

COMPUTED_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2}
# CUDA graphs and workspaces of a vLLM engine, which stay while it sleeps; measured.
ENGINE_BYTES: Mapping[str, int] = {"cpu": 0, "gpu": 360 << 20}

CACHE_BLOCK_TOKENS = 128
"""Tokens of a block of the key-value cache: vLLM's on CPU, and a multiple of its on GPUs."""
# vLLM's own tokens of a pass.
_PREFILL_TOKENS = 16_384
_SAMPLING_BYTES = 16


@dataclass(frozen=True)
class EngineMemory:
    """What a vLLM engine takes of each of its devices, in bytes."""

    workload: Workload
    """The job, as its placement runs it."""
    shape: ModelShape
    """Shape of the model that generates."""
    ranks: int
    """Devices of the rollout's pool."""
    kind: Kind
    """Kind of the pool's devices."""
    device_bytes: int
    """Memory of the smallest device of the pool, of which `rollout.memory_share` is a share."""

    @property
    def weights(self) -> int:
        """Weights in the precision of the computing."""
        return COMPUTED_BYTES[self.workload.precision] * self.shape.parameters // self._shared_by

    @property
    def graphs(self) -> int:
        """CUDA graphs and workspaces."""
        return ENGINE_BYTES[self.kind]

    @property
    def prefill(self) -> int:
        """What a pass over prompts, and the sampler after it, hold."""
        shape, batch = self.shape, self.workload.batch
        tokens = min(_PREFILL_TOKENS, self._sequences * batch.max_prompt_length)
        value = COMPUTED_BYTES[self.workload.precision]
        width = 3 * shape.intermediate_size // self._shared_by + 2 * (shape.hidden_size + shape.attention_width)
        return tokens * value * width + _SAMPLING_BYTES * self._sequences * shape.vocab_size

    @property
    def cache(self) -> int:
        """Keys and values of a step's sequences at full length, or as many as the engine's share leaves room for."""
        wanted = self._cache_of(self._sequences)
        return wanted if self.most_cache is None else min(wanted, self.most_cache)

    @property
    def most_cache(self) -> int | None:
        """Keys and values that the engine's share leaves room for: whole blocks, one sequence of full length at least.

        None without a share.
        """
        if self._share_bytes is None:
            return None
        room = self._share_bytes - self._beside_cache
        return max(self._cache_of(1), room // self._block_bytes * self._block_bytes)

    @property
    def most_sequences(self) -> float:
        """Sequences of full length whose keys and values there is room for: no end of them without a share."""
        return inf if self.most_cache is None else self.most_cache // self._block_bytes // self._blocks

    @property
    def whole(self) -> int:
        """All of the engine."""
        return self._beside_cache + self.cache

    @property
    def least(self) -> int:
        """All of the engine with keys and values of one sequence of full length."""
        return self._beside_cache + self._cache_of(1)

    @property
    def is_starved(self) -> bool:
        """Whether its share is too little for a single sequence of full length."""
        return self._share_bytes is not None and self._share_bytes < self.least

    def hundredths(self, size: int) -> int:
        """Share of the device that so many bytes are, in hundredths, rounded up."""
        return -(-100 * size // self.device_bytes)

    @property
    def _share_bytes(self) -> int | None:
        share = self.workload.rollout.memory_share
        return None if share is None else round(share * self.device_bytes)

    @property
    def _beside_cache(self) -> int:
        return self.weights + self.graphs + self.prefill

    @property
    def _shared_by(self) -> int:
        return self.workload.rollout.tensor_parallel_size

    @property
    def _sequences(self) -> int:
        """Sequences of one engine in a step."""
        return ceil(self.workload.batch.size / self.ranks) * self._shared_by

    @property
    def _block_bytes(self) -> int:
        return CACHE_BLOCK_TOKENS * token_cache_bytes(self.workload, self.shape, self._shared_by)

    def _cache_of(self, sequences: int) -> int:
        # The engine keeps one block for itself.
        return (sequences * self._blocks + 1) * self._block_bytes

    @property
    def _blocks(self) -> int:
        """Of a sequence of full length."""
        batch = self.workload.batch
        return ceil((batch.max_prompt_length + batch.max_response_length) / CACHE_BLOCK_TOKENS)


def engine_room(workload: Workload, shape: ModelShape, devices: int, shared_by: int, device_bytes: int) -> float:
    """Sequences of full length whose keys and values an engine on GPUs has room for, `shared_by` devices each."""
    if workload.rollout.backend != "vllm":
        return inf
    rollout = workload.rollout.model_copy(update={"tensor_parallel_size": shared_by})
    placed = workload.model_copy(update={"rollout": rollout})
    return EngineMemory(placed, shape, devices, "gpu", device_bytes).most_sequences


def token_cache_bytes(workload: Workload, shape: ModelShape, shared_by: int = 1) -> int:
    """Bytes of a token's keys and values in all blocks, on each of the devices that share a model."""
    return 2 * COMPUTED_BYTES[workload.precision] * shape.num_hidden_layers * shape.kv_width(shared_by)
