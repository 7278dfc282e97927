"""Code generation: problems that the project ships, and responses judged by running them.

A problem is a prompt, tests, and a solution that passes them. A test is an expression and the JSON value that it must
have; the values never enter the sandbox, so that code which looks for them finds nothing.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from placebench.errors import UsageError
from placebench.tasks.sandbox import Failure, evaluate

# A fenced block of code in an answer written for people, whatever its first line says of the language. Code within a
# line comes first, so that the marks behind it begin no block.
_FENCED = re.compile(r"```[^\n`]+```|```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Problem:
    """A small programming task."""

    prompt: str
    """The task, in characters that models with random weights know."""
    tests: tuple[tuple[str, Any], ...]
    """Pairs of an expression and the JSON value that it must have."""
    solution: str
    """Code that passes the tests."""

    @property
    def answer(self) -> str:
        """The tests as a reward function gets them."""
        return json.dumps(self.tests)


@cache
def problems() -> tuple[Problem, ...]:
    """The problems that come with placebench."""
    text = resources.files("placebench.tasks.problems").joinpath("problems.jsonl").read_text(encoding="utf-8")
    rows: Iterable[Mapping[str, Any]] = map(json.loads, text.splitlines())
    return tuple(
        Problem(row["prompt"], tuple((call, value) for call, value in row["tests"]), row["solution"]) for row in rows
    )


def code_tests(prompt: str, response: str, answer: str) -> float:
    """Share of a problem's tests that the response's code passes, run in a sandbox.

    The code is the response's first fenced block, or all of it where there is none.

    Args:
        prompt: not looked at.
        response: the generated text.
        answer: a JSON list of tests: pairs of an expression and the JSON value that it must have.

    Raises:
        UsageError: the answer is no such list.
        LaunchError: this host cannot isolate code.
    """
    tests = read_tests(answer)
    code = next((found[1] for found in _FENCED.finditer(response) if found[1] is not None), response)
    evaluation = evaluate(code, [call for call, _ in tests])
    passed = sum(
        not isinstance(value, Failure) and _canonical(value) == _canonical(expected)
        for value, (_, expected) in zip(evaluation.values, tests, strict=False)
    )
    return passed / len(tests)


def judge_all(cases: Sequence[tuple[str, str, str]], workers: int) -> list[float]:
    """`code_tests` of many cases, several at a time; equal ones are run once."""
    different = list(dict.fromkeys((response, answer) for _, response, answer in cases))
    with ThreadPoolExecutor(workers) as pool:
        scores = dict(zip(different, pool.map(lambda case: code_tests("", *case), different), strict=True))
    return [scores[response, answer] for _, response, answer in cases]


def read_tests(answer: str) -> list[tuple[str, Any]]:
    """The tests of an answer.

    Raises:
        UsageError: it is no JSON list of tests.
    """
    try:
        tests = [(str(call), value) for call, value in json.loads(answer)]
    except (ValueError, TypeError, RecursionError):
        tests = []
    if not tests:
        raise UsageError(
            f"data.reward code_tests: the answer {answer[:60]!r} is not a JSON list of tests, such as"
            ' [["add(1, 2)", 3]]'
        )
    return tests


def _canonical(value: Any) -> str:
    """Text by which values are compared: 1, 1.0 and true are three different ones."""
    return json.dumps(value, sort_keys=True)
