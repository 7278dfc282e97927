"""Prompts: generated from the seed, or read from a file; every step's prompts follow from seed and step."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placebench.errors import UsageError
from placebench.spec.legible import shown
from placebench.spec.nearest import did_you_mean
from placebench.spec.reading import parse_json, read_text, refuse_pipe
from placebench.spec.workload import Data
from placebench.tasks.code_tests import code_tests, problems, read_tests


@dataclass(frozen=True)
class Prompt:
    """A prompt's text and the answer that the reward compares with."""

    text: str
    answer: str
    where: str = ""
    """File and line or row; empty for a prompt of no file of the user's."""


@dataclass(frozen=True)
class Arithmetic:
    """Sums of two small numbers: `3+4=` with the answer `7`."""

    seed: int
    """Seed of the draws."""
    operand_max: int
    """Largest operand."""
    length: int = 0
    """Characters that solved examples in front (`1+2=3,`) fill every prompt up to; 0 for no examples."""

    def step_prompts(self, step: int, count: int) -> list[Prompt]:
        """Draw operands uniformly from 0 to `operand_max`."""
        examples = ceil(self.length / len("0+0=0,"))
        random = np.random.default_rng([self.seed, step])
        questions = random.integers(0, self.operand_max + 1, (count, 2)).tolist()
        solved = random.integers(0, self.operand_max + 1, (count, examples, 2)).tolist()
        return [self._prompt(left, right, others) for (left, right), others in zip(questions, solved, strict=True)]

    def _prompt(self, left: int, right: int, solved: list[list[int]]) -> Prompt:
        question = f"{left}+{right}="
        examples = "".join(f"{one}+{two}={one + two}," for one, two in solved)
        room = max(0, self.length - len(question))
        return Prompt(examples[len(examples) - room :] + question, str(left + right))


@dataclass(frozen=True)
class FilePrompts:
    """Prompts of a file, or those of the shipped problems, shuffled anew by the seed on every pass."""

    seed: int
    prompts: tuple[Prompt, ...]

    def step_prompts(self, step: int, count: int) -> list[Prompt]:
        """The next `count` prompts; passes follow each other without a gap."""
        total = len(self.prompts)
        places = (divmod(position, total) for position in range((step - 1) * count, step * count))
        return [self.prompts[_order(self.seed, epoch, total)[offset]] for epoch, offset in places]


PromptSource = Arithmetic | FilePrompts
"""Where prompts come from; those of a step (counted from 1) are the same for the same seed, whatever ran before."""


# A step's prompts are of one pass, or of two that follow each other.
@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, count: int) -> NDArray[np.intp]:
    """The prompts' order in a pass over the file."""
    return np.random.default_rng([seed, epoch]).permutation(count)


def open_prompts(data: Data, seed: int, longest: int, compared_by: str | None = None) -> PromptSource:
    """The prompt source that the workload names.

    Args:
        data: where prompts come from.
        seed: of their draws and order.
        longest: characters that prompts are filled up to where `data` says so.
        compared_by: the built-in reward that compares with answers, for which each prompt must have one that suits.

    Raises:
        UsageError: the file cannot be read, is empty, or lacks the prompt field or the answer (with the line or row).
    """
    if data.source == "arithmetic":
        if compared_by == code_tests.__name__:
            raise UsageError(
                f"data.reward {compared_by}: runs tests, and data.source arithmetic has none; set data.source=code, or"
                " another reward"
            )
        return Arithmetic(seed, data.operand_max, longest if data.fill_prompts else 0)
    if data.source == "code":
        return FilePrompts(seed, tuple(Prompt(problem.prompt, problem.answer) for problem in problems()))
    path = Path(data.source)
    readers = {".jsonl": _read_jsonl, ".parquet": _read_parquet}
    if path.suffix not in readers:
        near = did_you_mean(data.source, ("arithmetic", "code"))
        raise UsageError(f"data.source {shown(data.source)}: use arithmetic, code, a .jsonl or a .parquet file{near}")
    rows = list(readers[path.suffix](path))
    prompts = tuple(_prompt(row, data, where, compared_by) for where, row in rows)
    if not prompts:
        raise UsageError(f"{path}: has no prompts")
    if data.answer_key != Data().answer_key and not any(data.answer_key in row for _, row in rows):
        near = did_you_mean(data.answer_key, rows[0][1])
        raise UsageError(
            f"{path}: no row has a field {shown(data.answer_key)} (data.answer_key); the first has"
            f" {', '.join(rows[0][1])}{near}"
        )
    return FilePrompts(seed, prompts)


