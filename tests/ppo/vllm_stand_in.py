"""A scheduler that works as vLLM's does, under its names, as far as text requests with one kind of layers need it."""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from math import ceil
from types import SimpleNamespace
from typing import Any


@dataclass
class SamplingParams:
    max_tokens: int
    min_tokens: int
    stop_token_ids: list[int]
    eos_token_id: int | None = None
    prompt_logprobs: int | None = None


class Request:
    def __init__(self, request_id: str, prompt: list[int], sampling_params: SamplingParams) -> None:
        self.request_id, self.sampling_params = request_id, sampling_params
        self.max_tokens, self.num_prompt_tokens = sampling_params.max_tokens, len(prompt)
        self._output_token_ids: list[int] = []
        self._all_token_ids = list(prompt)
        self.prompt_token_ids = list(prompt)
        self.num_computed_tokens = self.num_in_flight_tokens = self.num_output_placeholders = 0
        self.next_decode_eligible_step = self.num_preemptions = 0
        self.lora_request = self.structured_output_request = None
        self.mm_features: list[Any] = []
        self.spec_token_ids: list[int] = []
        self.events: list[Any] = []
        self.resumable = self.is_prefill_chunk = False

    @property
    def num_tokens(self) -> int:
        return len(self._all_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self._output_token_ids)

    def append_output_token_ids(self, tokens: int | list[int]) -> None:
        new = [tokens] if isinstance(tokens, int) else tokens
        self._output_token_ids += new
        self._all_token_ids += new


@dataclass
class NewRequestData:
    req_id: str
    prompt_token_ids: list[int]
    block_ids: tuple[list[int], ...]
    num_computed_tokens: int
    prefill_token_ids: list[int]


@dataclass
class CachedRequestData:
    req_ids: list[str] = field(default_factory=list)
    resumed_req_ids: set[str] = field(default_factory=set)
    new_token_ids: list[list[int]] = field(default_factory=list)
    all_token_ids: dict[str, list[int]] = field(default_factory=dict)
    new_block_ids: list[tuple[list[int], ...] | None] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)
    num_output_tokens: list[int] = field(default_factory=list)


@dataclass
class SchedulerOutput:
    scheduled_new_reqs: list[NewRequestData]
    scheduled_cached_reqs: CachedRequestData
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    finished_req_ids: set[str]
    preempted_req_ids: set[str]


@dataclass
class LogprobsLists:
    logprob_token_ids: Any
    logprobs: Any
    sampled_token_ranks: Any


@dataclass
class ModelRunnerOutput:
    req_ids: list[str]
    req_id_to_index: dict[str, int]
    sampled_token_ids: list[list[int]]
    logprobs: LogprobsLists | None = None
    num_nans_in_logits: dict[str, int] | None = None


class Blocks:
    """A request's new blocks."""

    def __init__(self, numbers: list[int]) -> None:
        self._numbers = numbers

    def get_block_ids(self, allow_none: bool = False) -> tuple[list[int], ...] | None:
        return (self._numbers,) if self._numbers or not allow_none else None


@dataclass(frozen=True)
class Block:
    block_id: int


class BlockPool:
    def __init__(self, blocks: int) -> None:
        self._free = deque(Block(number) for number in range(1, blocks))
        self.free_block_queue = SimpleNamespace(get_all_free_blocks=lambda: list(self._free))

    def get_num_free_blocks(self) -> int:
        return len(self._free)

    def get_new_blocks(self, count: int) -> list[Block]:
        return [self._free.popleft() for _ in range(count)]

    def free_blocks(self, blocks: list[Block]) -> None:
        self._free += blocks


