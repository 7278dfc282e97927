"""What the readers of console logs share: clean lines, Python literals, clocks, and steps printed as one dict."""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from placebench.logs.formats import Dialect, LogFormat
from placebench.logs.table import StepTable
from placebench.logs.timing import MOST_SECONDS

ANSI = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
# What stands before every line of a log that came through something: `3: ` of srun --label, and the time that the logs
# of containers have. A blank between date and time is a framework's own, and its clock.
CARRIED = (
    rb"(?:[ \t]{0,7}[0-9]{1,7}:(?: |$))?"
    rb"(?:[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[-+][0-9]{2}:?[0-9]{2})(?: |$))?"
)
CARRIED_PREFIX = re.compile(b"^" + CARRIED)
RAY_PREFIX = re.compile(rb"^\s*\([\w.:-]+ pid=[0-9]+(?:, ip=[0-9a-fA-F.:]+)?\)[ \t]?")
RAY_REPEATED = re.compile(rb"\[repeated [0-9]+x across cluster\].*$")

BARE_NUMBER = r"[-+]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|nan|inf)"
NUMBER = BARE_NUMBER + r"(?![\w.])"
WHOLE_NUMBER = re.compile(NUMBER)
# One `'key': value` of a printed dict; values that are no number are passed over, one without an end is damage.
PAIR = re.compile(
    r"""\s*(?:'(?P<key>[^'\\\n]*)'|"(?P<key2>[^"\\\n]*)")\s*:\s*"""
    rf"""(?:(?P<quote>['"]?)(?:np\.\w+\()?(?P<number>{NUMBER}|True|False)\)?(?P=quote)"""
    r"""|None|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"|\[[^\[\]\n]*\])\s*(?P<end>[,}])"""
)

# No step line is longer; what is goes by unread.
MAX_TEXT_BYTES = 1 << 20

DAY_S = 86_400.0
EPOCH = datetime(1970, 1, 1)
# Forms of time stamps: what is put before the text to make it a date and a time, and how that is read.
STAMPS = (
    (re.compile(r"\b[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"), "", "%Y-%m-%d %H:%M:%S"),
    (re.compile(r"\b[0-9]{8}-[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"), "", "%Y%m%d-%H:%M:%S"),
    # A year that has a 29 February; only differences of the clock are used.
    (re.compile(r"\b[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}"), "2024-", "%Y-%m-%d %H:%M:%S"),
    (re.compile(r"\b[0-9]{2}:[0-9]{2}:[0-9]{2}"), "1970-01-01 ", "%Y-%m-%d %H:%M:%S"),
)
STEP_SECONDS = "log/step_seconds"


class CleanLines:
    """The lines of a console log without colors, Ray's prefixes and carriage returns.

    Attributes:
        number: number of the line that was given last, counted from 1.
    """

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        """Give each line, and the parts of a line that a progress bar's carriage returns cut it into."""
        for block in self._blocks:
            lines = block.split(b"\n")
            for line in lines[:-1]:
                self.number += 1
                if len(line) > MAX_TEXT_BYTES:
                    continue
                for part in line.split(b"\r") if b"\r" in line else (line,):
                    yield clean(part)


def clean(line: bytes) -> str:
    """A line without colors, what carried it put before it, a Ray prefix and Ray's count of repeated lines."""
    if b"\x1b" in line:
        line = ANSI.sub(b"", line)
    if line[:8].lstrip()[:1].isdigit():
        line = CARRIED_PREFIX.sub(b"", line)
    if b" pid=" in line:
        line = RAY_PREFIX.sub(b"", line)
    if b"[repeated " in line:
        line = RAY_REPEATED.sub(b"", line)
    return line.decode("utf-8", "replace")


