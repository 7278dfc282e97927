"""Memory that one model takes while it computes; formulas and letters as in `estimate`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil

from placebench.predict.memory.engine import COMPUTED_BYTES, token_cache_bytes
from placebench.predict.work import has_equal_lengths, micro_batch_count
from placebench.spec.devices import Kind
from placebench.spec.shapes import ModelShape
from placebench.spec.workload import Workload

Parts = Mapping[str, int]
"""Name of each part of the memory → bytes."""

_SAMPLING_BYTES = 56

TABLE_VALUES = 1 << 28
"""Float32 logits that exist at a time: 1 GiB."""

KEPT_WHOLE = 2_000_000_000
"""Parameters up to which a sharded model on a single rank keeps the weights it computes with through a phase."""


@dataclass(frozen=True)
class ModelMemory:
    """What one model of a pool adds while it computes, in bytes on each of its ranks."""

    workload: Workload
    """The job, as its placement runs it."""
    shape: ModelShape
    """Shape of the model's decoder."""
    has_logits: bool
    """Whether it has the output head of a language model; else one of a score."""
    ranks: int
    """Devices of the pool."""
    kind: Kind
    """Kind of the pool's devices."""

    @property
    def value(self) -> int:
        """Bytes of a value that is computed."""
        return COMPUTED_BYTES[self.workload.precision]

    @property
    def is_sharded(self) -> bool:
        """Whether its weights are sharded over the ranks."""
        return self.workload.sharding == "shard"

    @property
    def parameters(self) -> int:
        """Parameters of the whole model, its head included."""
        return self.shape.parameters if self.has_logits else self.shape.critic_parameters

    @property
    def head(self) -> int:
        """Parameters of the output head; 0 without one."""
        return self.shape.vocab_size * self.shape.hidden_size if self.has_logits else 0

    @property
    def root(self) -> int:
        """Parameters outside the blocks."""
        tied = self.shape.tie_word_embeddings or not self.has_logits
        return self.shape.vocab_size * self.shape.hidden_size * (1 if tied else 2)

    @property
    def units(self) -> tuple[int, int]:
        """Parameters of the root and of one block, the units of sharding."""
        return self.root, (self.parameters - self.root) // self.shape.num_hidden_layers

    @property
    def copies(self) -> int:
        """Bytes of the weights that it computes with, beside its own."""
        root, block = self.units
        if self.is_sharded and self.ranks == 1 and self.parameters <= KEPT_WHOLE:
            return self.value * self.parameters
        if self.is_sharded:
            return self.value * (root + 2 * block) if self.ranks > 1 or self.value == 2 else 0
        return self.value * self.parameters if self.value == 2 else 0

    def update(self) -> Iterator[Parts]:
        """Bytes held at the output head, in the blocks' backward pass, and at its end."""
        number, tokens, responses = self._micro_batches(self.workload.batch.mini_batch_size)
        root, block = self.units
        own = 4 * self.parameters // (self.ranks if self.is_sharded else 1)
        before = 0 if number == 1 else own
        summed, whole = (4 + self.value, 1) if self.is_sharded else (0, 0)
        yield {
            "gradients": before,
            "copies": self.copies,
            "activations": tokens * self._activation_bytes(),
            "logits": self._table_bytes(responses) + self._head_gradient_bytes(responses),
        }
        yield {
            "gradients": before + 2 * summed * block + whole * self.value * self.head,
            "copies": self.copies,
            "activations": tokens * (self._activation_bytes() + self._working_bytes()),
        }
        yield {"gradients": own + summed * root, "copies": self.copies}

    def scoring(self) -> Iterator[Parts]:
        """Bytes held at the output head and in a block of a pass without gradient."""
        _, tokens, responses = self._micro_batches(self.workload.batch.size)
        # A model that is only used has the precision of the computing already.
        copies = self.copies if self.is_sharded else 0
        yield {"copies": copies, "logits": self._table_bytes(responses)}
        yield {"copies": copies, "activations": tokens * self._working_bytes()}

    def _micro_batches(self, at_once: int) -> tuple[int, int, int]:
        """A rank's micro-batches of `at_once` sequences in all: number, tokens of the largest, of these responses."""
        batch = self.workload.batch
        length = batch.max_prompt_length + batch.max_response_length
        sequences = ceil(at_once / self.ranks)
        number = micro_batch_count(self.workload, sequences, length)
        if has_equal_lengths(self.workload):
            tokens = ceil(sequences / number) * length
        else:
            tokens = min(batch.micro_batch_tokens, sequences * length)
        return number, tokens, ceil(tokens * batch.max_response_length / length)

    def _head_gradient_bytes(self, responses: int) -> int:
        """Bytes of the head's gradient; parts of it are added up in float32."""
        in_parts = responses * self.shape.vocab_size > TABLE_VALUES
        return ((4 if in_parts else 0) + self.value) * self.head

    def _table_bytes(self, responses: int) -> int:
        if not self.has_logits:
            return 0
        rows = min(responses, max(1, TABLE_VALUES // self.shape.vocab_size))
        a_logit = 2 * self.value if self.workload.torch_compile else 6 * 4 + 1 + self.value
        return rows * self.shape.vocab_size * a_logit

    def _working_bytes(self) -> int:
        """Bytes a token that a block holds while it computes."""
        shape = self.shape
        return self.value * (3 * shape.intermediate_size + 2 * (shape.hidden_size + shape.attention_width))

    def _activation_bytes(self) -> int:
        """Bytes a token that are saved for the backward pass."""
        hidden, layers, block = self.shape.hidden_size, self.shape.num_hidden_layers, self._block_bytes()
        if self.workload.activation_checkpointing:
            return (self.value if self.is_sharded else 4) * layers * hidden + block
        return layers * block + 12 * hidden

    def _block_bytes(self) -> int:
        hidden, value = self.shape.hidden_size, self.value
        attention, kv_width = self.shape.attention_width, self.shape.kv_width()
        is_padded = self.kind == "cpu" or value == 4
        if self.workload.torch_compile:
            widths, of_heads, of_norms, mlp, padded = 4, 3, 1, 3, attention
        else:
            widths, of_norms = (6, 2) if value == 4 else (8 if self.is_sharded else 13, 3)
            of_heads, mlp, padded = 2, 4, 2 * (attention + kv_width)
        width = widths * hidden + of_heads * attention + 2 * kv_width + mlp * self.shape.intermediate_size
        if self.shape.head_norms:
            width += of_norms * (attention + kv_width)
        return value * (width + (padded if is_padded else 0))


def generation_bytes(workload: Workload, shape: ModelShape, ranks: int) -> Parts:
    """Bytes held while the policy itself generates."""
    batch, value = workload.batch, COMPUTED_BYTES[workload.precision]
    sequences = ceil(batch.size / ranks)
    tokens = sequences * (batch.max_prompt_length + batch.max_response_length)
    copied = value == 2 or (workload.sharding == "shard" and ranks > 1)
    return {
        "copies": value * shape.parameters if copied else 0,
        "kv cache": tokens * token_cache_bytes(workload, shape),
        "sampling": _SAMPLING_BYTES * sequences * shape.vocab_size,
    }
