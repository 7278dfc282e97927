"""Reward functions: a response's score from its text and the expected answer."""

import importlib
import inspect
import itertools
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from placebench.errors import UsageError
from placebench.spec.legible import shown
from placebench.spec.nearest import did_you_mean
from placebench.spec.workload import Workload
from placebench.tasks.code_tests import code_tests

RewardFunction = Callable[[str, str, str], float]
"""Takes prompt, response and answer; returns the score."""


def exact_match(prompt: str, response: str, answer: str) -> float:
    """1 when the response is the answer, white space around it aside; else 0."""
    return float(response.strip() == answer.strip())


def prefix_match(prompt: str, response: str, answer: str) -> float:
    """Share of the longer of response and answer up to the first difference: 1 only when they are equal."""
    longest = max(len(response), len(answer))
    common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(response, answer, strict=False)))
    return common / longest if longest else 1.0


def last_number(prompt: str, response: str, answer: str) -> float:
    """1 when the last number in the response equals the answer's last number (GSM8K style); else 0."""
    numbers = [re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", "")) for text in (response, answer)]
    return float(all(numbers) and float(numbers[0][-1]) == float(numbers[1][-1]))


REWARDS: Mapping[str, RewardFunction] = {
    function.__name__: function for function in (exact_match, prefix_match, last_number, code_tests)
}


def is_judged_by_main(workload: Workload) -> bool:
    """Whether the first rank of the reward's pool judges all responses, because judging them runs their code."""
    return workload.reward_model is None and workload.data.reward == code_tests.__name__


def load_reward(name: str) -> RewardFunction:
    """A built-in reward by name, or a user's `module:function`, looked up from the current directory too.

    Raises:
        UsageError: unknown name, or a module or function that cannot be imported.
    """
    if name in REWARDS:
        return REWARDS[name]
    module_name, colon, function_name = name.partition(":")
    if not colon:
        raise UsageError(f"data.reward {shown(name)}: use {', '.join(REWARDS)}, or module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a module may raise anything as it is imported
        at = place_of(error)
        raise UsageError(
            f"data.reward {shown(name)}{at and f' ({at})'}: cannot import it: {in_a_line(error)}"
        ) from None
    try:
        function = getattr(module, function_name)
    except AttributeError as error:
        near = did_you_mean(function_name, dir(module))
        raise UsageError(f"data.reward {shown(name)}: cannot import it: {in_a_line(error)}{near}") from None
    if not callable(function):
        raise UsageError(f"data.reward {shown(name)}: {function_name} is not a function")
    loaded: RewardFunction = function
    return loaded


def in_a_line(error: BaseException) -> str:
    """An exception's type and what it says."""
    return f"{' '.join(f'{type(error).__name__}: {error}'.split()):.300}"


def place_of(thing: object) -> str:
    """File and line of a function, or of the line of the user that raised an exception; empty where there is none."""
    if isinstance(thing, SyntaxError) and thing.filename:
        return f"{relative(thing.filename)}, line {thing.lineno}"
    if isinstance(thing, BaseException):
        frames = [frame for frame in traceback.extract_tb(thing.__traceback__) if Path(frame.filename).is_file()]
        others = (Path(__file__).parent, Path(importlib.__file__).parent)
        own = [frame for frame in frames if Path(frame.filename).parent not in others]
        here = [frame for frame in own if frame.filename.startswith(os.getcwd())]
        return next((f"{relative(frame.filename)}, line {frame.lineno}" for frame in reversed(here or own)), "")
    code = getattr(inspect.unwrap(thing) if callable(thing) else thing, "__code__", None)
    return f"{relative(code.co_filename)}, line {code.co_firstlineno}" if code else ""


def relative(file: str) -> str:
    """A file's path, from the current folder where it lies below it."""
    return str(Path(file).relative_to(os.getcwd())) if Path(file).is_relative_to(os.getcwd()) else file
