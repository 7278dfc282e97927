"""The programming problems and the judge of responses to them."""

import json
from pathlib import Path

import pytest
from jobs import run_job

from placebench.errors import UsageError
from placebench.plan.plan import make_plan
from placebench.plan.request import RunRequest
from placebench.spec.workload_reading import build_workload
from placebench.tasks.code_tests import code_tests, judge_all, problems
from placebench.tasks.data import open_prompts
from placebench.tasks.rewards import load_reward
from placebench.tasks.sandbox import why_unavailable
from placebench.tasks.tokenizer import CharacterTokenizer

pytestmark = pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))

ADD = json.dumps([["add(1, 2)", 3], ["add(-1, 1)", 0]])


def test_every_problem_is_solved_by_its_solution_and_by_nothing_else() -> None:
    assert len(problems()) >= 40
    assert len({problem.prompt for problem in problems()}) == len(problems())
    cases = [(problem.prompt, problem.solution, problem.answer) for problem in problems()]
    assert judge_all(cases, 2) == [1.0] * len(cases)
    others = [(prompt, problems()[0].solution, answer) for prompt, _, answer in cases[1:]]
    assert judge_all(others, 2) == [0.0] * len(others)


def test_prompts_suit_models_whose_tokens_are_characters() -> None:
    workload = build_workload({"data": {"source": "code"}})
    source = open_prompts(workload.data, 0, workload.batch.max_prompt_length)
    prompts = source.step_prompts(1, len(problems()))
    assert {prompt.text for prompt in prompts} == {problem.prompt for problem in problems()}
    assert max(len(CharacterTokenizer().encode(prompt.text)) for prompt in prompts) <= 128
    assert workload.data.reward == "code_tests"


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("def add(a, b): return a + b", 1.0),
        ("The function:\n```python\ndef add(a, b):\n    return a + b\n```\nIt adds.", 1.0),
        ("```\ndef add(a, b):\n    return a + b", 1.0),
        ("def add(a, b): return 3", 0.5),
        ("def add(a, b): return float(a + b)", 0.0),
        ("def add(a, b): return [a + b]", 0.0),
        ("def add(a, b): return str(a + b)", 0.0),
        ("the sum is 3", 0.0),
        ("", 0.0),
        ("import os\nos._exit(0)", 0.0),
        ("raise SystemExit", 0.0),
        ("def add(a, b):\n    import os\n    os.write(3, b'[3]\\n[0]\\n')\n    os._exit(0)", 1.0),
    ],
)
def test_a_response_scores_the_share_of_tests_it_passes(response: str, score: float) -> None:
    assert code_tests("", response, ADD) == score


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "info", ["", "py", "python", " python ", "python3", "Python", "python title=x", "{.python .numberLines}", "`"]
)
def test_a_fenced_block_is_found_whatever_its_first_line_says(info: str, end: str) -> None:
    block = (f"```{info}", "def add(a, b):", "    return a + b")
    assert code_tests("", end.join(block), ADD) == 1.0
    answer = ("Use ```add``` so:", *block, "```", "or so:", "```", "add = 0", "```")
    assert code_tests("", end.join(answer), ADD) == 1.0


@pytest.mark.parametrize("answer", ["7", "", "[]", "[1]", '{"add(1)": 1}'])
def test_an_answer_that_is_no_tests_is_one_line(answer: str) -> None:
    with pytest.raises(UsageError, match="not a JSON list of tests"):
        load_reward("code_tests")("", "1", answer)


def test_the_plan_takes_the_problems(tmp_path: Path) -> None:
    plan = make_plan(RunRequest("ddp:2", {"data": {"source": "code"}}, "cpu:2", out=tmp_path))
    assert plan.workload.batch.max_response_length == 64


@pytest.mark.slow
def test_the_main_process_judges_for_all_ranks(tmp_path: Path) -> None:
    code = ("algorithm.name=grpo", "data.source=code", "batch.size=8", "batch.mini_batch_size=8", "batch.group_size=4")
    job = run_job(tmp_path / "job", "ddp:2", 2, *code, "steps=2", "warmup_steps=1", "batch.max_response_length=16")
    assert job.exit_code == 0, job.output[-3000:]
    judges = [span["device"] for span in job.spans if span["phase"] == "reward" and span["device"] != "controller"]
    assert judges == ["cpu:0", "cpu:0"]
    assert all(0 <= step["critic/score/mean"] <= 1 for step in job.steps)
    assert max(step["prompt_length/max"] for step in job.steps) <= 128
