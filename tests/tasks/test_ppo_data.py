"""Prompts, answers, rewards and tokenizers, in this process."""

import json
import os
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placebench.errors import UsageError
from placebench.plan.workload_checks import unusable_workload
from placebench.ppo.generation import Generation
from placebench.spec.workload import Data
from placebench.spec.workload_reading import build_workload
from placebench.tasks.data import FilePrompts, Prompt, open_prompts
from placebench.tasks.rewards import exact_match, last_number, load_reward, prefix_match
from placebench.tasks.tokenizer import CharacterTokenizer


def test_arithmetic_follows_seed_and_step() -> None:
    source = open_prompts(Data(operand_max=9), 3, 16)
    prompts = source.step_prompts(2, 50)
    assert prompts == open_prompts(Data(operand_max=9), 3, 16).step_prompts(2, 50)
    assert prompts != source.step_prompts(1, 50)
    for prompt in prompts:
        left, right = prompt.text.removesuffix("=").split("+")
        assert int(left) + int(right) == int(prompt.answer)


def test_responses_are_drawn_apart_from_each_other_and_from_their_prompts() -> None:
    workload = build_workload({"seed": 3})
    generation = Generation(workload, open_prompts(workload.data, 3, 16), CharacterTokenizer())
    seeds: list[int] = []
    for step in (1, 2):
        seeds += generation.arguments(step, generation.step_prompts(step), range(128))["seeds"]
    assert len(set(seeds)) == 256
    assert not {int(np.random.default_rng([3, step]).integers(2**32)) for step in (1, 2)} & set(seeds)


