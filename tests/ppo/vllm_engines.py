"""An engine of vLLM's own scheduler, with a model that only counts: what it is told is checked and written down."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from placebench.ppo.models import model_config

VOCABULARY = 50


@dataclass
class Setting:
    """How a scheduler is set up."""

    is_async: bool = True
    second_runner: bool = True
    blocks: int = 4000
    block_size: int = 16
    keeps_prefixes: bool = False
    most_tokens: int = 8192
    log_probs: bool = False


@dataclass
class Case:
    """A request: its prompt, its longest response, what ends it sooner."""

    prompt: list[int]
    longest: int
    stops: list[int] = field(default_factory=list)
    least: int = 0


class Engine:
    """An `LLM` of one process, whose model gives each request a token that hangs on its number and place alone."""

    def __init__(self, setting: Setting, most_requests: int = 256, longest: int = 600) -> None:
        self.setting = setting
        self.scheduler = _scheduler(setting, most_requests, longest)
        self.model = Model(setting)
        self.told: list[dict[str, Any]] = []
        self.llm_engine = self.engine_core = self
        self._queue: deque[tuple[Any, Any]] = deque()
        self._open: set[str] = set()
        self._made = 0

    def enqueue(self, cases: Sequence[Case], parameters: Sequence[Any], use_tqdm: bool) -> list[str]:
        from vllm import SamplingParams
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.request import Request

        hasher = None
        if self.setting.keeps_prefixes:
            init_none_hash(hash)
            hasher = get_request_block_hasher(self.setting.block_size, lambda what: str(hash(what)).encode())
        numbers = []
        for case in cases:
            self._made += 1
            sampling = SamplingParams(
                max_tokens=case.longest,
                min_tokens=case.least,
                stop_token_ids=case.stops,
                ignore_eos=True,
                detokenize=False,
                logprobs=0 if self.setting.log_probs else None,
            )
            numbers.append(str(self._made))
            request = Request(numbers[-1], case.prompt, sampling, None, arrival_time=0.0, block_hasher=hasher)
            self.scheduler.add_request(request)
        self._open |= set(numbers)
        return numbers

    def has_unfinished_requests(self) -> bool:
        return bool(self._open)

    def step(self) -> None:
        """One step as `EngineCore.step_with_batch_queue` and `EngineCore.step` do it."""
        if self.scheduler.has_requests():
            scheduled = self.scheduler.schedule()
            self.told.append(asdict(scheduled))
            self._queue.append((scheduled, self.model.run(scheduled)))
            if self.setting.is_async and len(self._queue) < 2:
                return
        for outputs in self.scheduler.update_from_output(*self._queue.popleft()).values():
            self._open -= {one.request_id for one in outputs.outputs if one.finish_reason is not None}


class Model:
    """What a model runner keeps of requests, and that it can do what it is told."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._lengths: dict[str, int] = {}
        self._blocks: dict[str, list[int]] = {}

    def run(self, scheduled: Any) -> Any:
        from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput

        for number in scheduled.finished_req_ids:
            self._blocks.pop(number, None)
        computed = {}
        for new in scheduled.scheduled_new_reqs:
            tokens = new.prefill_token_ids if self._setting.second_runner else new.prompt_token_ids
            self._lengths[new.req_id] = len(tokens)
            self._blocks[new.req_id] = list(new.block_ids[0])
            computed[new.req_id] = new.num_computed_tokens
        cached = scheduled.scheduled_cached_reqs
        known = zip(cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True)
        for number, length, blocks in known:
            computed[number] = length
            if number in cached.resumed_req_ids:
                self._blocks[number] = []
                self._lengths[number] = len(cached.all_token_ids[number])
            self._blocks[number] += blocks[0] if blocks else []
        # In an order of its own, as runners have.
        numbers = sorted(scheduled.num_scheduled_tokens)
        ends = {number: computed[number] + scheduled.num_scheduled_tokens[number] for number in numbers}
        for number, end in ends.items():
            assert end <= len(self._blocks[number]) * self._setting.block_size
            assert len(set(self._blocks[number])) == len(self._blocks[number])
        log_probs = None
        if self._setting.log_probs:
            values = np.array([[-token_of(number, ends[number]) / 64, -9] for number in numbers], dtype=np.float32)
            log_probs = LogprobsLists(values.astype(np.int32), values.reshape(-1, 2), np.zeros(len(numbers)))
        return ModelRunnerOutput(
            req_ids=numbers,
            req_id_to_index={number: row for row, number in enumerate(numbers)},
            sampled_token_ids=[
                [token_of(number, ends[number])] if ends[number] >= self._lengths[number] else [] for number in numbers
            ],
            logprobs=log_probs,
        )


def token_of(number: str, place: int) -> int:
    """The token at a place of a request's text."""
    return (int(number) * 7919 + place * 104729 + int(number) * place * 31) % VOCABULARY


def _scheduler(setting: Setting, most_requests: int, longest: int) -> Any:
    import torch
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    from placebench.ppo.rollout.vllm_build import config_folder

    sizes = {"max_num_seqs": most_requests, "max_num_batched_tokens": setting.most_tokens, "max_model_len": longest}
    config = VllmConfig(
        model_config=ModelConfig(
            str(config_folder(model_config("tiny"))), skip_tokenizer_init=True, dtype="float32", max_model_len=longest
        ),
        scheduler_config=SchedulerConfig(is_encoder_decoder=False, async_scheduling=setting.is_async, **sizes),
        cache_config=CacheConfig(block_size=setting.block_size, enable_prefix_caching=setting.keeps_prefixes),
    )
    # On CPU vLLM schedules synchronously, whatever it is asked for.
    config.scheduler_config.async_scheduling = setting.is_async
    config.cache_config.num_gpu_blocks = setting.blocks
    spec = FullAttentionSpec(block_size=setting.block_size, num_kv_heads=1, head_size=16, dtype=torch.float32)
    cache = KVCacheConfig(
        num_blocks=setting.blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    kind: Callable[..., Any] = AsyncScheduler if setting.is_async else Scheduler
    scheduler = kind(config, cache, StructuredOutputManager(config), block_size=setting.block_size)
    scheduler.use_v2_model_runner = setting.second_runner
    return scheduler


def state_of(scheduler: Any) -> dict[str, Any]:
    """All that a scheduler and its cache keep from step to step."""
    pool = scheduler.kv_cache_manager.block_pool
    manager = scheduler.kv_cache_manager.coordinator.single_type_managers[0]
    plain = (bool, int, str, list, set, dict, type(None))
    kept = {name: value for name, value in vars(scheduler).items() if type(value) in plain}
    named = {"running", "requests"}
    return {name: value for name, value in kept.items() if name not in named} | {
        "running": [_request(request) for request in scheduler.running],
        "requests": sorted(scheduler.requests),
        "free": [block.block_id for block in pool.free_block_queue.get_all_free_blocks()],
        "cached": {block.block_id: str(block.block_hash) for block in pool.blocks if block.block_hash is not None},
        "blocks": {
            number: [block.block_id for block in blocks] for number, blocks in manager.req_to_blocks.items() if blocks
        },
    }


def _request(request: Any) -> dict[str, Any]:
    plain = (bool, int, str, list, type(None))
    return {name: value for name, value in vars(request).items() if type(value) in plain}


