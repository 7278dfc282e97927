"""Weights broadcast from one end to others, each a thread with a process group of its own over gloo."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed import HashStore

from placebench.ppo.weights import SENDER, WeightChannel, WeightShape, fill_buckets, weight_layout


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 60))
def test_buckets_hold_everything_in_order_and_no_more_than_the_limit(sizes: list[int], limit: int) -> None:
    buckets = fill_buckets(sizes, limit)
    assert [index for bucket in buckets for index in bucket] == list(range(len(sizes)))
    sums = [sum(sizes[index] for index in bucket) for bucket in buckets]
    assert all(total <= limit or len(bucket) == 1 for total, bucket in zip(sums, buckets, strict=True))
    # No bucket has room for the next one's first weight.
    assert all(total + sizes[after[0]] > limit for total, (_, after) in zip(sums, pairwise(buckets), strict=False))


def weights(seed: int) -> list[tuple[str, Tensor]]:
    random = torch.Generator().manual_seed(seed)
    shapes = {"embed": (7, 3), "norm": (5,), "head": (11, 2), "scale": (1,)}
    return [(name, torch.randn(shape, generator=random)) for name, shape in shapes.items()]


@pytest.mark.parametrize("bucket_bytes", [4, 64, 1 << 20])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_every_end_gets_every_weight_each_time(bucket_bytes: int, precision: torch.dtype) -> None:
    store, ends = HashStore(), 3

    def run(end: int) -> list[list[tuple[str, Tensor]]]:
        layout = weight_layout(weights(1))
        channel = WeightChannel(store, end, ends, torch.device("cpu"), precision, layout, bucket_bytes)
        assert channel.bytes == (7 * 3 + 5 + 11 * 2 + 1) * precision.itemsize
        received = []
        for seed in (1, 2):
            if end == SENDER:
                channel.announce(seed)
                channel.send(iter(weights(seed)))
            else:
                received.append([(name, weight.clone()) for name, weight in channel.receive()])
                assert channel.announced() >= seed
        channel.close()
        return received

    with ThreadPoolExecutor(ends) as threads:
        _, *receivers = threads.map(run, range(ends))
    for received in receivers:
        for seed, got in zip((1, 2), received, strict=True):
            assert [name for name, _ in got] == [name for name, _ in weights(seed)]
            for (_, weight), (_, sent) in zip(got, weights(seed), strict=True):
                torch.testing.assert_close(weight, sent.to(precision), rtol=0, atol=0)


def test_nothing_is_announced_at_first() -> None:
    layout = (WeightShape("one", (1,)),)
    assert WeightChannel(HashStore(), 0, 1, torch.device("cpu"), torch.float32, layout).announced() == 0


def test_weights_that_are_not_as_laid_out_are_not_sent() -> None:
    layout = (WeightShape("one", (2,)), WeightShape("two", (2,)))
    channel = WeightChannel(HashStore(), 0, 1, torch.device("cpu"), torch.float32, layout)

    def swapped() -> Iterator[tuple[str, Tensor]]:
        yield "two", torch.zeros(2)
        yield "one", torch.zeros(2)

    with pytest.raises(AssertionError, match="as laid out"):
        channel.send(swapped())
