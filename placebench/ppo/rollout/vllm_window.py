"""Steady token steps of a vLLM scheduler, worked out from the last one.

In generation nearly every step is for the requests of the step before, one token each. What the scheduler says of it
then follows from what it said last, and of a request only counts move on. A `SteadyWindow` is a run of such steps: it
keeps how many there were and which tokens came, and brings a request's own attributes to what vLLM would have made of
them (`SteadyWindow.settle`) when vLLM's code is to see them next.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields, replace
from math import ceil
from typing import Any, Protocol

import numpy as np

from placebench.ppo.rollout.vllm_known import Known

# Of a scheduler's output, what a step makes anew; all else is empty in a steady one.
_MADE_ANEW = {
    "scheduled_cached_reqs",
    "num_scheduled_tokens",
    "total_num_scheduled_tokens",
    "finished_req_ids",
    "num_common_prefix_blocks",
}


class Taker(Protocol):
    """Gets what requests generate."""

    def add(self, number: str, tokens: list[int], log_probs: list[float] | None) -> None:
        """Further tokens of a request, and their log-probabilities where they were asked for."""


class Member:
    """A request in a window, and of how many of its steps the request's attributes tell already."""

    __slots__ = ("last", "number", "request", "scheduled", "updated")

    def __init__(self, request: Any, last: int) -> None:
        self.request, self.number = request, request.request_id
        self.scheduled = self.updated = 0
        self.last = last
        """How many of the window's steps it can have: the tokens that it lacks."""


class Frame:
    """The requests of a step, in vLLM's order, and their counts as of the window's first."""

    def __init__(self, members: Sequence[Member], computed: Any, outputs: Any) -> None:
        self.members, self.computed, self.outputs = members, computed, outputs
        self.numbers = [member.number for member in members]
        self.places = {number: place for place, number in enumerate(self.numbers)}
        self.counts = dict.fromkeys(self.numbers, 1)
        self.no_blocks = [None] * len(self.numbers)

    def without(self, gone: Collection[str]) -> "Frame":
        """The requests that go on."""
        kept = [place for place, number in enumerate(self.numbers) if number not in gone]
        return Frame([self.members[place] for place in kept], self.computed[kept], self.outputs[kept])


class SteadyStep:
    """What the next step of a window is to be."""

    def __init__(self, frame: Frame, needy: list[Member], finished: set[str], is_part: bool) -> None:
        self.frame, self.needy, self.finished = frame, needy, finished
        kinds = {"blocks": needy, "finished": finished, "part": is_part}
        self.kinds = {kind for kind, there in kinds.items() if there}


