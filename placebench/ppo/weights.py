"""The learners' weights on their way to engines in another pool: broadcast, bucket by bucket.

Sender and engines form a process group of their own beside those of their pools, NCCL on GPUs and gloo on CPU devices,
so that weights go from device memory to device memory. Both sides know names and shapes beforehand and cut them into
the same buckets: what a rank holds on top is one bucket, or the largest single weight where that is more.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store

from placebench.predict.memory.estimate import BUCKET_BYTES

SENDER = 0
# Gloo's own default, which its binding wants to be named.
_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True)
class WeightShape:
    """Name in transformers and shape of one whole weight."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of its values."""
        return prod(self.shape)


Layout = tuple[WeightShape, ...]


def weight_layout(weights: Iterable[tuple[str, Tensor]]) -> Layout:
    """Names and shapes of weights, in order."""
    return tuple(WeightShape(name, tuple(weight.shape)) for name, weight in weights)


def fill_buckets(sizes: Sequence[int], limit: int) -> list[range]:
    """Cut a sequence of sizes into runs whose sum stays within `limit`; a larger single one stands alone."""
    buckets: list[range] = []
    first, filled = 0, 0
    for index, size in enumerate(sizes):
        if index > first and filled + size > limit:
            buckets.append(range(first, index))
            first, filled = index, 0
        filled += size
    return [*buckets, range(first, len(sizes))] if sizes else []


class WeightChannel:
    """One end of the way: rank 0 sends, all others receive. Building it, sending and receiving are collective.

    Args:
        store: where the ends meet.
        rank: of this end; `SENDER` sends.
        size: all ends.
        device: where weights are and go to.
        precision: in which they travel.
        layout: what travels, in order.
        bucket_bytes: most bytes of a broadcast, but for a single weight that has more.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        device: torch.device,
        precision: torch.dtype,
        layout: Layout,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._store = PrefixStore("weights", store)
        self._device, self._precision, self._layout = device, precision, layout
        sizes = [weight.size for weight in layout]
        self._buckets = fill_buckets(sizes, bucket_bytes // precision.itemsize)
        self._largest = max(sum(sizes[index] for index in bucket) for bucket in self._buckets)
        self._group = _process_group(device, self._store, rank, size)

    @property
    def bytes(self) -> int:
        """Bytes that one sending takes to each receiver."""
        return sum(weight.size for weight in self._layout) * self._precision.itemsize

    def announce(self, updates: int) -> None:
        """Tell the receivers that the weights after this many updates are about to be sent."""
        self._store.set("updates", str(updates))

    def announced(self) -> int:
        """How many updates the weights have had that were announced last; 0 before any."""
        return int(self._store.get("updates")) if self._store.check(["updates"]) else 0

    def send(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Broadcast the weights, which come in the layout's order."""
        source, buffer = iter(weights), self._buffer()
        for bucket in self._buckets:
            filled = 0
            for index in bucket:
                name, weight = next(source)
                expected = self._layout[index]
                assert (name, tuple(weight.shape)) == (expected.name, expected.shape), "weights come as laid out"
                buffer[filled : filled + expected.size].copy_(weight.reshape(-1))
                filled += expected.size
            self._group.broadcast(buffer[:filled], SENDER).wait()
        assert next(source, None) is None, "no weights come beside those laid out"

    def receive(self) -> Iterator[tuple[str, Tensor]]:
        """The weights as they come in; each is valid until the next one is asked for."""
        buffer = self._buffer()
        for bucket in self._buckets:
            expected = [self._layout[index] for index in bucket]
            self._group.broadcast(buffer[: sum(weight.size for weight in expected)], SENDER).wait()
            filled = 0
            for weight in expected:
                yield weight.name, buffer[filled : filled + weight.size].view(weight.shape)
                filled += weight.size

    def close(self) -> None:
        """Leave the group."""
        self._group.shutdown()

    def _buffer(self) -> Tensor:
        return torch.empty(self._largest, dtype=self._precision, device=self._device)


def _process_group(device: torch.device, store: Store, rank: int, size: int) -> Any:
    """A group beside the default one: `new_group` makes only groups of ranks that one default group has."""
    if device.type == "cuda":
        backend: Any = dist.ProcessGroupNCCL
        return backend(store, rank, size, backend.Options())
    return dist.ProcessGroupGloo(store, rank, size, _TIMEOUT)
