"""Steady steps of a vLLM scheduler are worked out as it does them: its stand-in here, its own in the slow tests.

What the model is told in every step, what requests generate, and what the scheduler is left with are those of the
scheduler alone.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm_engines import Case, Engine, Setting, StandIns, Vllm, log_prob_of, token_of

from placebench.ppo.rollout import vllm_driving
from placebench.ppo.rollout.base import Generated
from placebench.ppo.rollout.vllm_driving import run_requests
from placebench.ppo.rollout.vllm_known import Known, Seen

KITS = [
    StandIns,
    pytest.param(
        Vllm,
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; `make test-slow` sets it up"),
        ],
    ),
]
both = pytest.mark.parametrize("kit", KITS)
ALL_KINDS = {"schedule", "update", "blocks", "blocks at once", "end", "finished"}

# What else happens before a step: a request comes, the first that is open is called off, generation breaks off.
EVENTS = st.dictionaries(st.integers(1, 40), st.sampled_from(["add", "abort", "break"]), max_size=3)
CASES = st.lists(
    st.builds(
        lambda length, longest, stops, least: Case([3] * length, longest, stops, min(least, longest)),
        st.integers(1, 40),
        st.integers(1, 40),
        st.lists(st.integers(0, 49), max_size=2),
        st.integers(0, 4),
    ),
    min_size=1,
    max_size=10,
)
SETTINGS = st.builds(
    Setting,
    is_async=st.booleans(),
    second_runner=st.booleans(),
    blocks=st.sampled_from([16, 40, 400]),
    block_size=st.sampled_from([4, 16]),
    keeps_prefixes=st.booleans(),
    most_requests=st.sampled_from([4, 16]),
    most_tokens=st.sampled_from([16, 400]),
    longest=st.just(100),
    log_probs=st.booleans(),
)


@contextmanager
def nothing(*arguments: Any) -> Iterator[None]:
    yield


def by_itself(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any]) -> Any:
    """What comes of it where vLLM does all."""
    with monkeypatch.context() as patch:
        patch.setattr(vllm_driving, "steady_steps", nothing)
        patch.setattr(vllm_driving, "asked_once_a_block", nothing)
        return run()


def generate(
    engine: Engine, parts: Sequence[Sequence[Case]], events: dict[int, str], known: Known
) -> list[list[Generated] | None]:
    """What requests generate, part by part; None for a part that breaks off."""
    responses: list[list[Generated] | None] = []
    done = 0

    def happen() -> None:
        nonlocal done
        done += 1
        event = events.get(done)
        if event == "add":
            engine.enqueue([Case([5] * 7, 9)], [None], use_tqdm=False)
        elif event == "abort":
            engine.abort(min(engine.scheduler.requests, default="none"))
        elif event == "break":
            raise InterruptedError

    for part in parts:
        try:
            responses.append(run_requests(engine, part, [None] * len(part), happen, known))
        except InterruptedError:
            responses.append(None)
    return responses


@both
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(setting=SETTINGS, cases=CASES, more=CASES, events=EVENTS)
def test_all_is_as_the_scheduler_would_have_done_it(
    kit: Any, setting: Setting, cases: list[Case], more: list[Case], events: dict[int, str], monkeypatch: Any
) -> None:
    # One request alone has room, or it would wait for ever.
    if (setting.blocks - 1) * setting.block_size < 90:
        setting.blocks = 90 // setting.block_size + 2
    known = Known()
    plain, shortened = Engine(setting, kit), Engine(setting, kit)
    expected = by_itself(monkeypatch, lambda: generate(plain, [cases, more], events, Known()))
    assert generate(shortened, [cases, more], events, known) == expected
    assert known.differs is None
    assert shortened.told == plain.told
    assert shortened.kit.state() == plain.kit.state()


@both
@pytest.mark.parametrize("log_probs", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_tokens_are_those_of_their_request(kit: Any, is_async: bool, log_probs: bool) -> None:
    engine, known = Engine(Setting(is_async=is_async, log_probs=log_probs), kit), Known()
    cases = [Case([1] * (3 + 5 * place), 30 + 7 * place) for place in range(8)]
    for place, (case, response) in enumerate(zip(cases, generate(engine, [cases], {}, known)[0] or [], strict=True)):
        ends = range(len(case.prompt), len(case.prompt) + case.longest)
        assert response.tokens == [token_of(str(place), end) for end in ends]
        assert response.log_probs == (
            pytest.approx([log_prob_of(str(place), end) for end in ends]) if log_probs else None
        )
    assert known.kinds == ALL_KINDS | ({"part"} if is_async else set())


@both
@pytest.mark.parametrize("is_async", [False, True])
def test_the_scheduler_does_little_itself_once_it_is_known(
    kit: Any, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, known = Engine(Setting(is_async=is_async), kit), Known()
    cases = [Case([1] * (1 + place), 50 + 3 * place, stops=[7]) for place in range(16)]
    generate(engine, [cases], {}, known)
    calls: list[str] = []
    for name in ("schedule", "update_from_output"):
        own = getattr(engine.scheduler, name)

        def counted(*arguments: Any, name: str = name, own: Any = own) -> Any:
            calls.append(name)
            return own(*arguments)

        monkeypatch.setattr(engine.scheduler, name, counted)
    before = len(engine.told)
    generate(engine, [[Case([1] * (1 + place), 200) for place in range(16)]], {}, known)
    assert len(engine.told) - before >= 200
    # Where prompts begin, and where all end.
    assert calls.count("schedule") <= 5
    assert calls.count("update_from_output") <= 4


@both
def test_a_scheduler_that_does_more_is_left_to_do_it(
    kit: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [Case([1] * (1 + place), 40) for place in range(4)]
    expected = generate(Engine(Setting(), kit), [cases], {}, Known())
    for name in ("schedule", "update_from_output"):
        engine, known = Engine(Setting(), kit), Known()
        own = getattr(engine.scheduler, name)

        def more(*arguments: Any, own: Any = own, engine: Engine = engine) -> Any:
            for request in engine.scheduler.running:
                request.new_in_this_version = getattr(request, "new_in_this_version", 0) + 1
            return own(*arguments)

        monkeypatch.setattr(engine.scheduler, name, more)
        assert generate(engine, [cases, cases], {}, known)[0] == expected[0]
        assert known.differs == "Request.new_in_this_version"
        assert engine.scheduler.schedule is more or engine.scheduler.update_from_output is more
        assert capsys.readouterr().out.count("(Request.new_in_this_version)") == 1


def test_a_scheduler_that_lacks_something_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine, known = Engine(Setting(), StandIns), Known()
    made = engine.kit.request

    def without(number: str, case: Case) -> Any:
        request = made(number, case)
        del request.resumable
        return request

    monkeypatch.setattr(engine.kit, "request", without)
    (response,) = generate(engine, [[Case([1] * 5, 20)]], {}, known)[0] or []
    assert response.tokens == [token_of("0", end) for end in range(5, 25)]
    assert "resumable" in str(known.differs)
    assert "resumable" in capsys.readouterr().out


def test_attributes_are_seen_where_a_class_names_them_beforehand() -> None:
    class Slotted:
        __slots__ = ("never", "request_id", "tokens")

    class Request(Slotted):
        pass

    request: Any = Request()
    request.request_id, request.tokens, request.more = "a", [1], 2
    seen = Seen(Request(), [request])
    request.tokens.append(2)
    assert seen.requests == {"a": {"request_id": "a", "tokens": [1], "more": 2}}
