"""An engine around vLLM's own scheduler, or its stand-in, with a model that checks what it is told and only counts."""

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
import vllm_stand_in

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
    most_requests: int = 256
    most_tokens: int = 8192
    longest: int = 400
    log_probs: bool = False


@dataclass
class Case:
    """A request: its prompt, its longest response, what ends it sooner, but not before `least` tokens."""

    prompt: list[int]
    longest: int
    stops: list[int] = field(default_factory=list)
    least: int = 0


class StandIns:
    """The stand-in's classes."""

    ModelRunnerOutput = vllm_stand_in.ModelRunnerOutput
    LogprobsLists = vllm_stand_in.LogprobsLists

    def __init__(self, setting: Setting) -> None:
        kind = vllm_stand_in.AsyncScheduler if setting.is_async else vllm_stand_in.Scheduler
        self.scheduler: Any = kind(
            setting.blocks, setting.block_size, setting.most_requests, setting.most_tokens, setting.longest
        )

    def request(self, number: str, case: Case) -> Any:
        sampling = vllm_stand_in.SamplingParams(case.longest, case.least, case.stops)
        return vllm_stand_in.Request(number, case.prompt, sampling)

    def state(self) -> dict[str, Any]:
        """All that the scheduler keeps from step to step."""
        manager = self.scheduler.kv_cache_manager
        free = manager.block_pool.free_block_queue.get_all_free_blocks()
        return _state(self.scheduler) | {"free": free, "held": manager.held}


class Vllm:
    """vLLM's own classes."""

    def __init__(self, setting: Setting) -> None:
        import torch
        from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
        from vllm.v1.structured_output import StructuredOutputManager

        from placebench.ppo.rollout.vllm_build import config_folder

        self._setting = setting
        self.ModelRunnerOutput, self.LogprobsLists = ModelRunnerOutput, LogprobsLists
        folder, longest = str(config_folder(model_config("tiny"))), setting.longest
        config = VllmConfig(
            model_config=ModelConfig(folder, skip_tokenizer_init=True, dtype="float32", max_model_len=longest),
            scheduler_config=SchedulerConfig(
                is_encoder_decoder=False,
                max_num_seqs=setting.most_requests,
                max_num_batched_tokens=setting.most_tokens,
                max_model_len=longest,
            ),
            cache_config=CacheConfig(block_size=setting.block_size, enable_prefix_caching=setting.keeps_prefixes),
        )
        # On CPU vLLM schedules synchronously, whatever it is asked for.
        config.scheduler_config.async_scheduling = setting.is_async
        config.cache_config.num_gpu_blocks = setting.blocks
        spec = FullAttentionSpec(block_size=setting.block_size, num_kv_heads=1, head_size=16, dtype=torch.float32)
        groups = [KVCacheGroupSpec(["layer"], spec)]
        cache = KVCacheConfig(num_blocks=setting.blocks, kv_cache_tensors=[], kv_cache_groups=groups)
        kind = AsyncScheduler if setting.is_async else Scheduler
        structured = StructuredOutputManager(config)
        self.scheduler: Any = kind(config, cache, structured, block_size=setting.block_size)
        self.scheduler.use_v2_model_runner = setting.second_runner
        self._hasher = None
        if setting.keeps_prefixes:
            init_none_hash(_hash)
            self._hasher = get_request_block_hasher(setting.block_size, _hash)

    def request(self, number: str, case: Case) -> Any:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        sampling = SamplingParams(
            max_tokens=case.longest,
            min_tokens=case.least,
            stop_token_ids=case.stops,
            ignore_eos=True,
            detokenize=False,
            logprobs=0 if self._setting.log_probs else None,
        )
        return Request(number, case.prompt, sampling, None, arrival_time=0.0, block_hasher=self._hasher)

    def state(self) -> dict[str, Any]:
        """All that the scheduler and its cache keep from step to step."""
        pool = self.scheduler.kv_cache_manager.block_pool
        manager = self.scheduler.kv_cache_manager.coordinator.single_type_managers[0]
        held = {number: [block.block_id for block in blocks] for number, blocks in manager.req_to_blocks.items()}
        return _state(self.scheduler) | {
            "free": [block.block_id for block in pool.free_block_queue.get_all_free_blocks()],
            "cached": {block.block_id: block.block_hash for block in pool.blocks if block.block_hash is not None},
            "held": {number: blocks for number, blocks in held.items() if blocks},
        }


