"""Settings that vLLM gets, and what it is kept from, while an engine is built in a worker's process."""

import copy
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import linear

from placebench.errors import LaunchError
from placebench.host.processes import TOKEN_VARIABLE, ray_temp_dir
from placebench.predict.memory.engine import CACHE_BLOCK_TOKENS
from placebench.spec.workload import Workload

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    # It knows no seed per request.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    # Every worker has one device, which it sees as its first.
    "LOCAL_RANK": "0",
}


def engine_seed(seed: int, rank: int, shared_by: int) -> int:
    """The seed of a rank's engine: engines draw differently, the `shared_by` ranks of one alike.

    It is below 2**32, as numpy's must be.
    """
    return (seed + rank // shared_by) % 2**32


def set_environment() -> None:
    """Set what vLLM reads while it is imported, but for what differs from rank to rank."""
    os.environ |= _ENVIRONMENT
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def import_engine(device_kind: str) -> None:
    """Import vLLM, which takes many seconds and reads its settings meanwhile.

    Args:
        device_kind: `cpu` or `cuda`.
    """
    os.environ["RANK"] = str(dist.get_rank())
    set_environment()
    sockets = ray_temp_dir(os.environ.get(TOKEN_VARIABLE, ""))
    if sockets.is_dir():
        # They outlive a process that is killed; this folder does not.
        os.environ["VLLM_RPC_BASE_PATH"] = str(sockets)
    if device_kind == "cpu":
        # Without it vLLM leaves the process, and so training, one thread.
        os.environ["OMP_NUM_THREADS"] = str(torch.get_num_threads())
    else:
        from torch._inductor.runtime.cache_dir_utils import triton_cache_dir

        # torch's compiler says this when it has something to keep; what Triton has kept before, later launches would
        # not find.
        os.environ.setdefault("TRITON_CACHE_DIR", triton_cache_dir(0))
    from vllm import LLM  # noqa: F401 - the package itself imports next to nothing


def config_folder(model_config: Any) -> Path:
    """A folder with the config that vLLM builds a model with random weights from, always the same one for a config.

    vLLM knows what it has compiled by the model's path among others, so that a launch finds what another has compiled
    only where the path is the same. The folder lies in vLLM's own cache.

    Raises:
        LaunchError: the cache cannot be written.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from vllm import envs

    config = copy.deepcopy(model_config)
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
    content: str = config.to_json_string()
    folder = Path(envs.VLLM_CACHE_ROOT) / "placebench" / hashlib.sha256(content.encode()).hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Ranks write it at the same time, and read it; those of several hosts may have one id.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as scratch:
            written = Path(scratch, "config.json")
            written.write_text(content, encoding="utf-8")
            written.replace(folder / written.name)
    except OSError as error:
        raise LaunchError(f"{folder}: vLLM's cache cannot be written: {error.strerror}; set VLLM_CACHE_ROOT") from None
    return folder


def register_model(model_config: Any) -> None:
    """Let vLLM look at its own class of a model in this process, and not in one that imports vLLM anew for it."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from vllm import ModelRegistry

    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_config.model_type]
    if known := ModelRegistry.models.get(name):
        ModelRegistry.register_model(name, known.load_model_cls())


def kv_cache_bytes(model_config: Any, workload: Workload, sequences: int, most: int | None = None) -> int:
    """Bytes of keys and values on each device of an engine, for that many sequences of full length at a time.

    Args:
        model_config: the policy's transformers config.
        workload: the job.
        sequences: of the engine.
        most: bytes that they may be; None for no limit.
    """
    heads, shared_by = model_config.num_attention_heads, workload.rollout.tensor_parallel_size
    width = getattr(model_config, "head_dim", None) or model_config.hidden_size // heads
    # Devices that are more than the heads hold copies of them.
    kv_width = max(1, model_config.num_key_value_heads // shared_by) * width
    length = workload.batch.max_prompt_length + workload.batch.max_response_length
    # vLLM keeps one block for itself.
    tokens = (sequences * ceil(length / CACHE_BLOCK_TOKENS) + 1) * CACHE_BLOCK_TOKENS
    whole = int(2 * tokens * model_config.num_hidden_layers * kv_width * getattr(torch, workload.precision).itemsize)
    return whole if most is None else min(whole, most)


def draws_by_seed(vllm_config: Any, *, is_gpu: bool) -> bool:
    """Whether an engine's requests can have seeds of their own at no cost.

    On GPUs vLLM's first model runner draws request by request where these have seeds, one kernel each. Its second one
    draws all at once, from the seed of each request, and makes up one for a request that has none.
    """
    return not is_gpu or bool(vllm_config.use_v2_model_runner)


def graph_sizes(sequences: int) -> list[int]:
    """Numbers of sequences that decoding gets a graph for: in steps that pad little, up to all of them.

    vLLM's own sizes end at a multiple of 8, and at 512: a batch beyond the last is decoded without a graph.
    """
    steps = (1, 2, 4, *range(8, 256, 8), *range(256, sequences, 16))
    return [*(size for size in steps if size < sequences), sequences]


@contextmanager
def warm_up_as_the_job(announce: Callable[[], None], top_p: float) -> Iterator[None]:
    """Call `announce` before the engine built inside warms up, and let it compile what and where the job does.

    vLLM has the process keep what it compiles in a folder for the engine's model and settings, where no launch with
    other settings, and none of the trained models, would find it. And it compiles all that its sampler can do, such as
    penalties and lists of bad words, of which the job uses next to nothing.

    Args:
        announce: called before.
        top_p: of the job's sampling.
    """
    from vllm import SamplingParams
    from vllm.v1.worker.gpu_worker import Worker

    warm_up, sampling = Worker.compile_or_warm_up_model, vars(SamplingParams).get("for_sampler_warmup")
    parameters = SamplingParams(temperature=1.0, top_p=top_p, logprobs=0, seed=0)
    of_the_job = {name: os.environ.get(name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}

    def announced(worker: Worker) -> Any:
        announce()
        for name, folder in of_the_job.items():
            if folder is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = folder
        return warm_up(worker)

    Worker.compile_or_warm_up_model = announced
    if sampling:
        SamplingParams.for_sampler_warmup = staticmethod(lambda: parameters)
    try:
        yield
    finally:
        Worker.compile_or_warm_up_model = warm_up
        if sampling:
            SamplingParams.for_sampler_warmup = sampling


@contextmanager
def plain_weights() -> Iterator[None]:
    """Keep the engine built inside computing with its parameters.

    On CPU vLLM packs the matrices when it loads them, drops the parameters of most and goes on with the old packed
    copy of others (the output head where it is tied to the embedding), so that no later update reaches them.
    """
    from vllm.model_executor.layers import utils

    packing = utils.dispatch_cpu_unquantized_gemm
    utils.dispatch_cpu_unquantized_gemm = _compute_with_parameter
    try:
        yield
    finally:
        utils.dispatch_cpu_unquantized_gemm = packing


@contextmanager
def no_shared_files() -> Iterator[None]:
    """Let the ranks that share the engine built inside talk through their process group.

    On CPU vLLM would use files in shared memory, which have the same name in every job of the host that starts its own
    ranks, and stay behind.
    """
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    agree = CpuCommunicator._all_group_ranks_share_shm_group_name
    CpuCommunicator._all_group_ranks_share_shm_group_name = lambda communicator: False
    try:
        yield
    finally:
        CpuCommunicator._all_group_ranks_share_shm_group_name = agree


def _compute_with_parameter(layer: Any, remove_weight: bool) -> None:
    layer.cpu_linear = linear
