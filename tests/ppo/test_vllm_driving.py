"""What requests have generated is taken from an engine's scheduler, here one that plays steps written down before."""

from dataclasses import dataclass
from math import ceil
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placebench.ppo.rollout.base import Generated
from placebench.ppo.rollout.vllm_driving import asked_once_a_block, run_requests
from placebench.ppo.rollout.vllm_known import Known


@dataclass
class Step:
    """One step of an engine, as vLLM's model runner and scheduler tell it."""

    rows: list[str]
    """The request of each row of the step's arrays."""
    log_probs: list[float] | None
    """Of each row."""
    tokens: dict[str, list[int]]
    """Those that the scheduler accepts."""
    over: set[str]
    """Requests that end."""


class FullAttentionSpec:
    """vLLM's name for the cache of layers that see all tokens before them."""

    block_size = 4


class Manager:
    """vLLM's manager of the cache: gives requests blocks, of which it has so many."""

    enable_caching = False

    def __init__(self, blocks: int = 1 << 20) -> None:
        self.empty_kv_cache_blocks: tuple[int, ...] = ()
        self.blocks: dict[str, int] = {}
        self.calls = 0
        self._all = blocks

    def allocate_slots(self, request: Any, num_new_tokens: int, **more: Any) -> tuple[int, ...] | None:
        self.calls += 1
        found = more.get("num_new_computed_tokens", 0)
        end = request.num_computed_tokens + found + num_new_tokens
        new = ceil(end / FullAttentionSpec.block_size) - self.blocks.get(request.request_id, 0)
        if new > self._all - sum(self.blocks.values()):
            return None
        self.blocks[request.request_id] = self.blocks.get(request.request_id, 0) + max(new, 0)
        return (new,) if new > 0 else self.empty_kv_cache_blocks


class Engine:
    """An `LLM` with vLLM's names."""

    def __init__(self, steps: list[Step]) -> None:
        self._steps = steps
        self._open: set[str] = set()
        self.seen: list[tuple[str, list[int]]] = []
        self.cut_up: list[Any] = []
        self.manager = Manager()
        group = SimpleNamespace(kv_cache_spec=FullAttentionSpec())
        config = SimpleNamespace(kv_cache_groups=[group])
        self.scheduler = SimpleNamespace(
            update_from_output=self._update, kv_cache_manager=self.manager, kv_cache_config=config
        )
        self.engine_core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=self.scheduler))
        self.llm_engine = self

    def enqueue(self, prompts: list[str], parameters: list[None], use_tqdm: bool) -> list[str]:
        assert len(prompts) == len(parameters)
        self._open |= set(prompts)
        return list(prompts)

    def has_unfinished_requests(self) -> bool:
        return bool(self._open)

    def step(self) -> None:
        """vLLM's core gets a step's output and hands the front end what its scheduler makes of it."""
        one = self._steps.pop(0)
        table = None
        if one.log_probs is not None:
            table = SimpleNamespace(logprobs=np.array([[value, -1.0] for value in one.log_probs]).reshape(-1, 2))
        output = SimpleNamespace(logprobs=table, req_id_to_index={name: row for row, name in enumerate(one.rows)})
        for outputs in self.scheduler.update_from_output(one, output).values():
            for request in outputs.outputs:
                self.seen.append((request.request_id, request.new_token_ids))
                if request.finish_reason:
                    self._open.remove(request.request_id)

    def _update(self, scheduled: Step, output: Any) -> dict[int, Any]:
        self.cut_up.append(output.logprobs)
        outputs = [
            SimpleNamespace(
                request_id=name, new_token_ids=tokens, finish_reason="stop" if name in scheduled.over else None
            )
            for name, tokens in scheduled.tokens.items()
        ]
        return {0: SimpleNamespace(outputs=outputs)} if outputs else {}


def run(engine: Engine, names: list[str], before_step: Any = lambda: None) -> list[Generated]:
    return run_requests(engine, names, [None] * len(names), before_step, Known())