class Engine:
    """An `LLM` of one process, whose model gives each request a token that depends on its number and place alone."""

    def __init__(self, setting: Setting, kit: type[StandIns] | type[Vllm]) -> None:
        self.kit = kit(setting)
        self.scheduler = self.kit.scheduler
        self.told: list[dict[str, Any]] = []
        """What the model was told in each step."""
        self.llm_engine = self.engine_core = self
        self._setting, self._model = setting, Model(setting, self.kit)
        self._queue: deque[tuple[Any, Any]] = deque()
        self._open: set[str] = set()
        self._made = 0

    def enqueue(self, cases: Sequence[Case], parameters: Sequence[Any], use_tqdm: bool) -> list[str]:
        numbers = [str(self._made + place) for place in range(len(cases))]
        self._made += len(cases)
        self._open |= set(numbers)
        for number, case in zip(numbers, cases, strict=True):
            self.scheduler.add_request(self.kit.request(number, case))
        return numbers

    def abort(self, number: str) -> None:
        """End a request from outside, as a front end does."""
        status = None
        if isinstance(self.kit, Vllm):
            from vllm.v1.request import RequestStatus

            status = RequestStatus.FINISHED_ABORTED
        self.scheduler.finish_requests([number], status)
        self._open.discard(number)

    def has_unfinished_requests(self) -> bool:
        return bool(self._open)

    def step(self) -> None:
        """One step as `EngineCore.step_with_batch_queue` and `EngineCore.step` do it."""
        if self.scheduler.has_requests():
            scheduled = self.scheduler.schedule()
            self.told.append(asdict(scheduled))
            self._queue.append((scheduled, self._model.run(scheduled)))
            if self._setting.is_async and len(self._queue) < 2:
                return
        for outputs in self.scheduler.update_from_output(*self._queue.popleft()).values():
            self._open -= {one.request_id for one in outputs.outputs if one.finish_reason is not None}


class Model:
    """What a model runner keeps of requests, and that it can do what it is told."""

    def __init__(self, setting: Setting, kit: Any) -> None:
        self._setting, self._kit = setting, kit
        self._lengths: dict[str, int] = {}
        self._blocks: dict[str, list[int]] = {}

    def run(self, scheduled: Any) -> Any:
        for number in scheduled.finished_req_ids | (scheduled.preempted_req_ids or set()):
            self._blocks.pop(number, None)
        computed = {}
        for new in scheduled.scheduled_new_reqs:
            tokens = new.prefill_token_ids if self._setting.second_runner else new.prompt_token_ids
            self._lengths[new.req_id] = len(tokens)
            self._blocks[new.req_id] = list(new.block_ids[0])
            computed[new.req_id] = new.num_computed_tokens
        cached = scheduled.scheduled_cached_reqs
        for number, length, blocks in zip(
            cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True
        ):
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
            values = np.array([[log_prob_of(number, ends[number]), -9] for number in numbers], dtype=np.float32)
            log_probs = self._kit.LogprobsLists(None, values.reshape(-1, 2), None)
        return self._kit.ModelRunnerOutput(
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


def log_prob_of(number: str, place: int) -> float:
    """Its log-probability."""
    return -token_of(number, place) / 64 - int(number)


def _hash(what: Any) -> bytes:
    return sha256(repr(what).encode()).digest()


def _state(scheduler: Any) -> dict[str, Any]:
    kept = {name: value for name, value in vars(scheduler).items() if type(value) in PLAIN and name[0] != "_"}
    return kept | {
        "running": [_request(request) for request in scheduler.running],
        "requests": sorted(scheduler.requests),
    }


def _request(request: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(request).items() if type(value) in PLAIN}


PLAIN = (bool, int, str, list, set, dict, type(None))
