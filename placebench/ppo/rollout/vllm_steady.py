"""Token steps of a vLLM engine without its scheduler's work on every request, where nothing but tokens is new.

vLLM's scheduler goes through all requests twice a token step, in Python, and at many sequences that takes longer than
the GPU takes for the step. Here it does so only where a request begins, waits, or gives its place to another, or where
something is there that `vllm_window` does not know. A request that ends is seen to by vLLM too, alone.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

from placebench.ppo.rollout.vllm_known import Known, Seen, SeenBlocks
from placebench.ppo.rollout.vllm_window import SteadyStep, SteadyWindow, Taker, is_steady, members_of

# What a scheduler has to be without, by the names that versions have for it.
_UNKNOWN = (
    "aux_output_connector",
    "connector",
    "defer_block_free",
    "ec_connector",
    "enable_kv_cache_events",
    "enable_return_routed_experts",
    "finished_req_ids_dict",
    "is_encoder_decoder",
    "log_stats",
    "lora_config",
    "needs_kv_cache_zeroing",
    "num_lookahead_tokens",
    "num_spec_tokens",
    "perf_metrics",
    "return_sampling_mask",
    "use_pp",
)
# What may be called between two steps and looks at nothing that a window keeps.
_HARMLESS = {
    "get_grammar_bitmask",
    "get_num_unfinished_requests",
    "has_finished_requests",
    "has_requests",
    "has_unfinished_requests",
}
# Of a model's output, what tokens come in.
_OUTPUT = {"req_ids", "req_id_to_index", "sampled_token_ids", "logprobs", "cudagraph_stats"}


@contextmanager
def steady_steps(scheduler: Any, known: Known, taken: Taker) -> Iterator[None]:
    """Have an engine's steady token steps cost little inside; what is generated is the same.

    Args:
        scheduler: vLLM's; what it tells of a step's tokens is `taken` already.
        known: what is known of it, kept from one time to the next.
        taken: gets the tokens that vLLM's scheduler does not tell of.
    """
    if known.differs or not _is_plain(scheduler):
        yield
        return
    steps = _Steps(scheduler, known, taken)
    ours = {"schedule": steps.schedule, "update_from_output": steps.update}
    for name in dir(type(scheduler)):
        if not name.startswith("_") and name not in ours and callable(function := getattr(scheduler, name)):
            ours[name] = steps.undisturbed(function) if name in _HARMLESS else steps.settled_before(function)
    own = {name: vars(scheduler)[name] for name in ours if name in vars(scheduler)}
    vars(scheduler).update(ours)
    try:
        yield
    finally:
        steps.settle()
        for name in ours:
            del vars(scheduler)[name]
        vars(scheduler).update(own)


def _is_plain(scheduler: Any) -> bool:
    spec, *others = (group.kv_cache_spec for group in scheduler.kv_cache_config.kv_cache_groups)
    return (
        not others
        and type(spec).__name__ == "FullAttentionSpec"
        and type(scheduler).__name__ in ("Scheduler", "AsyncScheduler")
        and not any(getattr(scheduler, name, None) for name in _UNKNOWN)
    )


class _Steps:
    """A scheduler's two functions of a step, vLLM's own or in its place."""

    def __init__(self, scheduler: Any, known: Known, taken: Taker) -> None:
        self._scheduler, self._known, self._taken = scheduler, known, taken
        self._schedule, self._update = scheduler.schedule, scheduler.update_from_output
        self._block_size = scheduler.kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        self._window: SteadyWindow | None = None
        self._template: Any = None
        self._under_way: deque[Any] = deque()
        """What has been scheduled and has no tokens yet."""
        self._goes_on = False
        """Whether a run of steady steps goes on although vLLM's code is at work, as that sees what it is to see."""

    def settled_before(self, function: Any) -> Any:
        """The function, before which the scheduler's state is brought to what vLLM would have."""

        def call(*arguments: Any, **named: Any) -> Any:
            if not self._goes_on:
                self.settle()
            return function(*arguments, **named)

        return call

    def undisturbed(self, function: Any) -> Any:
        """The function, whatever else of the scheduler's it calls, with the state as it is kept here."""

        def call(*arguments: Any, **named: Any) -> Any:
            before, self._goes_on = self._goes_on, True
            try:
                return function(*arguments, **named)
            finally:
                self._goes_on = before

        return call

    def settle(self) -> None:
        """End a run of steady steps."""
        window, self._window = self._window, None
        if window:
            window.settle()

    def schedule(self, *arguments: Any, **named: Any) -> Any:
        """What the next step is to do, as `Scheduler.schedule` says it."""
        step = None if any(arguments) or any(named.values()) else self._next_step()
        if step and {"update", "schedule", *step.kinds} <= self._known.kinds:
            assert self._window is not None
            made = self._window.schedule(step)
        else:
            made = self._schedule_by_vllm(step, *arguments, **named)
            if is_steady(made):
                self._template = made
        self._under_way.append(made)
        return made

    def _next_step(self) -> SteadyStep | None:
        """The next step, if it is a steady one."""
        if self._window is None and self._template is not None and not self._known.differs:
            try:
                self._window = self._open()
            except AttributeError as error:
                self._known.refuse(str(error))
        return self._window.next_step() if self._window else None

    def _open(self) -> SteadyWindow | None:
        scheduler, pending = self._scheduler, len(self._under_way)
        running = len(scheduler.running)
        # Others wait, or did in vLLM's last step, or nothing is to go on.
        if not running or not running == len(scheduler.requests) == scheduler.get_num_unfinished_requests():
            return None
        if pending > 1 or getattr(scheduler, "prefill_capacity_bound", False):
            return None
        members = []
        for member in members_of(scheduler, self._under_way):
            if member is None:
                return None
            members.append(member)
        # vLLM has had as many at once, within its limits.
        if sum(member.last > 0 for member in members) > len(self._template.num_scheduled_tokens):
            return None
        known, taken = self._known, self._taken
        return SteadyWindow(scheduler, self._template, members, known, taken, self._block_size, pending)

    def _schedule_by_vllm(self, step: SteadyStep | None, *arguments: Any, **named: Any) -> Any:
        self.settle()
        # Worked out anew, from what vLLM sees.
        step = self._next_step() if step else None
        window, self._window = self._window, None
        if not step or not window:
            return self._schedule(*arguments, **named)
        scheduler = self._scheduler
        running = list(scheduler.running)
        seen, blocks = Seen(scheduler, running), self._blocks() if step.needy else None
        made = self._schedule(*arguments, **named)
        self._known.compare_schedule(step.kinds, window.expected(step), made, seen, Seen(scheduler, running))
        if blocks and (now := self._blocks()) and not self._known.differs:
            self._known.compare_blocks([member.number for member in step.needy], made, blocks, now)
        return made

    def _blocks(self) -> SeenBlocks | None:
        """None where they are kept in another way than is known."""
        try:
            return SeenBlocks(self._scheduler.kv_cache_manager)
        except AttributeError:
            return None

    def update(self, scheduled: Any, output: Any) -> Any:
        """Take a step's tokens, as `Scheduler.update_from_output` does."""
        is_next = bool(self._under_way) and self._under_way[0] is scheduled
        if is_next:
            self._under_way.popleft()
        tokens = _one_each(output) if is_next else None
        if tokens is None:
            self.settle()
        elif self._window is None:
            if is_steady(scheduled):
                return self._compared_update(scheduled, output, tokens)
        else:
            ending = self._window.ending(tokens, output.req_id_to_index)
            if not ending or "end" in self._known.kinds:
                return self._update_in(self._window, ending, tokens, scheduled, output)
            self.settle()
            return self._compared_update(scheduled, output, tokens)
        return self._update(scheduled, output)

    def _update_in(self, window: SteadyWindow, ending: set[str], tokens: list[int], scheduled: Any, output: Any) -> Any:
        log_probs, rows = output.logprobs, output.req_id_to_index
        values = None if log_probs is None else log_probs.logprobs[:, 0].tolist()
        told: Any = {}
        if ending:
            window.settle_some(ending)
            told = self.undisturbed(self._update)(_part(scheduled, ending), output)
        if not window.update(tokens, values, rows, ending):
            self.settle()
        return told

    def _compared_update(self, scheduled: Any, output: Any, tokens: list[int]) -> Any:
        scheduler, known = self._scheduler, self._known
        running = list(scheduler.running)
        counts = scheduled.num_scheduled_tokens
        are_plain = all(request.request_id in counts and request.num_output_tokens > 0 for request in running)
        # One that waits may end, too, with a token from before it did.
        are_all = len(running) == len(scheduler.requests)
        if known.differs or not (are_plain and are_all) or {"update", "end"} <= known.kinds:
            return self._update(scheduled, output)
        rows = output.req_id_to_index
        came = {request.request_id: tokens[rows[request.request_id]] for request in running}
        seen = Seen(scheduler, running)
        told = self._update(scheduled, output)
        over = came.keys() - scheduler.requests.keys()
        caches = scheduler.kv_cache_manager.enable_caching
        known.compare_update(came, over, seen, Seen(scheduler, running), caches=caches)
        return told


def _one_each(output: Any) -> list[int] | None:
    """The token of each row of a model's output; None where there is anything else."""
    if any(getattr(output, field.name) for field in fields(output) if field.name not in _OUTPUT):
        return None
    try:
        return [token for (token,) in output.sampled_token_ids]
    except ValueError:
        return None


def _part(scheduled: Any, numbers: set[str]) -> Any:
    """A scheduler's output for some of its requests, in the same order."""
    counts = {number: 1 for number in scheduled.num_scheduled_tokens if number in numbers}
    return replace(scheduled, num_scheduled_tokens=counts, total_num_scheduled_tokens=len(counts))
