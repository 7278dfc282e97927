r"""verl's console log, every version: `step:3 - timing_s/gen:1.234 - critic/kl:np.float64(0.1) - …`; its file logger.

The step line may stand anywhere in a line: behind a Ray prefix with or without colors, and before whatever
another process wrote at its end. Versions print numbers with three decimals, as Python repr or as numpy
scalars. Almost all lines of a log have the same metrics, so each such layout is compiled once into one regular
expression that takes a whole line apart; a line that fits none is taken apart piece by piece.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from placebench.logs.formats import Count, Dialect, LogFormat, Tokens, Trap
from placebench.logs.jsonl import jsonl_log
from placebench.logs.layout import LineLayout
from placebench.logs.table import StepTable
from placebench.logs.timing import VERL_TIMING

MARK = b"step:"
SEPARATOR = b" - "
STEP = re.compile(rb"step:([0-9]{1,18}) - ")
# What may stand before a step line: nothing, blanks, the bracket that ends a prefix or progress bar, a color code.
BEFORE_STEP = re.compile(rb"(?:^|[\s)\]]|\x1b\[[0-9;]*[A-Za-z])\Z")
BEFORE_STEP_BYTES = 16
BEFORE_MOST = (b"\n", b" ")

NUMBER = rb"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|(?:nan|[-+]?inf|True|False)(?!\w)"
# `numpy` is the wrapper before the number, such as `np.float64(`.
VALUE = rb":(?P<numpy>np\.\w+\()?(?P<number>" + NUMBER + rb")(?(numpy)\))"
# The key ends at the last colon: names of data sources may hold colons and blanks.
METRIC = re.compile(rb"(?P<key>\S.*)" + VALUE, re.DOTALL)
# The key ends at the first colon that has a number behind it, and more words follow the number.
METRIC_AND_MORE = re.compile(rb"(?P<key>[^\s:].*?)" + VALUE + rb"(?![.0-9_])(?=.*\s)", re.DOTALL)
# Text of another process at the end of a step line: a color code, a progress bar, a Ray prefix or Ray's count.
GLUED = re.compile(rb"\x1b|\r|\([\w.:]+ pid=[0-9]+|\s\[repeated [0-9]+x ")

# Where the rest of a torn line is looked for, and how many lines are kept until it shows whether they are whole.
REST_BYTES = 1 << 14
DOUBTS = 64

FAST_LAYOUTS = 16
# Numbers with more digits than this are turned into floats sooner by Arrow, many at once, than one by one.
LONG_NUMBER = 10
FAST_NUMBER = rb"(?:[-+.0-9eE]+|nan|-?inf)"


def step_begins(block: bytes) -> bool:
    """Whether a step line begins in a block."""
    return _next_step(block, 0, len(block)) is not None


def read_steps(blocks: Iterator[bytes], table: StepTable) -> None:
    """Put the step lines of blocks of whole lines into a table."""
    reader = _Reader(table)
    for block in blocks:
        reader.read(block)


def _next_step(block: bytes, position: int, end: int) -> re.Match[bytes] | None:
    """The next place where a step line begins; `timing_s/step:1.2` and `global_step:9 - ` are none."""
    while (position := block.find(MARK, position, end)) >= 0:
        found = STEP.match(block, position, end)
        # Nearly every step line begins a line, or stands behind a blank.
        if found and (
            block[position - 1 : position] in BEFORE_MOST
            or BEFORE_STEP.search(block[max(0, position - BEFORE_STEP_BYTES) : position])
        ):
            return found
        position += len(MARK)
    return None


class _Waiting(NamedTuple):
    """A step line that is taken apart and not stored yet."""

    layout: LineLayout
    step: int
    begin: re.Match[bytes]
    numbers: re.Match[bytes]


@dataclass
class _Doubt:
    """A step line that may be torn apart: another process wrote into it, or it came in two parts."""

    layout: LineLayout
    """LineLayout of the line's metrics."""
    step: int
    """Step of the line."""
    names: tuple[bytes, ...]
    """Names of the metrics, as printed."""
    rest: bytes
    """What stands behind the last of them, without another process's text."""
    behind: bytes
    """The text between the line and the next step line."""
    is_open: bool
    """Whether the text behind goes on in the next block."""
    place: int
    """Where the line stands in its block."""
    line: int | None = None
    """Number of the line, once its block is done."""

    def is_torn(self, layouts: list[tuple[bytes, ...]]) -> bool:
        """Whether it ends within a line of one of the layouts, and the text that follows says so."""
        for names in layouts:
            missing = names[len(self.names) :]
            if not missing or names[: len(self.names)] != self.names:
                continue
            if self.rest and (missing[0] + b":").startswith(self.rest):
                return True
            if missing[-1] + b":" in self.behind:
                return True
        return False


