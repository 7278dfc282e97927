"""What requests have generated is taken from an engine's scheduler, here one that plays steps written down before."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placebench.ppo.rollout.base import Generated
from placebench.ppo.rollout.vllm_driving import run_requests


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


class Engine:
    """An `LLM` with vLLM's names."""

    def __init__(self, steps: list[Step]) -> None:
        self._steps = steps
        self._open: set[str] = set()
        self.seen: list[tuple[str, list[int]]] = []
        self.cut_up: list[Any] = []
        self.scheduler = SimpleNamespace(update_from_output=self._update)
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
    return run_requests(engine, names, [None] * len(names), before_step)


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