class CacheManager:
    enable_caching = False

    def __init__(self, blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self.held: defaultdict[str, list[Block]] = defaultdict(list)
        self.empty_kv_cache_blocks = Blocks([])
        self.block_pool = BlockPool(blocks)
        self.coordinator = SimpleNamespace(single_type_managers=[SimpleNamespace(req_to_blocks=self.held)])

    def allocate_slots(self, request: Request, num_new_tokens: int, **more: Any) -> Blocks | None:
        held = self.held[request.request_id]
        lacking = ceil((request.num_computed_tokens + num_new_tokens) / self._block_size) - len(held)
        if lacking > self.block_pool.get_num_free_blocks():
            return None
        new = self.block_pool.get_new_blocks(lacking)
        held += new
        return Blocks([block.block_id for block in new]) if new else self.empty_kv_cache_blocks

    def free(self, request: Request) -> None:
        self.block_pool.free_blocks(self.held.pop(request.request_id, [])[::-1])


class FullAttentionSpec:
    def __init__(self, block_size: int) -> None:
        self.block_size = block_size


class Scheduler:
    """Takes what runs first, then what waits, and preempts the last that runs where blocks are short."""

    is_async = False

    def __init__(self, blocks: int, block_size: int, most_requests: int, most_tokens: int, longest: int) -> None:
        self.kv_cache_manager = CacheManager(blocks, block_size)
        group = SimpleNamespace(kv_cache_spec=FullAttentionSpec(block_size))
        self.kv_cache_config = SimpleNamespace(kv_cache_groups=[group])
        self.max_model_len, self._most_requests, self._most_tokens = longest, most_requests, most_tokens
        self.requests: dict[str, Request] = {}
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.finished_req_ids: set[str] = set()
        self.current_step = 0

    def add_request(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def finish_requests(self, numbers: list[str], status: Any) -> None:
        for number in numbers:
            if request := self.requests.get(number):
                self._free(request)

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting)

    def get_num_unfinished_requests(self) -> int:
        return sum(self.get_request_counts())

    def has_requests(self) -> bool:
        return bool(self.get_num_unfinished_requests() or self.finished_req_ids)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        self.current_step += 1
        counts: dict[str, int] = {}
        cached, new, preempted = CachedRequestData(), [], set()
        for request in list(self.running):
            pending = request.num_output_placeholders
            lacks = request.num_tokens + pending - request.num_computed_tokens
            if request not in self.running or request.num_output_tokens + pending >= request.max_tokens or not lacks:
                continue
            number = min(lacks, self._most_tokens - sum(counts.values()))
            if not number:
                break
            while (blocks := self.kv_cache_manager.allocate_slots(request, number)) is None:
                last = self.running.pop()
                preempted.add(last.request_id)
                self._preempt(last)
                if last is request:
                    break
            if blocks is None:
                break
            counts[request.request_id] = number
            cached.req_ids.append(request.request_id)
            cached.new_block_ids.append(blocks.get_block_ids(allow_none=True))
            cached.num_computed_tokens.append(request.num_computed_tokens)
            cached.num_output_tokens.append(request.num_output_tokens + pending)
        while self.waiting and not preempted and len(self.running) < self._most_requests:
            request = self.waiting[0]
            number = min(request.num_tokens, self._most_tokens - sum(counts.values()))
            # One that waits for tokens of steps before its preemption is not begun anew.
            if not number or request.num_in_flight_tokens:
                break
            blocks = self.kv_cache_manager.allocate_slots(request, number, num_new_computed_tokens=0)
            if blocks is None:
                break
            self.running.append(self.waiting.popleft())
            counts[request.request_id] = number
            held = ([block.block_id for block in self.kv_cache_manager.held[request.request_id]],)
            new.append(NewRequestData(request.request_id, request.prompt_token_ids, held, 0, request._all_token_ids))
        output = SchedulerOutput(new, cached, counts, sum(counts.values()), self.finished_req_ids, preempted)
        for scheduled, count in counts.items():
            self._update_after_schedule(self.requests[scheduled], count)
        self.finished_req_ids = set()
        return output

    def _update_after_schedule(self, request: Request, count: int) -> None:
        request.num_computed_tokens += count
        request.num_in_flight_tokens += count
        request.is_prefill_chunk = request.num_computed_tokens < request.num_tokens + request.num_output_placeholders
        if self.is_async and not request.is_prefill_chunk:
            request.num_output_placeholders += 1
            request.next_decode_eligible_step = self.current_step + 1

    def _preempt(self, request: Request) -> None:
        self.kv_cache_manager.free(request)
        request.num_computed_tokens = request.num_output_placeholders = 0
        request.num_preemptions += 1
        self.waiting.appendleft(request)

    def update_from_output(self, scheduled: SchedulerOutput, output: ModelRunnerOutput) -> dict[int, Any]:
        told = []
        for number, count in scheduled.num_scheduled_tokens.items():
            request = self.requests.get(number)
            if request is None:
                continue
            request.num_in_flight_tokens -= count
            tokens = output.sampled_token_ids[output.req_id_to_index[number]]
            if not tokens:
                continue
            request.append_output_token_ids(tokens[0])
            if request.num_output_placeholders:
                request.num_output_placeholders -= 1
            reason = self._reason(request, tokens[0])
            if reason:
                self._free(request)
            told.append(SimpleNamespace(request_id=number, new_token_ids=tokens, finish_reason=reason))
        return {0: SimpleNamespace(outputs=told)} if told else {}

    def _reason(self, request: Request, token: int) -> str | None:
        if request.num_output_tokens >= request.max_tokens:
            return "length"
        sampling = request.sampling_params
        is_stop = token in sampling.stop_token_ids and request.num_output_tokens >= sampling.min_tokens
        return "stop" if is_stop else None

    def _free(self, request: Request) -> None:
        self.kv_cache_manager.free(request)
        del self.requests[request.request_id]
        self.running = [one for one in self.running if one is not request]
        if request in self.waiting:
            self.waiting.remove(request)
        self.finished_req_ids.add(request.request_id)


class AsyncScheduler(Scheduler):
    """Schedules a step while the one before is under way."""

    is_async = True
