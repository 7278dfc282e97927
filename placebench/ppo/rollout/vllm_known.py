"""What a vLLM scheduler has been seen to do in steady token steps, beside what `vllm_window` says that it does.

vLLM's inner workings differ by version. So each kind of steady step is first done by vLLM itself, while everything that
it changes is compared, attribute by attribute, with the rule. Only what agreed is ever done in its place.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any

# Of a request: may grow by one when a token is scheduled, and fall by one when it is there. Which do depends on vLLM's
# version and on how it schedules.
_COUNTS_UP = {"num_computed_tokens", "num_in_flight_tokens", "num_output_placeholders", "next_decode_eligible_step"}
_COUNTS_DOWN = {"num_in_flight_tokens", "num_output_placeholders"}
_TOKENS = ("_output_token_ids", "_all_token_ids")

State = dict[str, Any]
"""The attributes of something, of its lists, sets and dicts a copy."""


class Known:
    """What is known of one engine's scheduler, for as long as it lives."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        """Kinds of steps that vLLM did as the rule says."""
        self.differs: str | None = None
        """How vLLM did something else, after which it is left to do all."""
        self.counts_up: frozenset[str] = frozenset()
        self.counts_down: frozenset[str] = frozenset()

    def refuse(self, differs: str) -> None:
        """Leave everything to vLLM from now on, and say so where the launch's log goes."""
        self.differs = differs
        print(
            f"vLLM's scheduler does not treat token steps as placebench expects ({differs}): it therefore does all of"
            " each itself, and generation may wait longer for the host",
            flush=True,
        )

    def compare_schedule(self, kinds: Collection[str], expected: Any, made: Any, seen: "Seen", now: "Seen") -> None:
        """Compare a step that vLLM has scheduled with the rule's.

        Args:
            kinds: what is in the step.
            expected: the `SchedulerOutput` by the rule, in which `()` stands for blocks that only vLLM can give.
            made: vLLM's.
            seen: the scheduler and its running requests before.
            now: the same after.
        """
        counts_up = set()
        differs = _difference(expected, made)
        scheduler = dict(seen.scheduler, finished_req_ids=set())
        if "current_step" in scheduler:
            scheduler["current_step"] += 1
        if scheduler.get("prev_step_scheduled_req_ids"):
            scheduler["prev_step_scheduled_req_ids"] = set(expected.num_scheduled_tokens)
        differs = differs or _named("Scheduler", _changed(scheduler, now.scheduler))
        for number, before in seen.requests.items():
            after = now.requests[number]
            changed = _changed(before, after)
            is_scheduled = number in expected.num_scheduled_tokens
            moved = (
                {name for name in changed & _COUNTS_UP if after[name] == before[name] + 1} if is_scheduled else set()
            )
            differs = differs or _named("Request", changed - moved)
            counts_up.add(frozenset(moved) if is_scheduled else None)
        self._conclude({"schedule", *kinds}, differs, "counts_up", counts_up - {None})

    def compare_blocks(self, numbers: Sequence[str], made: Any, seen: "SeenBlocks", now: "SeenBlocks") -> None:
        """Compare the blocks that requests got in a step with those that they get at once, see `give_blocks`.

        Args:
            numbers: the requests.
            made: what vLLM has scheduled.
            seen: the cache before.
            now: the same after.
        """
        new = seen.free[: len(numbers)]
        expected = seen.held | {number: [*seen.held[number], block] for number, block in zip(numbers, new, strict=True)}
        cached = made.scheduled_cached_reqs
        told = dict(zip(cached.req_ids, cached.new_block_ids, strict=True))
        if (
            [told[number] for number in numbers] == [([block],) for block in new]
            and (now.held, now.free) == (expected, seen.free[len(numbers) :])
            and not _changed(seen.manager, now.manager)
        ):
            self.kinds.add("blocks at once")

    def compare_update(
        self, tokens: Mapping[str, int], over: Collection[str], seen: "Seen", now: "Seen", *, caches: bool
    ) -> None:
        """Compare what vLLM has made of a step's tokens with the rule.

        Args:
            tokens: of each request.
            over: the requests that are over with it.
            seen: the scheduler and its running requests before.
            now: the same after.
            caches: whether prefixes are kept, and so hashes of blocks.
        """
        counts_down = set()
        was = seen.scheduler
        scheduler = dict(
            was,
            running=[request for request in was["running"] if request.request_id not in over],
            requests={number: request for number, request in was["requests"].items() if number not in over},
            finished_req_ids=was["finished_req_ids"] | set(over),
        )
        differs = _named("Scheduler", _changed(scheduler, now.scheduler))
        for number, before in seen.requests.items():
            if number in over:
                continue
            after = now.requests[number]
            expected = dict(before) | {name: [*before[name], tokens[number]] for name in _TOKENS}
            if caches:
                expected["block_hashes"] = after["block_hashes"]
            changed = _changed(expected, after)
            moved = {name for name in changed & _COUNTS_DOWN if after[name] == before[name] - 1}
            differs = differs or _named("Request", changed - moved)
            if any(type(after[name][-1]) is not int for name in _TOKENS):
                differs = differs or "Request._output_token_ids"
            counts_down.add(frozenset(moved))
        self._conclude({"update", "end"} if over else {"update"}, differs, "counts_down", counts_down)

    def _conclude(self, kinds: set[str], differs: str | None, name: str, moved: set[Any]) -> None:
        if not differs and len(moved) > 1:
            differs = f"counts of requests differ: {sorted(set().union(*moved) - set.intersection(*map(set, moved)))}"
        if differs:
            self.refuse(differs)
            return
        for counts in moved:
            if {"schedule", "update"} & kinds <= self.kinds and counts != getattr(self, name):
                self.refuse(f"counts of requests are not always {sorted(counts)}")
                return
            setattr(self, name, counts)
            self.kinds |= kinds
        both = {"schedule", "update"} <= self.kinds
        if both and ("num_computed_tokens" not in self.counts_up or self.counts_up & _COUNTS_DOWN != self.counts_down):
            self.refuse(f"{sorted(self.counts_up)} go up and {sorted(self.counts_down)} down")