@pytest.mark.parametrize(
    ("asked", "is_stale", "first", "wanted"),
    [
        ("needed", False, 1, [1, 2]),
        # Gone on from a checkpoint, a launch warms up anew.
        ("needed", False, 3, [3, 4]),
        ("needed", True, 1, [1, 2, 3, 4, 5, 6]),
        ("always", False, 1, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_the_rollout_tells_log_probs_where_weights_may_be_older_and_in_the_warm_up(
    asked: str, is_stale: bool, first: int, wanted: list[int]
) -> None:
    workload = build_workload({"steps": 6, "warmup_steps": 2, "rollout": {"log_probs": asked}})
    source = open_prompts(workload.data, 0, 16)
    generation = Generation(workload, source, CharacterTokenizer(), is_stale=is_stale, first_step=first)
    arguments = {step: generation.arguments(step, generation.step_prompts(step), [0]) for step in range(first, 7)}
    assert [step for step in arguments if arguments[step]["log_probs"]] == wanted


def test_prompts_from_files(tmp_path: Path) -> None:
    lines = tmp_path / "prompts.jsonl"
    content = "\n".join(json.dumps({"prompt": f"{n}+0=", "answer": n}) for n in range(3)) + "\n"
    lines.write_text(content, encoding="utf-8-sig")
    source = open_prompts(Data(source=str(lines)), 0, 16)
    passes = [Counter(prompt.answer for prompt in source.step_prompts(step, 3)) for step in (1, 2)]
    assert passes == [Counter("012")] * 2
    table = tmp_path / "prompts.parquet"
    rows = [{"prompt": [{"role": "user", "content": "1+1="}], "reward_model": {"style": "rule", "ground_truth": "2"}}]
    pd.DataFrame(rows).to_parquet(table)
    (prompt,) = open_prompts(Data(source=str(table)), 0, 16).step_prompts(1, 1)
    assert (prompt.text, prompt.answer) == ("1+1=", "2")


def test_a_step_of_a_large_file_costs_no_more_than_its_prompts() -> None:
    prompts = tuple(Prompt(str(number), "") for number in range(300_000))
    source = FilePrompts(0, prompts)
    assert len({prompt.text for prompt in source.step_prompts(1, 3_000)}) == 3_000
    begun = time.process_time()
    # A shuffle of the file for each of them would take more than 2 ms each.
    later = [prompt for step in range(2, 12) for prompt in source.step_prompts(step, 100)]
    assert time.process_time() - begun < 0.5
    assert len(set(later)) == 1_000


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.jsonl", "{", "line 1: not JSON"),
        ("a.jsonl", "[1]", "line 1: must be an object"),
        ("a.jsonl", '{"prompt": "a"}\n{"question": "b"}', "line 2: no field 'prompt'"),
        ("a.jsonl", '{"prompt": 3}', "must be text"),
        ("a.jsonl", '{"prompt": []}', "line 1: 'prompt' must be text or a list of chat messages"),
        ("a.jsonl", '{"prompt": [{"role": "user"}]}', "line 1: 'prompt': message 1 must be an object whose content is"),
        ("a.jsonl", '{"prompt": [{"content": "a"}, {"content": 3}]}', "message 2 must be an object"),
        ("a.jsonl", '{"prompt": [{"content": null}]}', "message 1 must be an object"),
        ("a.jsonl", '{"prompt": [{"content": [{"type": "text", "text": "a"}]}]}', "message 1 must be an object"),
        ("a.jsonl", '{"prompt": [{"content": "a"}, "b"]}', "message 2 must be an object"),
        ("a.jsonl", "[" * 100_000, "line 1: not JSON: its brackets are nested too deep"),
        ("a.jsonl", "", "has no prompts"),
        ("a.parquet", "no table", "cannot read it as parquet"),
        ("a.txt", "", "use arithmetic, code, a .jsonl or a .parquet file"),
    ],
)
def test_unusable_prompt_files(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=words):
        open_prompts(Data(source=str(tmp_path / name)), 0, 16)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_prompts_are_not_waited_for_at_a_pipe(tmp_path: Path, suffix: str) -> None:
    pipe = tmp_path / f"a.{suffix}"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="it is a pipe or a device; name a regular file"):
        open_prompts(Data(source=str(pipe)), 0, 16)


def test_chat_messages_need_no_role_and_may_hold_separators_of_lines(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": [{"content": "a\u2028b"}, {"role": "user", "content": "c"}]}\r\n')
    (prompt,) = open_prompts(Data(source=str(tmp_path / "a.jsonl")), 0, 16).step_prompts(1, 1)
    assert prompt.text == "a\u2028b\nc"


@pytest.mark.parametrize(
    ("reward", "line", "reason"),
    [
        ("prefix_match", '{"prompt": "1+1="}', "no field 'answer', the answer that data.reward prefix_match compares"),
        ("exact_match", '{"prompt": "1", "anwser": "2"}', "it has prompt, anwser; set data.answer_key"),
        ("last_number", '{"prompt": "1+1=", "answer": null}', "'answer' is null, the answer that"),
        ("code_tests", '{"prompt": "add", "answer": "7"}', "the answer '7' is not a JSON list of tests, such as"),
        ("code_tests", '{"prompt": "add"}', "no field 'answer'"),
        ("code_tests", '{"prompt": "add", "answer": {"a": 1}}', "is not a JSON list of tests, such as"),
        (
            "exact_match",
            '{"prompt": "1", "answer": ["7", "seven"]}',
            "the answer is a list, and data.reward exact_match",
        ),
        ("prefix_match", '{"prompt": "1", "answer": {"value": 7}}', "the answer is an object, and data.reward prefix_"),
        ("last_number", '{"prompt": "1", "reward_model": {"ground_truth": [7]}}', "the answer is a list, and"),
    ],
)
def test_prompts_without_an_answer_that_the_reward_can_use(tmp_path: Path, reward: str, line: str, reason: str) -> None:
    tests = '[[\\"add(1, 2)\\", 3]]'
    file = tmp_path / "a.jsonl"
    file.write_text(f'{{"prompt": "1+1=", "answer": "{tests}"}}\n{line}\n')
    data = {"source": str(file), "reward": reward}
    reasons = unusable_workload(build_workload({"data": data}))
    found = [one for one in reasons if one.startswith(f"{file}, line 2: ")]
    assert len(found) == 1
    assert reason in found[0]


def test_answers_are_asked_for_where_a_built_in_reward_compares_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scores.py").write_text("def score(prompt, response, answer):\n    return len(response)\n")
    (tmp_path / "a.jsonl").write_text('{"prompt": "1+1="}\n')
    data = {"source": str(tmp_path / "a.jsonl")}
    assert list(unusable_workload(build_workload({"data": data, "reward_model": "tiny"}))) == []
    assert list(unusable_workload(build_workload({"data": data | {"reward": "scores:score"}}))) == []
    (tmp_path / "a.jsonl").write_text('{"prompt": "1+1=", "solution": "", "reward_model": {"ground_truth": 2}}\n')
    assert list(unusable_workload(build_workload({"data": data}))) == []
    assert list(unusable_workload(build_workload({"data": data | {"answer_key": "solution"}}))) == []


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("true", "true"),
        ("false", "false"),
        ("7", "7"),
        ("7.0", "7"),
        ("-0.5", "-0.5"),
        ('"7.0"', "7.0"),
        ('["7", "é"]', '["7", "é"]'),
        ('{"value": 7}', '{"value": 7}'),
        ("null", ""),
    ],
)
def test_a_reward_gets_answers_as_text_or_json(tmp_path: Path, given: str, text: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"prompt": "1+1=", "answer": {given}}}\n')
    data = Data(source=str(tmp_path / "a.jsonl"), reward="scores:score")
    (prompt,) = open_prompts(data, 0, 16).step_prompts(1, 1)
    assert prompt.answer == text


