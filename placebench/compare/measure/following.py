"""Sides whose logs still grow: what they measured so far, again and again."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from placebench.compare.measure.log_sides import is_of_use, side_of_logs
from placebench.compare.read.sources import ReadingOptions, Source, check_sources, each, log_names
from placebench.compare.side import Side
from placebench.errors import UsageError
from placebench.logs.follow import GrowingLog
from placebench.logs.read import Log
from placebench.logs.run import run_of_logs


class FollowedSides:
    """The sides of growing logs.

    Args:
        sources: words of the command line, logs all of them.
        options: how logs are read.
        logs: every file's growing log.
        lock: what the logs hold while they work on a block.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        options: ReadingOptions,
        logs: dict[Path, GrowingLog],
        lock: threading.Lock,
    ) -> None:
        self._sources, self._options, self._logs, self._lock = sources, options, logs, lock
        self._names = log_names(sources)

    @property
    def steps(self) -> int:
        """Step lines read so far; it tells whether anything is new."""
        return sum(log.steps for log in self._logs.values())

    def read(self) -> tuple[list[Side], list[str]]:
        """The sides that have measured steps, and what is waited for of the others.

        Raises:
            UsageError: a log cannot be read on, or its files do not go together.
        """
        sides, waiting = [], []
        for place, source in enumerate(self._sources):
            with self._lock:
                found = self._side(place, source)
            if isinstance(found, Side):
                sides.append(found)
            else:
                waiting.append(found)
        return sides, waiting

    def _side(self, place: int, source: Source) -> Side | str:
        runs = []
        for files in source.launches:
            logs: list[Log] = []
            for path in files:
                log = self._logs[path].log
                if log is None:
                    return f"{path} has no step yet"
                logs.append(log)
            devices, ranks = each(self._options.devices, place), each(self._options.learner_ranks, place)
            runs.append(run_of_logs(tuple(logs), devices=devices, learner_ranks=ranks))
        steps = [0 if run.timings is None else len(run.timings.steps) for run in runs]
        if min(steps) <= self._options.warmup_steps:
            return f"{self._names[place]} has {min(steps)} steps; the first {self._options.warmup_steps} are warm-up"
        return side_of_logs(
            runs,
            name=self._names[place],
            devices=each(self._options.devices, place),
            warmup_steps=self._options.warmup_steps,
        )


@contextmanager
def follow_sides(sources: Sequence[Source], options: ReadingOptions) -> Iterator[FollowedSides]:
    """Read growing logs for as long as it is entered.

    Raises:
        UsageError: a word is no log, or a log cannot be read.
    """
    check_sources(sources, options)
    for source in sources:
        if source.run is not None:
            raise UsageError(
                f"--follow {source.run}: a run's folder is no log: follow trials/<trial>/steps.jsonl in it"
            )
    lock = threading.Lock()
    files = {path for source in sources for launch in source.launches for path in launch}
    with ExitStack() as stack:
        logs = {path: GrowingLog(path, lock, log_format=options.log_format, keep=is_of_use) for path in sorted(files)}
        for log in logs.values():
            stack.enter_context(log)
        yield FollowedSides(sources, options, logs, lock)
