"""Sequences dealt to ranks and micro-batches, and put together again."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from placebench.ppo.batch import SequenceBatch, balanced_shares, merge_shares, micro_batches, rank_indices

LENGTHS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=1, max_size=12)


def batch_of(lengths: list[tuple[int, int]]) -> SequenceBatch:
    """Every token is its position in the batch, so that any mix-up shows."""
    counter = iter(range(10_000))
    prompts = [[next(counter) for _ in range(prompt)] for prompt, _ in lengths]
    responses = [[next(counter) for _ in range(response)] for _, response in lengths]
    return SequenceBatch.build(prompts, responses, mark=[float(token) for part in responses for token in part])


@given(LENGTHS, st.integers(1, 4), st.integers(1, 3))
def test_ranks_get_everything_once_and_merge_back(lengths: list[tuple[int, int]], ranks: int, parts: int) -> None:
    lengths = lengths * ranks * parts
    batch = batch_of(lengths)
    mini_batch_size = len(lengths) // parts
    for shares in (rank_indices(len(batch), ranks), balanced_shares(batch.lengths, mini_batch_size, ranks)):
        shards = [batch.select(share) for share in shares]
        assert len({len(shard) for shard in shards}) == 1
        merged = merge_shares(shards, shares)
        for name in ("tokens", "prompt_lengths", "response_lengths"):
            np.testing.assert_array_equal(getattr(merged, name), getattr(batch, name))
        np.testing.assert_array_equal(merged.per_token["mark"], batch.per_token["mark"])


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8))
def test_no_more_ranks_than_needed_work_on_one_prompt(groups: int, group_size: int, ranks: int) -> None:
    shares = rank_indices(groups * group_size, ranks)
    sizes = {len(share) for share in shares}
    assert max(sizes) - min(sizes) <= 1
    assert np.concatenate(shares).tolist() == list(range(groups * group_size))
    # Each border between two ranks cuts one group at most.
    assert sum(len(set(share // group_size)) for share in shares) <= groups + ranks - 1


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8), st.integers(1, 4), st.integers(1, 3))
def test_ranks_share_every_mini_batch_in_equal_parts(lengths: list[int], ranks: int, parts: int) -> None:
    array = np.asarray(lengths * ranks * parts, np.int32)
    mini_batch_size = len(array) // parts
    shares = balanced_shares(array, mini_batch_size, ranks)
    for number in range(parts):
        first, room = number * mini_batch_size, mini_batch_size // ranks
        taken = [share[number * room : (number + 1) * room] for share in shares]
        assert sorted(np.concatenate(taken)) == list(range(first, first + mini_batch_size))
        loads = [int(array[indices].sum()) for indices in taken]
        assert max(loads) - min(loads) <= int(array.max())


@given(LENGTHS)
def test_padding_keeps_every_value(lengths: list[tuple[int, int]]) -> None:
    batch = batch_of(lengths)
    np.testing.assert_array_equal(batch.padded(batch.per_token["mark"])[batch.response_mask()], batch.per_token["mark"])
    assert batch.response_mask().sum() == batch.response_tokens


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 100), st.integers(1, 40))
def test_micro_batches_respect_the_budget(lengths: list[int], budget: int, at_least: int) -> None:
    array = np.asarray(lengths, np.int32)
    groups = micro_batches(array, budget, at_least)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    assert len(groups) >= min(at_least, len(lengths))
    for group in groups:
        assert len(group) == 1 or array[group].sum() <= budget


def test_micro_batches_are_few_and_even() -> None:
    groups = micro_batches(np.full(64, 1024, np.int32), 16384)
    assert [len(group) for group in groups] == [16] * 4
    uneven = np.asarray([900, 100, 500, 500, 700, 300], np.int32)
    assert [int(uneven[group].sum()) for group in micro_batches(uneven, 1000)] == [1000] * 3
