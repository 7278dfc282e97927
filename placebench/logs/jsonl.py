"""Step objects of a JSONL file; shared by the formats that write one object a step."""

import json
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from placebench.logs.table import STEP_LIMIT, DamagedLogError, StepTable

JSON_STEP = re.compile(rb'^[ \t]*\{(?=[^\n]*"step"\s*:\s*[0-9])', re.MULTILINE)


def step_begins(field: str) -> Callable[[bytes], bool]:
    """A test for lines such as `{"step": 1, …, "<field>": {…`."""
    start = re.compile(rb'^[ \t]*\{\s*"step"\s*:\s*[0-9]+\s*,[^{\n]*"' + field.encode() + rb'"\s*:\s*\{', re.MULTILINE)
    # The plain search first: it passes over the text before a log's first step many times faster.
    return lambda block: b'"step"' in block and start.search(block) is not None


def steps_reader(field: str) -> Callable[[Iterator[bytes], StepTable], None]:
    """A reader of objects that have their metrics under `field`."""
    return partial(read_objects, field=field)


def read_objects(blocks: Iterator[bytes], table: StepTable, field: str | None) -> None:
    """Read the objects that have a step, with the metrics under `field`; null is a missing number, NaN.

    A damaged last line is what a killed writer leaves and is dropped.

    Args:
        blocks: blocks of whole lines.
        table: takes the steps.
        field: name of the object that holds the metrics; None where they stand beside the step.

    Raises:
        DamagedLogError: a line that is not the last is not JSON.
    """
    number = 0
    damaged = 0

    def where() -> int:
        return number

    table.where = where
    for block in blocks:
        for line in block.split(b"\n"):
            number += 1
            if not line.strip():
                continue
            if damaged:
                raise DamagedLogError(f"line {damaged} is not JSON")
            try:
                content = json.loads(line)
            except (ValueError, RecursionError):
                damaged = number
                continue
            _add_step(content, table, field)
        number -= 1
    if damaged:
        table.damage(damaged)


def _add_step(content: Any, table: StepTable, field: str | None) -> None:
    if not isinstance(content, dict):
        return
    step, metrics = content.get("step"), content if field is None else content.get(field)
    if type(step) is not int or not 0 <= step < STEP_LIMIT or not isinstance(metrics, dict):
        return
    numbers = {name: json_number(value) for name, value in metrics.items() if field is not None or name != "step"}
    table.add(step, {name: value for name, value in numbers.items() if value is not None})


def json_number(value: Any) -> float | None:
    """A JSON value as a number, None where it is text or a container."""
    if value is None:
        return math.nan
    if not isinstance(value, (bool, int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
