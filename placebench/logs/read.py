"""Reading logs: from a path to a tidy frame, the format found by the content or forced by its name."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pandas as pd

from placebench.errors import UsageError
from placebench.logs.flags import Flag, seconds_flags, table_flags, trap_flags
from placebench.logs.formats import Dialect, LogFormat
from placebench.logs.progress import telling
from placebench.logs.registry import DIALECTS, FORMATS, dialect_of, format_named, format_of
from placebench.logs.source import Survey, whole_lines
from placebench.logs.table import DamagedLogError, StepTable
from placebench.logs.tensorboard import TENSORBOARD
from placebench.logs.timing import Timings, found_instead, names_of_timings, timings_of
from placebench.spec.text import format_bytes, plural

# With the second in which the file was opened; what follows names the host and the process.
EVENT_FILE = re.compile(r"events\.out\.tfevents\.([0-9]{1,18})")
# A log that grows may come line by line, where some formats show by two lines. This stands for those before the two: a
# table has its header where the log begins.
EARLIER = b"...\n"


@dataclass(frozen=True)
class Log:
    """What was read from one file, or from a folder of event files."""

    path: Path
    """The file, or the folder."""
    format: LogFormat
    """The format of the log."""
    table: StepTable
    """Steps and metrics of the log."""

    @property
    def dialect(self) -> Dialect:
        """What its metrics mean."""
        return dialect_of(self.table.names) if self.format.dialect is None else self.format.dialect

    @property
    def flags(self) -> tuple[Flag, ...]:
        """What a reader of its numbers must know."""
        odd = seconds_flags(self.path, self.table, self.dialect.timing)
        return (*trap_flags(self.dialect, self.table.names), *table_flags(self.table), *odd)

    @property
    def found_instead(self) -> str:
        """What it has where it has no timings."""
        odd = [flag.text for flag in seconds_flags(self.path, self.table, self.dialect.timing)]
        return odd[0] if odd else found_instead(self.table.count_steps(), self.table.names)

    @property
    def metrics(self) -> pd.DataFrame:
        """A row a step and a column a metric, as `StepTable.wide` gives them.

        Raises:
            UsageError: the metrics are too many for one table.
        """
        try:
            return self.table.wide()
        except DamagedLogError as error:
            raise UsageError(f"{self.path}: {self.format.title}: {error}") from None

    def timings(self) -> Timings:
        """What its steps took, by the rules of the log's framework.

        Raises:
            UsageError: there are no timings; the message says what there is.
        """
        timings = timings_of(self.metrics, self.dialect.timing)
        if timings is None:
            looked_for = names_of_timings(self.dialect.timing)
            raise UsageError(f"{self.path}: no timings in seconds ({looked_for}): {self.found_instead}")
        return timings


def scan_log(path: Path, *, log_format: str | None = None, keep: Callable[[str], bool] | None = None) -> Log:
    """Read a log into a `StepTable`, in one pass and in the memory of what is kept.

    Args:
        path: a log, plain, gzip or zstd; or a folder, which stands for the TensorBoard event files in it. They are one
            log, in the order of their times: what a later one does again is undone in those before.
        log_format: name of the format; None finds it by the content.
        keep: which metrics to keep, by name; None keeps all.

    Raises:
        UsageError: the file cannot be read, or holds no steps, or those of two runs in turn; the message says
            what and where.
    """
    wanted = None if log_format is None else format_named(log_format)
    table = StepTable(keep)
    if wanted in (None, TENSORBOARD) and (events := _event_files(path)):
        return _scan_events(path, events, table)
    survey = Survey(lambda: table.lines > 0)
    is_binary = TENSORBOARD.begins if wanted is None else lambda head: wanted.binary
    with telling(lambda: _state(path, survey, table)):
        found, blocks = recognize(whole_lines(path, is_binary, survey), wanted)
        if found:
            fill_table(path, found, blocks, table)
    if found:
        table.open_end = survey.open_end and not found.closed
        if not table.lines and table.damages:
            every = "its only step is" if table.damages == 1 else f"all its {table.damages:,} steps are"
            raise UsageError(f"{path}: {found.title}: {every} cut off or torn apart: {table.damaged_at}")
    if found is None or not table.lines:
        looked_for = wanted.title if wanted else f"any of {', '.join(known.name for known in FORMATS)}"
        raise UsageError(f"{path}: no training steps (looked for: {looked_for}): {survey}")
    return Log(path, found, table)


def recognize(blocks: Iterator[bytes], wanted: LogFormat | None) -> tuple[LogFormat | None, Iterator[bytes]]:
    """The format of a log's blocks, `wanted` or else by their content, and the blocks that are to be read as it.

    Returns:
        The format, None where no step of any format begins; and the blocks from that on in which a step begins, its
        first line too where that came in the block before.
    """
    if wanted:
        return wanted, blocks
    earlier, last = b"", b""
    for block in blocks:
        if found := format_of(block):
            return found, chain([block], blocks)
        if found := format_of(earlier + last + block):
            return found, chain([last + block], blocks)
        before, _, last = (last + block).removesuffix(b"\n").rpartition(b"\n")
        last += b"\n"
        earlier = earlier or (EARLIER if before.strip() else b"")
    return None, blocks


def fill_table(
    path: Path, found: LogFormat, blocks: Iterator[bytes], table: StepTable, *, is_printed: bool = False
) -> None:
    """Put the steps of a log's blocks into a table.

    Args:
        path: the log, for messages.
        found: its format.
        blocks: its content, as `whole_lines` gives it.
        table: what to fill; per step and metric the last value printed wins.
        is_printed: whether it is what a job prints, with whatever else it prints.

    Raises:
        UsageError: the log breaks its format's rules, or holds the steps of two runs in turn; with the line.
    """
    try:
        read = (is_printed and found.read_printed) or found.read
        read(blocks, table)
    except DamagedLogError as error:
        raise UsageError(f"{path}: {found.title}: {error}") from None


def launch_names(paths: Sequence[Path]) -> tuple[str, ...]:
    """A short name for each log: the file's name, with as many folders, or its suffix, as distinguish them."""
    stems = [
        (*path.parent.parts, path.name.removesuffix(".gz").removesuffix(".zst").rsplit(".", 1)[0] or path.name)
        for path in paths
    ]
    for parts in (stems, [path.parts for path in paths]):
        for depth in range(1, max(map(len, parts), default=0) + 1):
            names = tuple("/".join(part[-depth:]) for part in parts)
            if len(set(names)) == len(set(paths)):
                return names
    return tuple(map(str, paths))


def is_timing(metric: str) -> bool:
    """Whether a metric is a timing in any format: the format is not known before the log is read."""
    return any(known.timing.phase(metric) is not None for known in DIALECTS)


def _event_files(path: Path) -> list[Path]:
    """The event files in a folder, the first one written first; none where the path is no such folder."""
    try:
        names = [(EVENT_FILE.search(file.name), file) for file in path.iterdir()] if path.is_dir() else []
    except (OSError, ValueError):
        # Not to be looked into: the message comes where it is read.
        return []
    return [file for _, file in sorted((int(found[1]), file) for found, file in names if found)]


def _scan_events(path: Path, events: Sequence[Path], table: StepTable) -> Log:
    """Read the event files of a folder as one log."""
    for file in events:
        fill_table(file, TENSORBOARD, whole_lines(file, lambda head: True), table)
    if not table.lines:
        raise UsageError(f"{path}: no training steps in its {plural(len(events), 'TensorBoard event file')}")
    return Log(path, TENSORBOARD, table)


def _state(path: Path, survey: Survey, table: StepTable) -> str:
    """What the reading of a log is at."""
    steps = plural(table.lines, "step") if table.lines else "no step"
    return f"reading {path}: {format_bytes(survey.size)}, {steps} so far"
