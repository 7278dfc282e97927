"""Sequences of one step as flat arrays without padding, and how they are dealt to ranks and micro-batches.

Pure numpy: the controller uses it and stays light.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapreplace
from math import ceil
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Kind = TypeVar("Kind", bound=np.generic)


@dataclass(frozen=True)
class SequenceBatch:
    """Prompts with their responses, back to back."""

    tokens: NDArray[np.int32]
    """Each prompt followed by its response, int32 [sum of prompt and response lengths]."""
    prompt_lengths: NDArray[np.int32]
    """Tokens of each prompt, int32 [sequences]."""
    response_lengths: NDArray[np.int32]
    """Tokens of each response, int32 [sequences]; at least 1, as the end-of-sequence token counts."""
    per_token: Mapping[str, Array] = field(default_factory=dict)
    """Fields with one value a response token, each [sum of response lengths], by name."""
    per_sequence: Mapping[str, Array] = field(default_factory=dict)
    """Fields with one value a sequence, each [sequences], by name."""

    def __len__(self) -> int:
        return len(self.prompt_lengths)

    @classmethod
    def build(
        cls, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], **per_token: Sequence[float]
    ) -> Self:
        """Lay prompts and responses back to back; `per_token` values follow the responses."""
        flat = [token for pair in zip(prompts, responses, strict=True) for part in pair for token in part]
        return cls(
            np.asarray(flat, np.int32),
            np.asarray([len(prompt) for prompt in prompts], np.int32),
            np.asarray([len(response) for response in responses], np.int32),
            {name: np.asarray(values, np.float32) for name, values in per_token.items()},
        )

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Prompt plus response length of each sequence, int32 [sequences]."""
        return self.prompt_lengths + self.response_lengths

    @property
    def response_tokens(self) -> int:
        """Response tokens of all sequences."""
        return int(self.response_lengths.sum())

    def sequence_tokens(self) -> list[NDArray[np.int32]]:
        """The tokens of each sequence, as views."""
        return np.split(self.tokens, np.cumsum(self.lengths)[:-1])

    def with_fields(
        self, per_token: Mapping[str, Array] | None = None, per_sequence: Mapping[str, Array] | None = None
    ) -> "SequenceBatch":
        """A batch with further named arrays; the rest is shared."""
        return SequenceBatch(
            self.tokens,
            self.prompt_lengths,
            self.response_lengths,
            {**self.per_token, **(per_token or {})},
            {**self.per_sequence, **(per_sequence or {})},
        )

    def select(self, indices: Iterable[int], fields: Iterable[str] | None = None) -> "SequenceBatch":
        """The sequences at `indices`, in that order.

        Args:
            indices: positions in this batch.
            fields: names of the `per_token` arrays to keep; all when None.
        """
        chosen = np.fromiter(indices, np.intp)
        names = self.per_token if fields is None else tuple(fields)
        return SequenceBatch(
            _take(self.tokens, self.lengths, chosen),
            self.prompt_lengths[chosen],
            self.response_lengths[chosen],
            {name: _take(self.per_token[name], self.response_lengths, chosen) for name in names},
            {name: values[chosen] for name, values in self.per_sequence.items()},
        )

    def padded(self, values: Array) -> NDArray[np.float64]:
        """Lay per-token values out as [sequences, longest response], zeros behind each response."""
        mask = self.response_mask()
        table = np.zeros(mask.shape)
        table[mask] = values
        return table

    def response_mask(self) -> NDArray[np.bool_]:
        """True where a response token is, bool [sequences, longest response]."""
        mask: NDArray[np.bool_] = np.arange(self.response_lengths.max()) < self.response_lengths[:, None]
        return mask


def _take(values: NDArray[Kind], lengths: NDArray[np.int32], chosen: NDArray[np.intp]) -> NDArray[Kind]:
    parts = np.split(values, np.cumsum(lengths)[:-1])
    return np.concatenate([parts[index] for index in chosen]) if len(chosen) else values[:0]


