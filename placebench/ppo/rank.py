"""One process of a pool on one device: its life from binding to the device to leaving the pool's process group.

Only the standard library is imported with this module; torch comes in `start`, after the process is bound to its
device.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from placebench.host.heap import imports_uncollected
from placebench.sessions.base import LOOPBACK
from placebench.telemetry.kernels import KernelTrace
from placebench.telemetry.spans import SpanRecorder

if TYPE_CHECKING:
    from torch.distributed import TCPStore


# What every worker imports before its first step, but for Ray, which reads its settings as it is imported.
WORKER_IMPORTS = (
    "torch._dynamo",
    "torch.distributed.fsdp",
    "tokenizers",
    "transformers.models.auto.modeling_auto",
    "transformers.models.qwen2.modeling_qwen2",
    "placebench.ppo.role_models",
    "placebench.ppo.rollout.torch",
    "placebench.ppo.worker",
    "placebench.tasks.tokenizer",
)


class Rank:
    """A rank of a pool.

    Args:
        pool: the pool's name.
        device: the device's record in launch.json.
        rank: this process's rank in the pool.
        ranks: size of the pool.
    """

    def __init__(self, pool: str, device: Mapping[str, Any], rank: int, ranks: int) -> None:
        self._pool, self._device_record = pool, device
        self._rank, self._ranks = rank, ranks
        self._spans = SpanRecorder(device["id"], pool)
        self._kernels: KernelTrace | None = None
        # To other pools, closed before the process leaves its own.
        self._connections = ExitStack()

    def start(self, host: str) -> tuple[int, int]:
        """Bind the process to its device and import what the job needs.

        Args:
            host: the address by which the workers of other nodes reach this one.

        Returns:
            The process id, and the CPU threads that torch computes with.
        """
        self._host = host
        if host != LOOPBACK:
            from placebench.host.network import use_interface_of

            use_interface_of(host)
        with self._spans.span(0, "imports"), imports_uncollected():
            if self._device_record["kind"] == "gpu":
                os.environ["CUDA_VISIBLE_DEVICES"] = self._device_record["id"]
            else:
                # Threads made from here on inherit the cores, torch's among them.
                os.sched_setaffinity(0, self._device_record["cores"])
            import torch
            import transformers.models.auto.modeling_auto  # noqa: F401 - a large part of the start, timed here

            if self._device_record["kind"] == "cpu":
                torch.set_num_threads(len(self._device_record["cores"]))
        if self._device_record["kind"] == "gpu":
            self._spans = SpanRecorder(self._device_record["id"], self._pool, _GpuMeter(), self._spans.clock)
            self._kernels = KernelTrace(self._device_record["id"])
        return os.getpid(), torch.get_num_threads()

    def open_store(self) -> tuple[str, int]:
        """Open the pool's rendezvous on a free port, in rank 0; returns host and port."""
        self._store = tcp_store((self._host, 0), self._ranks, serves=True)
        return self._host, self._store.port

    def _join(self, address: tuple[str, int]) -> None:
        """Join the pool's process group at its rendezvous."""
        import torch
        import torch.distributed as dist

        store = self._store if self._rank == 0 else tcp_store(address, self._ranks)
        backend = "nccl" if self._device_record["kind"] == "gpu" else "gloo"
        dist.init_process_group(backend, store=store, rank=self._rank, world_size=self._ranks)
        self._torch_device = torch.device("cuda" if backend == "nccl" else "cpu")

    def _leave(self) -> None:
        """Leave the pool's process group."""
        import torch.distributed as dist

        if dist.is_initialized():  # vLLM leaves the group as it closes
            dist.destroy_process_group()


def tcp_store(address: tuple[str, int], ranks: int | None = None, *, serves: bool = False) -> "TCPStore":
    """A rendezvous of processes.

    Args:
        address: its host and port; port 0 for a free one, where it is served.
        ranks: the processes that meet there; None for any number.
        serves: whether it is opened here; otherwise a connection to it is made.
    """
    from torch.distributed import TCPStore

    return TCPStore(*address, ranks, is_master=serves, wait_for_workers=not serves)


class _GpuMeter:
    """The process's GPU; its memory as torch's allocator counts it."""

    def __init__(self) -> None:
        self._left_out = 0

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize()

    def reset_peaks(self) -> None:
        import torch

        torch.cuda.reset_peak_memory_stats()

    def peaks(self) -> tuple[int, int]:
        import torch

        return (
            torch.cuda.max_memory_allocated() - self._left_out,
            torch.cuda.max_memory_reserved() - self._left_out,
        )

    @contextmanager
    def left_out(self) -> Iterator[None]:
        import torch

        before = torch.cuda.memory_allocated()
        yield
        self._left_out = torch.cuda.memory_allocated() - before