def test_answers_under_a_key_that_no_row_has_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "1+1=", "solution": "2"}\n{"prompt": "1+2="}\n')
    data = Data(source=str(file), reward="scores:score", answer_key="solutoin")
    with pytest.raises(UsageError) as refused:
        open_prompts(data, 0, 16)
    assert str(refused.value) == (
        f"{file}: no row has a field 'solutoin' (data.answer_key); the first has prompt, solution; did you mean"
        " 'solution'?"
    )
    one_has_it = open_prompts(data.model_copy(update={"answer_key": "solution"}), 0, 16)
    assert {prompt.answer for prompt in one_has_it.step_prompts(1, 2)} == {"2", ""}


def test_tests_are_a_list_or_its_text(tmp_path: Path) -> None:
    tests = [["add(1, 2)", 3]]
    rows = ({"prompt": "add", "answer": answer} for answer in (tests, json.dumps(tests)))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = Data(source=str(tmp_path / "a.jsonl"), reward="code_tests")
    prompts = open_prompts(data, 0, 16, "code_tests").step_prompts(1, 2)
    assert [json.loads(prompt.answer) for prompt in prompts] == [tests, tests]


def test_sums_have_no_tests() -> None:
    reasons = list(unusable_workload(build_workload({"data": {"reward": "code_tests"}})))
    assert "data.source arithmetic has none; set data.source=code" in reasons[0]


def test_missing_prompt_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        open_prompts(Data(source=str(tmp_path / "none.jsonl")), 0, 16)


def test_rewards() -> None:
    assert exact_match("", " 12\n", "12") == 1
    assert exact_match("", "1", "12") == 0
    assert prefix_match("", "12", "12") == 1
    assert prefix_match("", "1", "12") == 0.5
    assert prefix_match("", "1299", "12") == 0.5
    assert prefix_match("", "", "") == 1
    assert last_number("", "so 3 apples, or 1,200", "#### 1200") == 1
    assert last_number("", "none", "3") == 0
    assert load_reward("math:hypot").__name__ == "hypot"


@pytest.mark.parametrize("name", ["nothing", "math:nothing", "no_such_module:f", "math:pi"])
def test_unknown_rewards(name: str) -> None:
    with pytest.raises(UsageError, match=r"data\.reward"):
        load_reward(name)


@given(st.text("0123456789+-= abcxyz", max_size=20))
def test_characters_come_back(text: str) -> None:
    tokenizer = CharacterTokenizer()
    assert tokenizer.decode([*tokenizer.encode(text), tokenizer.eos_token_id]) == text


def test_a_character_without_token() -> None:
    with pytest.raises(UsageError, match="'ß' has no token"):
        CharacterTokenizer().encode("ß")


@given(st.integers(0, 60))
def test_solved_examples_fill_a_prompt(length: int) -> None:
    plain = open_prompts(Data(operand_max=9), 3, length).step_prompts(2, 20)
    filled = open_prompts(Data(operand_max=9, fill_prompts=True), 3, length).step_prompts(2, 20)
    for prompt, question in zip(filled, plain, strict=True):
        assert len(prompt.text) == max(length, len(question.text))
        assert prompt.text.endswith(question.text)
        assert prompt.answer == question.answer
        for example in prompt.text.split(",")[1:-1]:
            left, _, result = example.partition("=")
            assert sum(map(int, left.split("+"))) == int(result)