class SteadyWindow:
    """A run of steady steps, which begins with the scheduler's state as vLLM has left it.

    Args:
        scheduler: vLLM's.
        template: a steady step's `SchedulerOutput` of its own.
        members: its running requests.
        known: how their counts move.
        taken: gets their tokens.
        block_size: of the key-value cache, in tokens.
        under_way: steps whose tokens are not there yet.
    """

    def __init__(
        self,
        scheduler: Any,
        template: Any,
        members: Sequence[Member],
        known: Known,
        taken: Taker,
        block_size: int,
        under_way: int,
    ) -> None:
        self._scheduler, self._template, self._known, self._taken = scheduler, template, known, taken
        self._manager = scheduler.kv_cache_manager
        self._block_size = block_size
        self._scheduled = 0
        self._history: list[tuple[list[int], list[float] | None, dict[str, int]]] = []
        self.live = {member.number: member for member in members}
        self._needy: defaultdict[int, list[Member]] = defaultdict(list)
        self._full: defaultdict[int, list[Member]] = defaultdict(list)
        self._due: defaultdict[int, list[Member]] = defaultdict(list)
        self._stops: set[int] = set()
        for member in members:
            request, sampling = member.request, member.request.sampling_params
            self._needy[-request.num_computed_tokens % block_size].append(member)
            self._full[member.last].append(member)
            self._due[member.last + under_way].append(member)
            self._stops.update(sampling.stop_token_ids or ())
            if sampling.eos_token_id is not None:
                self._stops.add(sampling.eos_token_id)
        going = [member for member in members if member.last > 0]
        computed = np.array([member.request.num_computed_tokens for member in going], dtype=np.int64)
        outputs = np.array([member.request.num_output_tokens + under_way for member in going], dtype=np.int64)
        self._frame = Frame(going, computed, outputs)
        # By now every request has as many blocks as its tokens fill.
        self._at_once = "blocks at once" in known.kinds and all(
            len(blocks_of(self._manager)[member.number]) == ceil(member.request.num_computed_tokens / block_size)
            for member in going
        )

    def next_step(self) -> SteadyStep | None:
        """What comes next; None where vLLM has to see to it, as no request goes on or blocks are short."""
        frame, scheduler = self._frame, self._scheduler
        full = {member.number for member in self._full.get(self._scheduled, ())} & frame.places.keys()
        if full:
            frame = frame.without(full)
        needy = self._needy.get(self._scheduled % self._block_size, [])
        if needy:
            needy = [member for member in needy if member.number in frame.places]
        if not frame.numbers or (needy and self._manager.block_pool.get_num_free_blocks() < len(needy)):
            return None
        return SteadyStep(frame, needy, scheduler.finished_req_ids, len(frame.numbers) < len(scheduler.running))

    def expected(self, step: SteadyStep) -> Any:
        """The scheduler's output for a step that vLLM has done, with `()` for the blocks that requests have got."""
        return self._output(step, {member.number: () for member in step.needy})

    def schedule(self, step: SteadyStep) -> Any:
        """Do a step: what the scheduler says of it, and its own attributes."""
        scheduler = self._scheduler
        output = self._output(step, self._give_blocks(step.needy) if step.needy else {})
        if hasattr(scheduler, "current_step"):
            scheduler.current_step += 1
        if step.finished:
            scheduler.finished_req_ids = set()
        if step.frame is not self._frame:
            self._frame = step.frame
        previous = getattr(scheduler, "prev_step_scheduled_req_ids", None)
        if previous and len(previous) != len(step.frame.numbers):
            previous.clear()
            previous.update(step.frame.numbers)
        self._scheduled += 1
        return output

    def _give_blocks(self, needy: Sequence[Member]) -> dict[str, Any]:
        if self._at_once:
            if self._manager.enable_caching:
                # They have filled one, which prefixes may share from now on.
                for member in needy:
                    self._settle(member)
            return give_blocks(self._manager, [member.number for member in needy])
        blocks = {}
        for member in needy:
            self._settle(member)
            room = self._manager.allocate_slots(member.request, 1, num_lookahead_tokens=0)
            blocks[member.number] = room.get_block_ids(allow_none=True)
        return blocks

    def _output(self, step: SteadyStep, blocks: dict[str, Any]) -> Any:
        frame, template = step.frame, self._template
        new_blocks = frame.no_blocks
        if blocks:
            new_blocks = frame.no_blocks.copy()
            for number, ids in blocks.items():
                new_blocks[frame.places[number]] = ids
        more: dict[str, Any] = {}
        if getattr(template, "num_common_prefix_blocks", None):
            first = self._scheduler.running[0].request_id
            more["num_common_prefix_blocks"] = self._manager.get_num_common_prefix_blocks(first)
        return replace(
            template,
            scheduled_cached_reqs=replace(
                template.scheduled_cached_reqs,
                req_ids=frame.numbers,
                new_block_ids=new_blocks,
                num_computed_tokens=(frame.computed + self._scheduled).tolist(),
                num_output_tokens=(frame.outputs + self._scheduled).tolist(),
            ),
            num_scheduled_tokens=frame.counts,
            total_num_scheduled_tokens=len(frame.numbers),
            # Not the scheduler's own where it is empty: it goes on to fill that.
            finished_req_ids=step.finished or set(),
            **more,
        )

    def ending(self, tokens: list[int], rows: dict[str, int]) -> set[str]:
        """The requests that may be over with a step: at their length, or by a token that is one to stop at."""
        due = {member.number for member in self._due.get(len(self._history) + 1, ())} & self.live.keys()
        if not self._stops.isdisjoint(tokens):
            due |= {number for number, row in rows.items() if tokens[row] in self._stops and number in self.live}
        return due

    def settle_some(self, numbers: Collection[str]) -> None:
        """Have vLLM's code see these requests as they are before a step's tokens."""
        for number in numbers:
            self._settle(self.live[number])

    def update(self, tokens: list[int], log_probs: list[float] | None, rows: dict[str, int], seen: set[str]) -> bool:
        """Take a step's tokens.

        Args:
            tokens: of each row.
            log_probs: of each row's token; None where none were asked for.
            rows: of each request.
            seen: requests that vLLM has seen to.

        Returns:
            Whether what is over is as expected.
        """
        history = self._history
        # Kept while the window lasts, and the same for most of it.
        history.append((tokens, log_probs, history[-1][2] if history and history[-1][2] == rows else rows.copy()))
        over = set()
        for number in seen:
            if number in self._scheduler.requests:
                self.live[number].updated = len(history)
            else:
                over.add(number)
                del self.live[number]
        if over:
            self._frame = self._frame.without(over)
        return not any(member.number in self.live for member in self._due.get(len(history), ()))

    def settle(self) -> None:
        """Have vLLM's code see everything."""
        for member in self.live.values():
            self._settle(member)

    def _settle(self, member: Member) -> None:
        request, number = member.request, member.number
        scheduled, came = min(self._scheduled, member.last), self._history[member.updated :]
        if scheduled > member.scheduled:
            for name in self._known.counts_up:
                setattr(request, name, getattr(request, name) + scheduled - member.scheduled)
            member.scheduled = scheduled
        if came:
            for name in self._known.counts_down:
                setattr(request, name, getattr(request, name) - len(came))
            member.updated = len(self._history)
            new = [tokens[rows[number]] for tokens, _, rows in came]
            log_probs = [values[rows[number]] for _, values, rows in came if values is not None]
            request.append_output_token_ids(new)
            self._taken.add(number, new, log_probs if log_probs else None)
        if self._manager.enable_caching:
            self._manager.cache_blocks(request, request.num_computed_tokens - request.num_output_placeholders)


