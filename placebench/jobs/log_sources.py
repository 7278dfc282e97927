"""The logs of a job of the user's under way: which of them has its steps, and when each of these had ended."""

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from placebench.errors import UsageError
from placebench.jobs.log_files import found_files
from placebench.logs.follow import GrowingLog
from placebench.logs.read import Log
from placebench.record.folder import Trial
from placebench.record.job_record import JobLaunch
from placebench.spec.reading import FileState

_POLL_S = 0.05
# A step that may have more lines to come is whole when none has come for so long.
SETTLED_S = 1.0
# Steps that are printed and not in the files where they were looked for are taken after so long, and so are spans of
# steps of which no log says anything.
PATIENCE_S = 5.0
# What completes a step is not in a log that has so many without it: generation is not as far ahead of training.
_MOST_AHEAD = 8


class LogSource:
    """A log under way.

    Args:
        growing: what reads it.

    Attributes:
        ended: when each step had, by its number in the log; seconds of the monotonic clock.
        error: why it cannot be read on; None while it can.
    """

    def __init__(self, growing: GrowingLog) -> None:
        self.growing = growing
        self.ended: dict[int, float] = {}
        self.error: UsageError | None = None
        self._begun: dict[int, float] = {}
        self._lines = 0
        self._changed = 0.0
        self._tells_ends = False

    def look(self, now: float, *, is_all: bool = False) -> None:
        """Note which steps have come.

        Args:
            now: on the monotonic clock.
            is_all: whether nobody writes any longer.
        """
        try:
            log: Log | None = self.growing.log
        except UsageError as error:
            self.error = error
            return
        if log is None or (log.table.lines == self._lines and not is_all):
            return
        self._lines, self._changed = log.table.lines, now
        steps, last = log.table.steps(), log.format.last_metric
        for step in steps:
            self._begun.setdefault(step, now)
        complete = log.table.steps(last) if last else set[int]()
        self._tells_ends = bool(complete)
        if complete:
            for step in complete:
                self.ended.setdefault(step, now)
        elif last is None or is_all or len(steps) > _MOST_AHEAD:
            self.ended |= self._begun

    @property
    def is_of_anything(self) -> bool:
        """Whether its format may be that of any text that a job prints, and not of its steps."""
        log = self.growing.log
        return log is not None and log.format.dialect is None

    def whole(self, now: float) -> int:
        """How many of the steps are whole: all but the last, where it may have more lines to come."""
        if self._tells_ends:
            return len(self.ended)
        # Each had one line so far, or no more has come for a while.
        is_settled = 1 < len(self.ended) == self._lines or now - self._changed > SETTLED_S
        return len(self.ended) - (not is_settled)


class LogSources:
    """The logs of a launch; to be left when nobody writes any longer.

    Args:
        trial: the launch's folder.
        job: what it starts.
        before: what was in its log files before it began, by their paths.
        lock: to be held by whoever looks at a log.
    """

    def __init__(self, trial: Trial, job: JobLaunch, before: Mapping[str, FileState], lock: threading.Lock) -> None:
        self._printed, self._job, self._before, self._lock = trial.log, job, before, lock
        self._sources: dict[Path, LogSource] = {}
        self._open = ExitStack()

    def close(self) -> None:
        """Read no more."""
        self._open.close()

    def find(self) -> None:
        """Begin to read what has come into being."""
        for path in (*found_files(self._job.log_files), self._printed):
            if path not in self._sources and path.is_file():
                is_told = path != self._printed or not self._job.log_files
                growing = GrowingLog(
                    path,
                    self._lock,
                    log_format=self._job.log_format if is_told else None,
                    poll_s=_POLL_S,
                    before=self._before.get(str(path)),
                    is_printed=path == self._printed,
                )
                self._sources[path] = LogSource(self._open.enter_context(growing))

    def look(self, now: float) -> None:
        """Note which steps have come; the lock is held."""
        for source in self._sources.values():
            source.look(now)

    def finish(self) -> None:
        """Read what is left, when nobody writes any longer; it had come before now, when the log last grew."""
        for source in self._sources.values():
            source.growing.finish()
            source.look(source.growing.grown, is_all=True)

    def refuse_errors(self, chosen: LogSource | None, *, elsewhere: bool) -> None:
        """See that the logs can be read on.

        Args:
            chosen: the one that steps are taken from; None while that is not known.
            elsewhere: whether steps may stand elsewhere than in what the job prints, which need be no log then.

        Raises:
            UsageError: they cannot.
        """
        for path, source in self._sources.items():
            if source.error and (source is chosen or path != self._printed or not elsewhere):
                raise source.error

    def choose(self, now: float, *, ends: bool) -> LogSource | None:
        """The log that steps are taken from: a file that was named, or what the job prints if that says more."""
        files = [source for path, source in self._sources.items() if path != self._printed and source.ended]
        printed = self._sources.get(self._printed)
        if files or printed is None or printed.error or not printed.ended:
            return files[0] if files else None
        is_early = printed.is_of_anything or now - min(printed.ended.values()) < PATIENCE_S
        return None if self._job.log_files and is_early and not ends else printed