def _read_jsonl(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    # Not splitlines: it would also cut at U+2028 and the like, which JSON allows within a text.
    for number, line in enumerate(read_text(path, "utf-8-sig").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            raise UsageError(f"{path}, line {number}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise UsageError(f"{path}, line {number}: must be an object with fields, found {type(row).__name__}")
        yield f"{path}, line {number}", row


def _read_parquet(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    import pyarrow
    import pyarrow.parquet

    refuse_pipe(path)
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise UsageError(f"{path}: cannot read it as parquet: {str(error).splitlines()[0]}") from None
    for number, row in enumerate(table.to_pylist()):
        yield f"{path}, row {number}", row


def _prompt(row: Mapping[str, Any], data: Data, where: str, compared_by: str | None) -> Prompt:
    """Take prompt and answer of a row; verl keeps chat messages in `prompt` and the answer in `reward_model`."""
    if data.prompt_key not in row:
        raise UsageError(f"{where}: no field {shown(data.prompt_key)} (data.prompt_key); it has {', '.join(row)}")
    content = row[data.prompt_key]
    if isinstance(content, list):
        content = _chat(content, f"{where}: {shown(data.prompt_key)}")
    if not isinstance(content, str) or not content:
        raise UsageError(f"{where}: {shown(data.prompt_key)} must be text or a list of chat messages")
    answer = row.get(data.answer_key)
    if answer is None and isinstance(reward_model := row.get("reward_model"), Mapping):
        answer = reward_model.get("ground_truth")
    if compared_by is not None:
        _check_answer(answer, row, data, where, compared_by)
    return Prompt(content, _as_text(answer), where)


def _as_text(answer: object) -> str:
    """The answer as a reward gets it: text as it is, all else as JSON has it, whole numbers without decimals."""
    if answer is None or isinstance(answer, str):
        return answer or ""
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    if isinstance(answer, (bool, int, float, list, dict)):
        return json.dumps(answer, ensure_ascii=False, default=str)
    return str(answer)


def _chat(messages: Sequence[object], where: str) -> str:
    """The text of chat messages, whose roles are not looked at: each message's content on lines of its own."""
    texts: list[str] = []
    for number, message in enumerate(messages, start=1):
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, str):
            raise UsageError(
                f"{where}: message {number} must be an object whose content is text, such as"
                ' {"role": "user", "content": "1+1="}'
            )
        texts.append(content)
    return "\n".join(texts)


def _check_answer(answer: object, row: Mapping[str, Any], data: Data, where: str, compared_by: str) -> None:
    """Refuse a row without an answer, or with one that the reward cannot use: found in a step, it ends the launch."""
    if answer is None:
        lacks = f"{shown(data.answer_key)} is null" if data.answer_key in row else f"no field {shown(data.answer_key)}"
        raise UsageError(
            f"{where}: {lacks}, the answer that data.reward {compared_by} compares with; it has {', '.join(row)}; set"
            " data.answer_key"
        )
    if compared_by == code_tests.__name__:
        try:
            read_tests(_as_text(answer))
        except UsageError as error:
            raise UsageError(f"{where}: {error}; set data.answer_key") from None
    elif isinstance(answer, (list, dict)):
        kind = "a list" if isinstance(answer, list) else "an object"
        raise UsageError(
            f"{where}: the answer is {kind}, and data.reward {compared_by} compares with text: give one text, or take a"
            " reward of your own, module:function"
        )