class _Reader:
    """Takes step lines apart; knows the layouts that it has met."""

    def __init__(self, table: StepTable) -> None:
        self._table = table
        self._met: set[tuple[tuple[bytes, bytes], ...]] = set()
        self._fast: list[tuple[re.Pattern[bytes], LineLayout, bool]] = []
        self._learned: list[tuple[bytes, ...]] = []
        self._doubts: list[_Doubt] = []
        self._block = b""
        self._lines_before = 0
        self._line_ends = _line_ends(b"")
        self._position = 0
        self._waiting: list[_Waiting] = []
        table.where = self._line

    def read(self, block: bytes) -> None:
        """Put the step lines of a block of whole lines into the table."""
        self._lines_before += len(self._line_ends)
        self._line_ends = _line_ends(block)
        self._block = block
        if self._doubts and self._doubts[-1].is_open:
            last = self._doubts[-1]
            behind, is_open = _text_behind(block, 0)
            last.behind += behind
            last.is_open = is_open and len(last.behind) < REST_BYTES
        position = 0
        while (found := _next_step(block, position, len(block))) is not None:
            position = self._take(found)
        self._flush()
        self._settle()

    def _line(self) -> int:
        """The number of the line of the step that is being taken."""
        return self._lines_at([self._position])[0]

    def _lines_at(self, places: list[int]) -> list[int]:
        """The numbers of the lines in which places of the block are."""
        found: list[int] = (self._line_ends.searchsorted(places) + (self._lines_before + 1)).tolist()
        return found

    def _take(self, found: re.Match[bytes]) -> int:
        """Store the step line that begins at `found`; returns where to look for the next."""
        block = self._block
        for place, (pattern, layout, together) in enumerate(self._fast):
            line = pattern.match(block, found.end())
            if line is None:
                continue
            waiting = _Waiting(layout, int(found[1]), found, line)
            if self._waiting and (not together or waiting.step <= self._waiting[-1].step):
                self._flush()
            if together:
                self._waiting.append(waiting)
            else:
                self._store_singly([waiting])
            if place:
                self._fast.insert(0, self._fast.pop(place))
            return line.end()
        self._flush()
        self._position = found.end()
        return self._take_slowly(found)

    def _flush(self) -> None:
        """Store the lines that wait; their steps rise, so they are turned into numbers together."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        if not self._table.rises_to(waiting[0].step):
            self._store_singly(waiting)
            return
        try:
            # Arrow's parser rounds as Python's does, in a third of the time; what it does not take, Python may.
            printed = pa.array([number for line in waiting for number in line.numbers.groups()], pa.binary())
            values = printed.cast(pa.string()).cast(pa.float64()).to_numpy()
        except pa.ArrowInvalid:
            self._store_singly(waiting)
            return
        first = 0
        for _, run in groupby(waiting, key=lambda line: id(line.layout)):
            lines = list(run)
            last = first + len(lines) * len(lines[0].layout.kept)
            numbers = self._lines_at([line.begin.end() for line in lines])
            self._table.add_rows(lines[0].layout, [line.step for line in lines], numbers, values[first:last])
            first = last

    def _store_singly(self, waiting: list[_Waiting]) -> None:
        for line in waiting:
            self._position = line.begin.end()
            try:
                values = list(map(float, line.numbers.groups()))
            except ValueError:
                self._take_slowly(line.begin)
            else:
                self._table.add_row(line.layout, line.step, values)

    def _take_slowly(self, found: re.Match[bytes]) -> int:
        block = self._block
        start, end = found.end(), block.find(b"\n", found.end())
        following = _next_step(block, start, end)
        if following is not None:
            end = following.start()
        self._table.refuse_names(block.count(SEPARATOR, start, end))
        metrics, whole, rest = _metrics(block[start:end])
        if not metrics:
            return end
        layout = self._table.layout([metric["key"].decode("utf-8", "replace") for metric in metrics])
        names = tuple(metric["key"] for metric in metrics)
        doubt = _Doubt(layout, int(found[1]), names, rest, *_text_behind(block, end), start)
        if doubt.is_torn(self._learned):
            self._table.damage(self._line())
            return end
        values = [_number(metrics[place]["number"]) for place in layout.kept]
        self._table.add_row(layout, doubt.step, values)
        if len(self._doubts) < DOUBTS:
            self._doubts.append(doubt)
        if whole and following is None:
            self._learn(metrics, layout)
        return end

    def _settle(self) -> None:
        """Leave out the lines of a block that have turned out to be torn; what may still be either waits."""
        waiting = []
        for doubt in self._doubts:
            is_torn = doubt.is_torn(self._learned)
            if not is_torn and self._learned and not doubt.is_open:
                continue
            doubt.line = self._lines_at([doubt.place])[0] if doubt.line is None else doubt.line
            if is_torn:
                self._table.leave_out(doubt.layout, doubt.step, doubt.line)
            else:
                waiting.append(doubt)
        self._doubts = waiting

    def _learn(self, metrics: list[re.Match[bytes]], layout: LineLayout) -> None:
        """Compile a layout when it is met for the second time."""
        shape = tuple((metric["key"], metric["numpy"] or b"") for metric in metrics)
        if shape not in self._met:
            self._met.add(shape)
        elif len(self._fast) < FAST_LAYOUTS:
            kept = set(layout.kept)
            digits = sum(len(metrics[place]["number"]) for place in layout.kept)
            together = digits > LONG_NUMBER * len(layout.kept)
            pieces = [
                re.escape(key + b":" + numpy)
                + (b"(" + FAST_NUMBER + b")" if place in kept else FAST_NUMBER)
                + (rb"\)" if numpy else b"")
                for place, (key, numpy) in enumerate(shape)
            ]
            self._fast.insert(0, (re.compile(SEPARATOR.join(pieces) + rb"(?=\s*\n)"), layout, together))
            self._learned.append(tuple(key for key, _ in shape))


def _line_ends(block: bytes) -> npt.NDArray[np.intp]:
    """Where the lines of a block end, in order."""
    return np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))


def _text_behind(block: bytes, start: int) -> tuple[bytes, bool]:
    """The text from a place to the next step line, as far as it is of use, and whether it goes on in the next block."""
    end = min(start + REST_BYTES, len(block))
    found = _next_step(block, start, end)
    return block[start : found.start() if found else end], found is None and end == len(block)


def _metrics(line: bytes) -> tuple[list[re.Match[bytes]], bool, bytes]:
    """The metrics of a step line after its `step:N - `, whether the line is nothing else, and what stands behind them.

    A piece without a number is passed over. The line ends at the first piece that can only be, or goes over into,
    another process's text. A line that does not begin like a metric is prose: `step:1 - then add:5 apples`.
    """
    metrics: list[re.Match[bytes]] = []
    pieces = line.rstrip().split(SEPARATOR)
    all_clean = True
    rest = b""
    for place, piece in enumerate(pieces):
        metric = _metric(piece, last=place == len(pieces) - 1)
        clean = metric is not None and metric.end() == len(piece)
        rest = _own_text(piece) if metric is None else b""
        if not metrics and not (metric and (b"/" in metric["key"] or (clean and b" " not in metric["key"]))):
            return [], False, b""
        if metric is not None:
            metrics.append(metric)
        all_clean = all_clean and clean
        if not clean and (metric is not None or b" " in piece):
            break
    return metrics, all_clean, rest


def _metric(piece: bytes, *, last: bool) -> re.Match[bytes] | None:
    """The metric at the start of a piece of a line, in the groups of `METRIC`."""
    text = _own_text(piece)
    found = METRIC.fullmatch(text)
    if found is None or (last and b" " in found["key"]):
        # `a/min:0.25INFO at 127.0.0.1:80`: the last colon is another process's.
        found = METRIC_AND_MORE.match(text) or found
    return found


def _own_text(piece: bytes) -> bytes:
    """A piece of a step line without another process's text at its end."""
    glued = GLUED.search(piece)
    return piece[: glued.start()].rstrip() if glued else piece


