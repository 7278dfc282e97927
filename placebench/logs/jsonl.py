"""Step objects of a JSONL file; shared by the formats that write one object a step."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from placebench.logs.formats import Dialect, LogFormat
from placebench.logs.source import MAX_LINE_BYTES
from placebench.logs.table import STEP_LIMIT, DamagedLogError, StepTable
from placebench.spec.text import format_bytes


def jsonl_log(name: str, title: str, field: str, dialect: Dialect) -> LogFormat:
    """The format of lines such as `{"step": 1, …, "<field>": {…`, which have their metrics under `field`."""
    start = re.compile(rb'^[ \t]*\{\s*"step"\s*:\s*[0-9]+\s*,[^{\n]*"' + field.encode() + rb'"\s*:\s*\{', re.MULTILINE)

    def begins(block: bytes) -> bool:
        # The plain search first: it passes over the text before a log's first step many times faster.
        return b'"step"' in block and start.search(block) is not None

    read = partial(read_objects, field=field)
    return LogFormat(name, title, begins, read, dialect, read_printed=partial(read, among_text=True))


def read_objects(
    blocks: Iterator[bytes], table: StepTable, field: str | None = None, *, among_text: bool = False
) -> None:
    """Read the objects that have a step, with the metrics under `field`; null is a missing number, NaN.

    A damaged last line is what a killed writer leaves and is dropped. Among text, so is any line that is no object.

    Args:
        blocks: blocks of whole lines.
        table: takes the steps.
        field: name of the object that holds the metrics; None where they stand beside the step.
        among_text: whether a job has printed the objects, and whatever else between them.

    Raises:
        DamagedLogError: a line that is not the last is not JSON, or one is too long to be a step.
    """
    number = damaged = 0
    table.where = lambda: number
    for block in blocks:
        for line in block.split(b"\n"):
            number += 1
            if not line.strip() or (among_text and not line.lstrip().startswith(b"{")):
                continue
            if damaged and not among_text:
                raise DamagedLogError(f"line {damaged} is not JSON")
            if len(line) > MAX_LINE_BYTES and not among_text:
                raise DamagedLogError(f"line {number} is longer than {format_bytes(MAX_LINE_BYTES)}, as no step is")
            try:
                content = json.loads(line)
            except (ValueError, RecursionError):
                if not among_text:
                    damaged = number
                elif b'"step"' in line:
                    table.damage(number)
            else:
                _add_step(content, table, field)
        number -= 1
    if damaged:
        table.damage(damaged)


def _add_step(content: Any, table: StepTable, field: str | None) -> None:
    step = pop_step(content)
    if step is not None and isinstance(metrics := content if field is None else content.get(field), dict):
        table.add(step, json_numbers(metrics))


def pop_step(content: Any) -> int | None:
    """Take the step out of what a JSON object holds; None where it is no object, or has none."""
    step = content.pop("step", None) if isinstance(content, dict) else None
    return step if type(step) is int and 0 <= step < STEP_LIMIT else None


def json_numbers(content: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a JSON object; null is a missing number, NaN, and text and containers are left out."""
    numbers = {}
    for name, value in content.items():
        if value is None:
            numbers[name] = math.nan
        elif isinstance(value, (bool, int, float)):
            try:
                numbers[name] = float(value)
            except OverflowError:
                numbers[name] = math.inf if value > 0 else -math.inf
    return numbers