def console_log(
    name: str,
    dialect: Dialect,
    read: Callable[[Iterator[bytes], StepTable], None],
    *,
    begins: bytes,
    sign: bytes = b"",
    closed: bool = True,
    last_metric: str | None = None,
) -> LogFormat:
    """The format of a framework's console log, in which a step begins where `begins` is found.

    Where `begins` begins with no fixed text, `sign` is one that it always has: the plain search passes over the text
    before a log's first step many times faster.
    """
    step = re.compile(begins)
    title = f"console log of {dialect.framework}"

    def is_begun(block: bytes) -> bool:
        return sign in block and step.search(block) is not None

    return LogFormat(name, title, is_begun, read, dialect, closed=closed, last_metric=last_metric)


def number_of(text: str) -> float | None:
    """A printed number, None where it is none."""
    if text in ("True", "False"):
        return float(text == "True")
    return float(text) if WHOLE_NUMBER.fullmatch(text) else None


def numbers_of_dict(text: str, start: int) -> dict[str, float] | None:
    """The numbers of a Python dict as `print` shows it, quoted or not; None where the dict has no end.

    Args:
        text: a line.
        start: place of the brace that opens the dict.
    """
    position = start + 1
    numbers: dict[str, float] = {}
    while pair := PAIR.match(text, position):
        take_pair(pair, numbers)
        if pair["end"] == "}":
            return numbers
        position = pair.end()
    return None


def take_pair(pair: re.Match[str], numbers: dict[str, float]) -> None:
    """Put the number of a `PAIR` into numbers, where its value is one."""
    value = number_of(pair["number"] or "")
    if value is not None:
        numbers[pair["key"] or pair["key2"] or ""] = value


def found_lines(blocks: Iterator[bytes], table: StepTable, title: str) -> Iterator[re.Match[str]]:
    """The first match of a regular expression in every line that has one; the table learns where the reading is."""
    lines = CleanLines(blocks)
    table.where = lambda: lines.number
    return filter(None, map(re.compile(title).search, lines))


def printed_dicts(
    blocks: Iterator[bytes], table: StepTable, title: str
) -> Iterator[tuple[re.Match[str], dict[str, float]]]:
    """The numbers of every printed dict that a line has behind a title; one without an end is noted as damage.

    Args:
        blocks: blocks of whole lines.
        table: learns where the reading is.
        title: regular expression up to and with the brace that opens the dict.
    """
    for found in found_lines(blocks, table, title):
        numbers = numbers_of_dict(found.string, found.end() - 1)
        if numbers is None:
            table.damage(table.where())
        else:
            yield found, numbers


@dataclass(frozen=True)
class StepDicts:
    """How a console log prints the metrics of a step, as one dict in a line."""

    title: str
    """Regular expression of what stands before the dict, with the brace that opens it; its group is the step."""
    clock: str | None = None
    """The metric of the lines whose stamps time the steps; None where all do."""

    def read(self, blocks: Iterator[bytes], table: StepTable) -> None:
        """Put the steps of blocks of whole lines into a table."""
        clock = StepClock()
        for found, metrics in printed_dicts(blocks, table, self.title):
            step = int(found[1])
            if self.clock is None or self.clock in metrics:
                metrics |= clock.since_last(step, found.string)
            table.add(step, metrics)


class StepClock:
    """Times steps by the stamps that the log's own clock puts before lines."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._seconds = 0.0

    def since_last(self, step: int, line: str) -> dict[str, float]:
        """Seconds between a step's line and the one of the step before, as a metric; empty where not known."""
        seconds = stamp(line)
        if seconds is None:
            return {}
        follows = self._step is not None and step == self._step + 1
        gap = seconds - self._seconds
        if gap < 0 and seconds < DAY_S:
            gap += DAY_S
        self._step, self._seconds = step, seconds
        return {STEP_SECONDS: gap} if follows and 0 < gap <= MOST_SECONDS else {}


def stamp(line: str) -> float | None:
    """Seconds of the first time stamp in a line; of the day where it has no date."""
    for pattern, before, form in STAMPS:
        if found := pattern.search(line):
            with suppress(ValueError):
                moment = datetime.strptime(before + found[0], form + ".%f" if "." in found[0] else form)
                return (moment - EPOCH).total_seconds()
    return None