def test_log_probs_are_those_of_the_tokens_that_the_scheduler_accepts() -> None:
    engine = Engine(
        [
            # b's prompt is worked through in two parts, after the first of which it has no token.
            Step(["a", "b"], [-1.0, -9.0], {"a": [1]}, set()),
            Step(["b", "a"], [-2.0, -3.0], {"a": [2], "b": [5]}, {"a"}),
            # The step was under way when a ended.
            Step(["a", "b"], [-9.0, -4.0], {"b": [6]}, {"b"}),
        ]
    )
    assert run(engine, ["b", "a"]) == [Generated([5, 6], [-2.0, -4.0]), Generated([1, 2], [-1.0, -3.0])]


def test_the_front_end_sees_a_request_once_and_no_log_probs() -> None:
    engine = Engine([Step(["a"], [-1.0], {"a": [token]}, {"a"} if token == 3 else set()) for token in range(4)])
    run(engine, ["a"])
    assert engine.seen == [("a", [3])]
    assert engine.cut_up == [None] * 4


def test_without_log_probs_there_are_none() -> None:
    engine = Engine(
        [Step(["a"], None, {"a": [7]}, set()), Step([], None, {}, set()), Step(["a"], None, {"a": [8]}, {"a"})]
    )
    assert run(engine, ["a"]) == [Generated([7, 8], None)]


def test_a_request_that_an_error_ends_has_what_it_had() -> None:
    engine = Engine([Step(["a"], [-1.0], {"a": [7]}, set()), Step(["a"], [-2.0], {"a": []}, {"a"})])
    assert run(engine, ["a"]) == [Generated([7], [-1.0])]


@pytest.mark.parametrize(
    ("queue", "count", "tokens", "parts"),
    [([], 16, 1024, [2, 14]), ([], 16, 1023, [16]), ([], 1, 4096, [1]), (None, 16, 1024, [16])],
)
def test_while_the_device_works_on_the_first_prompts_the_others_are_put_in(
    queue: list[Any] | None, count: int, tokens: int, parts: list[int]
) -> None:
    names = [str(number) for number in range(count)]
    before = parts[0]
    steps = [Step(names[:before], None, {name: [1] for name in names[:before]}, set())] if len(parts) > 1 else []
    steps.append(Step(names, None, {name: [2] for name in names}, set(names)))
    put_in: list[int] = []

    class Named(Engine):
        """Requests have numbers in the order in which they are put in."""

        def enqueue(self, prompts: list[Any], parameters: list[None], use_tqdm: bool) -> list[str]:
            first = sum(put_in)
            put_in.append(len(prompts))
            return super().enqueue(names[first : first + len(prompts)], parameters, use_tqdm)

    engine = Named(steps)
    engine.engine_core.engine_core.batch_queue = queue
    calls: list[None] = []
    prompts = [{"prompt_token_ids": [7] * tokens}] * count
    found = run_requests(engine, prompts, [None] * count, lambda: calls.append(None), Known())
    assert put_in == parts
    assert len(calls) == len(parts)
    assert found == [Generated([1, 2] if len(parts) > 1 and at < before else [2], None) for at in range(count)]


def test_something_is_called_before_every_step_and_the_scheduler_is_left_as_it_was() -> None:
    engine = Engine([Step(["a"], None, {"a": [1]}, set()), Step(["a"], None, {"a": [2]}, {"a"})])
    update, calls = engine.scheduler.update_from_output, []
    run(engine, ["a"], lambda: calls.append(len(engine._steps)))
    assert calls == [2, 1]
    assert engine.scheduler.update_from_output == update

    def fail() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        run(engine, ["b"], fail)
    assert engine.scheduler.update_from_output == update


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.randoms(use_true_random=False), st.booleans())
def test_every_request_gets_its_own_in_whatever_order_rows_are(
    lengths: list[int], draw: Any, with_log_probs: bool
) -> None:
    names = [str(number) for number in range(len(lengths))]
    expected = {
        name: [(draw.randrange(100), -draw.random()) for _ in range(length)]
        for name, length in zip(names, lengths, strict=True)
    }
    steps = []
    for place in range(max(lengths)):
        rows = [name for name in names if len(expected[name]) > place]
        draw.shuffle(rows)
        log_probs = [expected[name][place][1] for name in rows] if with_log_probs else None
        tokens = {name: [expected[name][place][0]] for name in names if name in rows}
        steps.append(Step(rows, log_probs, tokens, {name for name in rows if len(expected[name]) == place + 1}))
    for name, response in zip(names, run(Engine(steps), names), strict=True):
        assert response.tokens == [token for token, _ in expected[name]]
        assert response.log_probs == ([value for _, value in expected[name]] if with_log_probs else None)