def _number(text: bytes) -> float:
    return float({b"True": 1, b"False": 0}.get(text, text))


# One step off, and the separate asynchronous mode. The fully asynchronous trainer counts all devices.
ROLLOUT_APART = (
    r"^timing_s/(?:generate_async|wait_prev_gen|sync_rollout_weights|switch_wait|switch_to_trainer|switch_to_rollout)$"
    r"|^separate_async/"
)
VERL_DIALECT = Dialect(
    framework="verl",
    marks=("timing_s/", "timing/gen", "timing/update_actor", "timing/ref", "timing/adv"),
    timing=VERL_TIMING,
    tokens=Tokens(("perf/total_num_tokens",), Count.STEP, reported="perf/throughput", rollout_apart=ROLLOUT_APART),
    traps=(
        Trap(
            "verl-gen-polls",
            "with trainer.use_v1, the default since 0.9, timing_s/gen is measured by polling every 2 s",
            r"^training/off_policy/",
        ),
    ),
)
VERL = LogFormat("verl", "console log of verl", step_begins, read_steps, VERL_DIALECT, closed=False)
# Of `trainer.logger=[file]`: `{"step": 1, "data": {"timing_s/gen": 1.2, …}}` a line.
VERL_JSONL = jsonl_log("verl-jsonl", "JSONL of verl's file logger", "data", VERL_DIALECT)
