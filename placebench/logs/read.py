"""Reading logs: from a path to a tidy frame, the format found by the content or forced by its name."""

import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pandas as pd

from placebench.errors import UsageError
from placebench.logs.flags import Flag, table_flags, trap_flags
from placebench.logs.formats import Dialect, LogFormat
from placebench.logs.registry import DIALECTS, FORMATS, dialect_of, format_named, format_of
from placebench.logs.source import Survey, whole_lines
from placebench.logs.table import DamagedLogError, StepTable
from placebench.logs.tensorboard import TENSORBOARD
from placebench.logs.timing import found_instead, timing_frame

# With the second in which the file was opened; what follows names the host and the process.
EVENT_FILE = re.compile(r"events\.out\.tfevents\.([0-9]{1,18})")


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
        return (*trap_flags(self.dialect, self.table.names), *table_flags(self.table))

    def timings(self, launch: str | None = None) -> pd.DataFrame:
        """The timings as `timing_frame` gives them, by the rules of the log's framework.

        Args:
            launch: what to call the log in the frame; the file's name without its suffix by default.

        Raises:
            UsageError: there are no timings; the message says what there is.
        """
        frame = self.table.frame(launch_names([self.path])[0] if launch is None else launch)
        if frame.empty:
            raise UsageError(
                f"{self.path}: no timing lines: {found_instead(self.table.count_steps(), self.table.names)}"
            )
        try:
            return timing_frame(frame, self.dialect.timing)
        except UsageError as error:
            raise UsageError(f"{self.path}: {error}") from None


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
    if wanted in (None, TENSORBOARD) and (events := _event_files(path)):
        return _scan_events(path, events, StepTable(keep))
    survey = Survey()
    is_binary = TENSORBOARD.begins if wanted is None else lambda head: wanted.binary
    table = StepTable(keep)
    found = fill_table(path, survey.watch(whole_lines(path, is_binary, survey.note_open_end)), table, wanted)
    if found:
        table.open_end = survey.open_end and not found.closed
        if not table.lines and table.damages:
            one, lines = table.damages == 1, ", ".join(f"{line:,}" for line in table.damaged)
            every = "its only step is" if one else f"all its {table.damages:,} steps are"
            more = ", …" if table.damages > len(table.damaged) else ""
            raise UsageError(f"{path}: {found.title}: {every} cut off or torn apart: at line {lines}{more}")
    if found is None or not table.lines:
        looked_for = wanted.title if wanted else f"any of {', '.join(known.name for known in FORMATS)}"
        raise UsageError(f"{path}: no training steps (looked for: {looked_for}): {survey}")
    return Log(path, found, table)


def _event_files(path: Path) -> list[Path]:
    """The event files in a folder, the first one written first; none where the path is no such folder."""
    try:
        names = [(EVENT_FILE.search(file.name), file) for file in path.iterdir()] if path.is_dir() else []
    except (OSError, ValueError):
        # Not to be looked into: the message comes where it is read.
        return []
    return [file for _, file in sorted((int(found[1]), file) for found, file in names if found)]


def _scan_events(folder: Path, files: Sequence[Path], table: StepTable) -> Log:
    for file in files:
        fill_table(file, whole_lines(file, lambda head: True), table, TENSORBOARD)
    if not table.lines:
        raise UsageError(
            f"{folder}: no training steps in its {len(files)} TensorBoard event file{'s' * (len(files) > 1)}"
        )
    return Log(folder, TENSORBOARD, table)


def fill_table(
    path: Path,
    blocks: Iterator[bytes],
    table: StepTable,
    wanted: LogFormat | None,
    on_format: Callable[[LogFormat], None] = lambda found: None,
) -> LogFormat | None:
    """Put the steps of a log's blocks into a table.

    Args:
        path: the log, for messages.
        blocks: its content, as `whole_lines` gives it.
        table: what to fill.
        wanted: the format; None finds it by the content.
        on_format: is called with the format before the first step is read.

    Returns:
        The format; None where no step of any format begins.

    Raises:
        UsageError: the log breaks its format's rules, or holds the steps of two runs in turn; with the line.
    """
    blocks = _without_mark(blocks)
    found = wanted
    first: Iterator[bytes] = iter(())
    if found is None:
        for block in blocks:
            found = format_of(block)
            if found:
                first = iter((block,))
                break
    if found is None:
        return None
    on_format(found)
    try:
        found.read(chain(first, blocks), table)
    except DamagedLogError as error:
        raise UsageError(f"{path}: {found.title}: {error}") from None
    return found


def _without_mark(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Blocks without the sign of UTF-8 that editors and shells put first, which would hide the first step."""
    for first in blocks:
        yield first.removeprefix(BOM_UTF8)
        break
    yield from blocks


def read_log(
    path: Path,
    *,
    launch: str | None = None,
    log_format: str | None = None,
    keep: Callable[[str], bool] | None = None,
) -> pd.DataFrame:
    """Read a log into a tidy frame; see `scan_log`. Per step and metric the last value printed wins.

    Args:
        path: a log, plain, gzip or zstd.
        launch: what to call it in the frame; the file's name without its suffix by default.
        log_format: name of the format; None finds it by the content.
        keep: which metrics to keep, by name; None keeps all.

    Returns:
        Columns launch (str), step (int64), metric (str) and value (float64), by step.

    Raises:
        UsageError: the file cannot be read, or holds no steps, or those of two runs in turn; the message says
            what and where.
    """
    log = scan_log(path, log_format=log_format, keep=keep)
    return log.table.frame(launch_names([path])[0] if launch is None else launch)


def read_timings(path: Path, *, launch: str | None = None, log_format: str | None = None) -> pd.DataFrame:
    """Read the timings of a log and nothing else; see `Log.timings`.

    Raises:
        UsageError: the file cannot be read or has no timings; the message says what it holds.
    """
    return scan_log(path, log_format=log_format, keep=is_timing).timings(launch)


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
    return any(known.timing.is_timing(metric) for known in DIALECTS)
