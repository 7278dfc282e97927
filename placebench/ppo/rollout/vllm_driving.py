"""A batch of requests through a vLLM engine of this process, with little of the host's time for each token.

While the GPU computes a token step the host has to get ready for the next, and at many sequences it is the slower one.
vLLM's front end works on every token of every request: it keeps statistics, looks for the ends of texts that nobody
decodes, and turns each log-probability into objects. Here it sees a request once, when that is over; tokens and
log-probabilities are taken where the scheduler has those of a whole step, as one array. The scheduler asks for room in
the cache for every token of every request, which comes in blocks of many tokens: here it asks once a block. Where
only tokens are new in a step, the scheduler's work is not done at all, see `vllm_steady`. And while the GPU works on
the first prompts, the host puts the other requests in.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Any

from placebench.ppo.rollout.base import Generated
from placebench.ppo.rollout.vllm_known import Known
from placebench.ppo.rollout.vllm_steady import steady_steps

# Of a batch's requests the share that goes in first, and the least tokens of their prompts: a GPU needs longer for
# these than the host to put the others in.
_FIRST_SHARE, _FIRST_TOKENS = 1 / 8, 2048


def run_requests(
    engine: Any, prompts: Sequence[Any], parameters: Sequence[Any], before_step: Callable[[], None], known: Known
) -> list[Generated]:
    """Generate one response per prompt; log-probabilities are there where the parameters ask for them.

    Args:
        engine: an `LLM` whose core is in this process.
        prompts: as vLLM takes them.
        parameters: of each prompt's sampling.
        before_step: called before each step of the engine.
        known: what is known of the engine's scheduler, kept from one call to the next.
    """
    core = engine.llm_engine
    scheduler = core.engine_core.engine_core.scheduler
    with asked_once_a_block(scheduler), _taken_from(scheduler) as taken, steady_steps(scheduler, known, taken):
        numbers: list[str] = []
        if first := _first(core, prompts):
            numbers += engine.enqueue(prompts[:first], parameters[:first], use_tqdm=False)
            before_step()
            core.step()
        numbers += engine.enqueue(prompts[first:], parameters[first:], use_tqdm=False)
        while core.has_unfinished_requests():
            before_step()
            core.step()
    return [taken.response(number) for number in numbers]


def _first(core: Any, prompts: Sequence[Any]) -> int:
    """How many requests go in before the others; 0 where a step waits for the device, or these would not keep it busy.

    vLLM's core has a queue of batches where a step hands its work over and does not wait for it.
    """
    first = ceil(_FIRST_SHARE * len(prompts))
    if getattr(core.engine_core.engine_core, "batch_queue", None) is None or first == len(prompts):
        return 0
    tokens = sum(len(prompt["prompt_token_ids"]) for prompt in prompts[:first])
    return first if tokens >= _FIRST_TOKENS else 0


class _Taken:
    """What requests have generated so far."""

    def __init__(self) -> None:
        self._tokens: defaultdict[str, list[int]] = defaultdict(list)
        self._log_probs: defaultdict[str, list[float]] = defaultdict(list)

    def take(self, outputs: Any, rows: dict[str, int], log_probs: list[float] | None) -> None:
        """Take a step's tokens and leave in its outputs those of requests that are over.

        Args:
            outputs: vLLM's `EngineCoreOutputs`.
            rows: the row of each request in the step's arrays.
            log_probs: of each row's token; None where none were asked for.
        """
        over = []
        for one in outputs.outputs:
            number = one.request_id
            # A request that ends by an error has none.
            if one.new_token_ids:
                self._tokens[number] += one.new_token_ids
                if log_probs is not None:
                    self._log_probs[number].append(log_probs[rows[number]])
            if one.finish_reason is not None:
                over.append(one)
        outputs.outputs = over

    def add(self, number: str, tokens: list[int], log_probs: list[float] | None) -> None:
        """Take further tokens of a request and, where they were asked for, their log-probabilities."""
        self._tokens[number] += tokens
        if log_probs is not None:
            self._log_probs[number] += log_probs

    def response(self, number: str) -> Generated:
        """A request's tokens and, where they were asked for, their log-probabilities."""
        return Generated(self._tokens[number], self._log_probs.get(number))


@contextmanager
def _taken_from(scheduler: Any) -> Iterator[_Taken]:
    """What a scheduler's requests generate inside; nobody else gets it."""
    update, taken = scheduler.update_from_output, _Taken()

    def update_and_take(scheduled: Any, output: Any) -> Any:
        # Taken off, so that it is not cut up by request.
        log_probs, output.logprobs = output.logprobs, None
        by_client = update(scheduled, output)
        # One token a request and step, and of it no log-probability but its own: the first column.
        values = None if log_probs is None else log_probs.logprobs[:, 0].tolist()
        for outputs in by_client.values():
            taken.take(outputs, output.req_id_to_index, values)
        return by_client

    scheduler.update_from_output = update_and_take
    try:
        yield taken
    finally:
        scheduler.update_from_output = update


@contextmanager
def asked_once_a_block(scheduler: Any) -> Iterator[None]:
    """Give requests inside the room that their last block has left, without what a scheduler does for a new block.

    Where layers see all tokens before them, that is nothing but to say that there is no new one. Other layers give
    blocks back with every token, and are left alone.
    """
    manager = scheduler.kv_cache_manager
    spec, *others = (group.kv_cache_spec for group in scheduler.kv_cache_config.kv_cache_groups)
    if others or type(spec).__name__ != "FullAttentionSpec":
        yield
        return
    allocate, none = manager.allocate_slots, manager.empty_kv_cache_blocks
    room: dict[str, int] = {}  # tokens that fit into the blocks of a request

    def allocate_if_need_be(request: Any, num_new_tokens: int, **more: Any) -> Any:
        end = request.num_computed_tokens + num_new_tokens
        is_running = more.keys() <= {"num_lookahead_tokens"} and not any(more.values())
        # A block that is full is known from then on as one that prefixes may share.
        is_new_to_share = manager.enable_caching and end % spec.block_size == 0
        if is_running and num_new_tokens and end <= room.get(request.request_id, 0) and not is_new_to_share:
            return none
        blocks = allocate(request, num_new_tokens, **more)
        # One that begins, or begins anew, has other blocks than its tokens say.
        is_known = is_running and blocks is not None
        room[request.request_id] = ceil(end / spec.block_size) * spec.block_size if is_known else 0
        return blocks

    manager.allocate_slots = allocate_if_need_be
    try:
        yield
    finally:
        manager.allocate_slots = allocate