def blocks_of(manager: Any) -> Any:
    """The blocks of each request, where all layers are of one kind."""
    return manager.coordinator.single_type_managers[0].req_to_blocks


def give_blocks(manager: Any, numbers: Sequence[str]) -> dict[str, Any]:
    """Give each of these requests one block; their new blocks, as vLLM says them.

    As its `allocate_slots` does it one by one, with much that does not concern requests that only go on.
    """
    held = blocks_of(manager)
    new = manager.block_pool.get_new_blocks(len(numbers))
    for number, block in zip(numbers, new, strict=True):
        held[number].append(block)
    return {number: ([block.block_id],) for number, block in zip(numbers, new, strict=True)}


def is_steady(scheduled: Any) -> bool:
    """Whether a scheduler's output is for requests alone that are known already, one token each."""
    cached = scheduled.scheduled_cached_reqs
    return (
        bool(cached.req_ids)
        and not (cached.resumed_req_ids or cached.new_token_ids or cached.all_token_ids)
        and len(scheduled.num_scheduled_tokens) == scheduled.total_num_scheduled_tokens == len(cached.req_ids)
        and not any(getattr(scheduled, field.name) for field in fields(scheduled) if field.name not in _MADE_ANEW)
    )


def members_of(scheduler: Any, under_way: Sequence[Any]) -> Iterator[Member | None]:
    """The running requests of a scheduler; None for one that is not simply to have its next token.

    Args:
        scheduler: vLLM's.
        under_way: the outputs of its steps whose tokens are not there yet.
    """
    pending = len(under_way)
    step = getattr(scheduler, "current_step", 0)
    for request in scheduler.running:
        number, sampling = request.request_id, request.sampling_params
        last = request.max_tokens - request.num_output_tokens - pending
        is_plain = (
            sampling is not None
            and not (request.lora_request or request.structured_output_request or request.mm_features)
            and not (request.resumable or request.spec_token_ids or request.is_prefill_chunk or request.events)
            # Its first token tells of its prompt, too.
            and request.num_output_tokens > 0
            and sampling.prompt_logprobs is None
            and getattr(sampling, "repetition_detection", None) is None
            and not (getattr(request, "num_stale_output_tokens", 0) or getattr(request, "async_tokens_to_discard", 0))
            and request.num_output_placeholders == pending
            and request.num_computed_tokens == request.num_tokens + pending - 1
            and (getattr(request, "next_decode_eligible_step", 0) in (0, step + 1) or last <= 0)
            and request.num_prompt_tokens + request.max_tokens <= scheduler.max_model_len
            and all(output.num_scheduled_tokens.get(number) == 1 for output in under_way)
        )
        yield Member(request, last) if is_plain else None
