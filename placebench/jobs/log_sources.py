"""The logs of a job of the user's under way: which of them has its steps, and when each of these had ended."""

import threading
from contextlib import ExitStack
from pathlib import Path

from placebench.jobs.log_files import found_files
from placebench.logs.follow import GrowingLog
from placebench.logs.read import Log
from placebench.record.folder import Trial
from placebench.record.job_record import JobLaunch

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
    """

    def __init__(self, growing: GrowingLog) -> None:
        self.growing = growing
        self.ended: dict[int, float] = {}
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
        log: Log | None = self.growing.log
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
        lock: to be held by whoever looks at a log.
    """

    def __init__(self, trial: Trial, job: JobLaunch, lock: threading.Lock) -> None:
        self._printed, self._job, self._lock = trial.log, job, lock
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
                    before=self._job.logs_before.get(str(path)),
                )
                self._sources[path] = LogSource(self._open.enter_context(growing))

    def look(self, now: float) -> None:
        """Note which steps have come; the lock is held.

        Raises:
            UsageError: a log cannot be read on.
        """
        for source in self._sources.values():
            source.look(now)

    def finish(self, now: float) -> None:
        """Read what is left, when nobody writes any longer.

        Raises:
            UsageError: a log cannot be read on.
        """
        for source in self._sources.values():
            source.growing.finish()
            source.look(now, is_all=True)

    def choose(self, now: float, *, ends: bool) -> LogSource | None:
        """The log that steps are taken from: a file that was named, or what the job prints if that says more."""
        files = [source for path, source in self._sources.items() if path != self._printed and source.ended]
        printed = self._sources.get(self._printed)
        if files or printed is None or not printed.ended:
            return files[0] if files else None
        waits = self._job.log_files and not ends and now - min(printed.ended.values()) < PATIENCE_S
        return None if waits else printed