def scheduler_of(manager: Manager, *specs: Any) -> SimpleNamespace:
    groups = [SimpleNamespace(kv_cache_spec=spec) for spec in specs]
    return SimpleNamespace(kv_cache_manager=manager, kv_cache_config=SimpleNamespace(kv_cache_groups=groups))


def test_room_is_asked_for_once_a_block() -> None:
    manager = Manager()
    request = SimpleNamespace(request_id="a", num_computed_tokens=0)
    with asked_once_a_block(scheduler_of(manager, FullAttentionSpec())):
        manager.allocate_slots(request, 5, num_new_computed_tokens=0)
        for length in range(5, 21):
            request.num_computed_tokens = length
            assert manager.allocate_slots(request, 1, num_lookahead_tokens=0) is not None
    # At the beginning, and after the first token of a running one with each new block.
    assert manager.calls == 1 + 1 + 4
    assert manager.allocate_slots(request, 1) is not None
    assert manager.calls == 7, "it is left as it was"


def test_a_block_that_is_full_is_told_of_where_prefixes_may_share_it() -> None:
    manager = Manager()
    manager.enable_caching = True
    request = SimpleNamespace(request_id="a", num_computed_tokens=0)
    ends = []
    with asked_once_a_block(scheduler_of(manager, FullAttentionSpec())):
        for length in range(12):
            request.num_computed_tokens, before = length, manager.calls
            manager.allocate_slots(request, 1)
            if manager.calls > before:
                ends.append(length + 1)
    assert ends == [1, 4, 5, 8, 9, 12]


@pytest.mark.parametrize("specs", [(SimpleNamespace(block_size=4),), (FullAttentionSpec(), FullAttentionSpec())])
def test_other_layers_are_asked_for_every_token(specs: tuple[Any, ...]) -> None:
    manager = Manager()
    with asked_once_a_block(scheduler_of(manager, *specs)):
        for length in range(8):
            manager.allocate_slots(SimpleNamespace(request_id="a", num_computed_tokens=length), 1)
    assert manager.calls == 8


# What a request does next: run for so many tokens, or lose its blocks and begin anew with a part that is found.
EVENTS = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["run", "anew"]), st.integers(1, 9)), max_size=60)


@given(EVENTS, st.integers(3, 12))
def test_no_token_is_without_room(events: list[tuple[str, str, int]], blocks: int) -> None:
    manager = Manager(blocks)
    requests = {name: SimpleNamespace(request_id=name, num_computed_tokens=0) for name in "ab"}
    with asked_once_a_block(scheduler_of(manager, FullAttentionSpec())):
        for name, event, tokens in events:
            request = requests[name]
            if event == "anew":
                manager.blocks.pop(name, None)
                request.num_computed_tokens = 0
                found = manager.allocate_slots(request, tokens, num_new_computed_tokens=4, new_computed_blocks=())
                tokens += 4
            else:
                found = manager.allocate_slots(request, tokens, num_lookahead_tokens=0)
            if found is None:
                manager.blocks.pop(name, None)  # as the scheduler does with one for which there is no room
                request.num_computed_tokens = 0
                continue
            request.num_computed_tokens += tokens
            assert request.num_computed_tokens <= manager.blocks[name] * FullAttentionSpec.block_size
