"""CSV with a header: a column of steps and a column a metric, as trackers export them."""

import csv
import re
from collections.abc import Iterator
from itertools import chain

from placebench.logs.console import number_of
from placebench.logs.formats import LogFormat
from placebench.logs.table import STEP_LIMIT, DamagedLogError, StepTable
from placebench.spec.legible import shown

# The run's own first: W&B numbers the calls that logged something, one or several a step or one in several steps.
CALL_NAMES = ("_step", "Step")
STEP_NAMES = ("step", "global_step", "training_step", "train/global_step", "trainer/global_step", *CALL_NAMES)
SEPARATORS = ",\t;"
MAX_HEADER_BYTES = 1 << 20
# Excel's sign of UTF-8.
BOM = "\ufeff"
# A panel of Weights & Biases names its columns `RUN - METRIC`; beside each it has extremes of what it put together.
RUN_ENDS = " - "
EXTREMES = ("__MIN", "__MAX")
DECIMAL_COMMA = re.compile(r"[-+]?[0-9]+,[0-9]+(?:[eE][-+]?[0-9]+)?")
THOUSANDS = re.compile(r"[-+]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[-+]?[0-9]{1,3}(?:\.[0-9]{3})+,[0-9]+")


def is_table(block: bytes) -> bool:
    """Whether a block begins with a header that names the step, and a row of as many cells."""
    lines = block[:MAX_HEADER_BYTES].removeprefix(BOM.encode()).lstrip().split(b"\n", 2)
    if len(lines) < 2:
        return False
    try:
        first, second = (line.decode("utf-8") for line in lines[:2])
        header, row = (_cells(line, _separator(first)) for line in (first, second))
    except (UnicodeDecodeError, csv.Error):
        return False
    place = _step_place(header)
    if place is None or len(header) < 2 or len(row) != len(header):
        return False
    return row[place] == "" or number_of(row[place]) is not None


def read_table(blocks: Iterator[bytes], table: StepTable) -> None:
    """Put the rows into a table; an empty cell is a metric that was not logged at this step.

    Between semicolons or tabs, numbers may have a decimal comma.

    Raises:
        DamagedLogError: a row has another number of cells than the header, its step is no number, or a number has
            separators of thousands.
    """
    texts = (line.decode("utf-8", "replace") for block in blocks for line in block.splitlines(keepends=True))
    first = next((text for text in texts if text.strip(f"{BOM} \t\r\n")), "").removeprefix(BOM)
    separator = _separator(first)
    rows = csv.reader(chain([first], texts), delimiter=separator)
    table.where = lambda: rows.line_num
    try:
        header = [name.strip() for name in next(rows, [])]
        place = _step_place(header)
        if place is None:
            raise DamagedLogError(f"line 1 names no column of steps, such as {', '.join(STEP_NAMES)}")
        if header[place] in CALL_NAMES:
            table.steps_per_number = None
        table.refuse_names(len(header))
        names = _metric_names(header, place)
        short = 0
        for row in rows:
            if short:
                raise DamagedLogError(f"line {short} has a different number of cells than the header")
            if row and len(row) != len(header):
                short = rows.line_num
            elif row:
                _add_row(names, row, place, table, has_decimal_comma=separator != ",")
    except csv.Error as error:
        raise DamagedLogError(f"line {rows.line_num}: {error}") from None
    if short:
        table.damage(short)


def _add_row(names: dict[int, str], row: list[str], place: int, table: StepTable, *, has_decimal_comma: bool) -> None:
    if not row[place].strip():
        return
    step = number_of(row[place].strip())
    if step is None or not step.is_integer() or not 0 <= step < STEP_LIMIT:
        raise DamagedLogError(f"line {table.where()}: the step {shown(row[place][:40])} is not a whole number")
    metrics = {}
    for at, name in names.items():
        text = row[at].strip()
        if has_decimal_comma and "," in text and DECIMAL_COMMA.fullmatch(text):
            text = text.replace(",", ".")
        number = number_of(text)
        if number is not None:
            metrics[name] = number
        elif "," in text and THOUSANDS.fullmatch(text):
            raise DamagedLogError(
                f"line {table.where()}: {shown(text)} under {name} has thousands separators: export plain numbers"
            )
    if metrics:
        table.add(int(step), metrics)


def _metric_names(header: list[str], place: int) -> dict[int, str]:
    """The metrics by their columns: without the run's name before all of them, and without extremes of others."""
    names = {at: name for at, name in enumerate(header) if at != place and name}
    run, ends, _ = next(iter(names.values()), "").rpartition(RUN_ENDS)
    if ends and all(name.startswith(run + ends) for name in names.values()):
        names = {at: name.removeprefix(run + ends) for at, name in names.items()}
    known = set(names.values())
    return {at: name for at, name in names.items() if not (name.endswith(EXTREMES) and name[:-5] in known)}


def _separator(header: str) -> str:
    return max(SEPARATORS, key=header.count)


def _cells(line: str, separator: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line.strip("\r\n")], delimiter=separator), [])]


def _step_place(header: list[str]) -> int | None:
    return next((header.index(name) for name in STEP_NAMES if name in header), None)


CSV = LogFormat("csv", "CSV with a column of steps", is_table, read_table, None, closed=False)