class Seen:
    """The attributes of a scheduler and of its running requests, as they are now."""

    def __init__(self, scheduler: Any, requests: Sequence[Any]) -> None:
        self.scheduler = _state(scheduler)
        self.requests = {request.request_id: _state(request) for request in requests}


class SeenBlocks:
    """The blocks of a cache with one kind of layers, as they are now, by their numbers."""

    def __init__(self, manager: Any) -> None:
        (single,) = manager.coordinator.single_type_managers
        self.held = {number: [block.block_id for block in blocks] for number, blocks in single.req_to_blocks.items()}
        self.free = [block.block_id for block in manager.block_pool.free_block_queue.get_all_free_blocks()]
        # How many of a request's blocks prefixes may share is known apart from who has which.
        apart = ("num_cached_block", "req_to_blocks")
        self.manager = {name: value for name, value in _state(single).items() if name not in apart}


def _state(thing: Any) -> State:
    slots = (name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ()) if hasattr(thing, name))
    values = {name: getattr(thing, name) for name in slots} | getattr(thing, "__dict__", {})
    return {name: value.copy() if type(value) in (list, set, dict) else value for name, value in values.items()}


def _changed(before: State, after: State) -> set[str]:
    missing = object()
    return {
        name
        for name in before.keys() | after.keys()
        if not _is_same(before.get(name, missing), after.get(name, missing))
    }


def _is_same(one: Any, other: Any) -> bool:
    plain = (bool, int, float, str, bytes, list, set, dict, tuple)
    return one is other or (type(one) is type(other) and isinstance(one, plain) and one == other)


def _named(kind: str, names: Collection[str]) -> str | None:
    return f"{kind}.{min(names)}" if names else None


def _difference(expected: Any, made: Any) -> str | None:
    """The first field in which two of vLLM's data classes differ."""
    for field in fields(made):
        ours, theirs = getattr(expected, field.name), getattr(made, field.name)
        if field.name == "scheduled_cached_reqs":
            inner = _difference(ours, theirs)
            if inner:
                return inner
        elif field.name == "new_block_ids":
            if [blocks is None for blocks in ours] != [blocks is None for blocks in theirs]:
                return f"{type(made).__name__}.{field.name}"
        elif not _is_same(ours, theirs) and ours != theirs:
            return f"{type(made).__name__}.{field.name}"
    return None
