"""What verl needs to run on CPU, a module for `VERL_USE_EXTERNAL_MODULES`: a platform, and engines that make things up.

An engine answers a prompt alike in every placement, so that losses can be compared; all else is verl's own.
"""

import asyncio
import contextlib
import os
import random
import types
from collections.abc import Iterator
from typing import Any

import ray
import torch
import torch.distributed
import verl.utils.distributed
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
from verl.plugin.platform import PlatformBase, PlatformRegistry, set_platform
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

_TOKEN_S = 0.002
_SIZES = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "current_device")
_FIXED = {
    **dict.fromkeys(_SIZES, 0),
    "mem_get_info": (8 << 30, 16 << 30),
    "get_device_name": "CPU",
    "device_count": 1,
    "is_available": True,
}


class _CpuModule(types.ModuleType):
    """In place of `torch.cuda`."""

    def __getattr__(self, name: str) -> Any:
        if name in _FIXED or not hasattr(torch.cpu, name):
            return lambda *_, **__: _FIXED.get(name)
        return getattr(torch.cpu, name)


_CPU = _CpuModule("cpu_module")


@PlatformRegistry.register(platform="cpu")
class _CpuPlatform(PlatformBase):
    device_name = "cpu"
    vendor_name = "cpu"

    @property
    def device_module(self) -> types.ModuleType:
        return _CPU

    def is_available(self) -> bool:
        return True

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, index: int) -> None:
        pass

    def synchronize(self, index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, index: int | None = None) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, message: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


set_platform(_CpuPlatform())


def _join_group(timeout_second: int | None = None, backend: str | None = None) -> None:
    if not torch.distributed.is_initialized():
        rank, size = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
        torch.distributed.init_process_group("gloo", rank=rank, world_size=size)


class _Engine:
    """In place of a vLLM server."""

    def __init__(self) -> None:
        self._step = 0

    async def generate(self, request_id: str, prompt_ids: Any, sampling_params: Any, **_: Any) -> TokenOutput:
        drawn = random.Random(str(list(prompt_ids)))
        count = drawn.randint(8, 64)
        await asyncio.sleep(count * _TOKEN_S)
        tokens = [drawn.randint(1, 50) for _ in range(count)]
        return TokenOutput(
            token_ids=tokens, log_probs=[-5.0] * count, stop_reason="completed", num_preempted=0,
            extra_fields={"global_steps": self._step},
        )  # fmt: skip

    async def set_global_steps(self, step: int) -> None:
        self._step = step

    async def _do_nothing(self, *_: Any, **__: Any) -> None:
        pass

    sleep = wake_up = start_profile = stop_profile = abort_all_requests = resume_generation = _do_nothing
    clear_kv_cache = release_kv_cache = resume_kv_cache = _do_nothing


class _Replica(RolloutReplica):
    async def launch_servers(self) -> None:
        engine = ray.remote(num_cpus=0)(_Engine).options(max_concurrency=1000).remote()
        self.servers, self._server_handle, self._server_address = [engine], engine, f"made-up:{self.replica_rank}"

    def rollout_worker_use_gpu(self) -> bool:
        return False


class _Rollout(BaseRollout):
    """Takes the actor's weights and forgets them."""

    def __init__(self, *_: Any, replica_rank: int = 0, **__: Any) -> None:
        self.replica_rank, self.is_leader_rank = replica_rank, True

    async def resume(self, tags: Any) -> None:
        pass

    async def release(self) -> None:
        pass

    async def update_weights(self, weights: Any, wire_format: str = "named_tensors", **_: Any) -> None:
        if hasattr(weights, "__aiter__"):
            async for _weight in weights:
                pass
        else:
            for _weight in weights:
                pass


@CheckpointEngineRegistry.register("nccl")
class _NothingSent(CheckpointEngine):
    """In place of NCCL between the actor and engines apart."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def prepare(self) -> dict[str, Any]:
        return {}

    @classmethod
    def build_topology(cls, actors: int, rollouts: int, metadata: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"rank": list(range(actors))}, {"rank": list(range(actors, actors + rollouts))}

    def init_process_group(self, rank: int | None = None, **_: Any) -> None:
        pass

    def finalize(self) -> None:
        pass

    async def send_weights(self, weights: Any, global_steps: int | None = None) -> None:
        for _weight in weights:
            pass

    async def receive_weights(self, global_steps: int | None = None) -> Any:
        nothing: tuple[Any, ...] = ()
        for weight in nothing:
            yield weight


verl.utils.distributed.initialize_global_process_group_ray = _join_group
torch.Tensor.pin_memory = lambda self, *_, **__: self  # type: ignore[method-assign]
_ROLLOUT_REGISTRY[("vllm", "async")] = "verl_cpu._Rollout"
RolloutReplicaRegistry.register("vllm", lambda: _Replica)