def rank_indices(size: int, ranks: int) -> list[NDArray[np.intp]]:
    """Deal `size` sequences of unknown length to ranks: consecutive ones to each, as equally many as can be.

    Responses to one prompt follow each other, so that as few ranks as can be compute its keys and values.
    """
    return np.array_split(np.arange(size, dtype=np.intp), ranks)


def balanced_shares(lengths: NDArray[np.int32], mini_batch_size: int, ranks: int) -> list[NDArray[np.intp]]:
    """Deal sequences to ranks so that each has as many of every mini-batch, and tokens as equal as that allows.

    Mini-batches follow each other in the batch's order; within one, the longest sequence left goes to the rank with
    the fewest tokens that still has room.

    Args:
        lengths: tokens of each sequence, int32 [sequences]; a multiple of `mini_batch_size`.
        mini_batch_size: sequences of a mini-batch; a multiple of `ranks`.
        ranks: ranks of the pool.

    Returns:
        Indices of each rank's sequences, mini-batch by mini-batch, ascending in each.
    """
    room = mini_batch_size // ranks
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for first in range(0, len(lengths), mini_batch_size):
        part = np.arange(first, first + mini_batch_size)
        dealt: list[list[int]] = [[] for _ in range(ranks)]
        loads = [0] * ranks
        for index in part[np.argsort(-lengths[part], kind="stable")]:
            rank = min((rank for rank in range(ranks) if len(dealt[rank]) < room), key=loads.__getitem__)
            dealt[rank].append(int(index))
            loads[rank] += int(lengths[index])
        for share, indices in zip(shares, dealt, strict=True):
            share += sorted(indices)
    return [np.asarray(share, np.intp) for share in shares]


def merge_shares(shards: Sequence[SequenceBatch], shares: Sequence[NDArray[np.intp]]) -> SequenceBatch:
    """The whole batch in its own order from one shard per rank, dealt as in `shares`."""
    return join_shards(shards).select(np.argsort(np.concatenate(shares)))


def join_shards(shards: Sequence[SequenceBatch]) -> SequenceBatch:
    """Batches with the same fields, one after the other."""
    return SequenceBatch(
        np.concatenate([shard.tokens for shard in shards]),
        np.concatenate([shard.prompt_lengths for shard in shards]),
        np.concatenate([shard.response_lengths for shard in shards]),
        {name: np.concatenate([shard.per_token[name] for shard in shards]) for name in shards[0].per_token},
        {name: np.concatenate([shard.per_sequence[name] for shard in shards]) for name in shards[0].per_sequence},
    )


def micro_batches(lengths: NDArray[np.int32], token_budget: int, at_least: int = 1) -> list[NDArray[np.intp]]:
    """Group sequences into as few micro-batches as a token budget allows, with tokens as equal as can be.

    The longest sequence left goes to the group with the fewest tokens; one group more is tried until all fit (the
    greedy rule of Graham 1969, "Bounds on multiprocessing timing anomalies").

    Args:
        lengths: tokens of each sequence, int32 [sequences].
        token_budget: most tokens of a group; a longer single sequence stands alone.
        at_least: number of groups wanted at least (ranks of a sharded model must agree on it); fewer come
            back only when there are fewer sequences.

    Returns:
        Indices of each group, ascending.
    """
    wanted = max(ceil(int(lengths.sum()) / token_budget), min(at_least, len(lengths)))
    for count in range(wanted, len(lengths) + 1):
        loads = [(0, number) for number in range(count)]
        groups: list[list[int]] = [[] for _ in range(count)]
        for index in np.argsort(-lengths, kind="stable"):
            load, number = loads[0]
            groups[number].append(int(index))
            heapreplace(loads, (load + int(lengths[index]), number))
        if all(load <= token_budget or len(groups[number]) == 1 for load, number in loads):
            return [np.asarray(sorted(group), np.intp) for group in groups]
    return [np.asarray([index], np.intp) for index in range(len(lengths))]
