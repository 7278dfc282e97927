"""The steps of a job of the user's, read from its logs while they grow, as rows of `steps.jsonl` and spans.

A row has the log's own metrics, and besides them what a run is measured by: `timing_s/step`, the seconds of the step,
and `perf/total_num_tokens`, its real tokens. When a step ended is when its line was seen; where the log does not time
its steps, a step lasts from the line before. A loop of the user's own that logs none has those that it marks by spans.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Any

from placebench.errors import LaunchError
from placebench.jobs.adapters.command import COMMAND
from placebench.jobs.attached import AttachedSpans, Window
from placebench.jobs.log_figures import LogFigures
from placebench.jobs.log_sources import PATIENCE_S, SETTLED_S, LogSource, LogSources
from placebench.jobs.nodes import Nodes
from placebench.logs.flags import CLOCK_SECONDS, CLOCK_SHARE, NO_TOKENS, NOT_FINITE, OPEN_END
from placebench.logs.run import LoggedRun, run_of_logs
from placebench.logs.throughput import MOST_TOKENS
from placebench.record.folder import Trial
from placebench.record.job_record import JobLaunch, LogFlag, LogRecord
from placebench.record.launch_file import LaunchFile
from placebench.record.launch_lines import may_be_metric
from placebench.record.progress import PhaseTime
from placebench.spec.devices import Device, index_ranges
from placebench.spec.phases import STEP
from placebench.spec.reading import FileState
from placebench.spec.text import few
from placebench.telemetry.spans import CONTROLLER, Span

_TOKENS = "perf/total_num_tokens"
# What a step lasts that was seen with the one before: less than there is between two looks, 0.1 s.
_AT_ONCE_S = 0.05
_BY_SIGHT = "lasts from when one line was seen to the next{first}, give or take 0.1 s"
_MARK_STEPS = 'log timing_s/step, or mark steps by span("step")'


@dataclass(frozen=True)
class _StepInLog:
    """A step, and what the log has of it."""

    step: int
    """Counted from 1."""
    number: int | None
    """By which the log calls it; None where it has no line."""
    steps: int
    """Since the line before, of all of which the line is."""


@dataclass
class Found:
    """What has become known of a launch since it was last asked."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    """Rows of `steps.jsonl`."""
    spans: list[dict[str, Any]] = field(default_factory=list)
    """Rows of `spans.jsonl`."""
    bound: list[tuple[int, Device]] = field(default_factory=list)
    """Processes and the devices on which they work."""
    allotted: list[dict[str, Any]] = field(default_factory=list)
    """Rows of `ray.jsonl`."""


def may_lack_log(job: JobLaunch) -> bool:
    """Whether steps may be those of spans alone: frameworks log them, and so does what a user has named the log of."""
    return job.attach and job.framework == COMMAND.name and not (job.log_files or job.log_format)


class StepReader:
    """Reads the steps of a launch; to be left when nobody writes any longer.

    Args:
        trial: the launch's folder.
        asked: its launch.json.
        job: what it starts.
        nodes: where its processes are.
        begun: when its command was started, on the monotonic clock.
        before: what was in its log files by then, by their paths.
    """

    def __init__(
        self,
        trial: Trial,
        asked: LaunchFile,
        job: JobLaunch,
        nodes: Nodes,
        begun: float,
        before: Mapping[str, FileState],
    ) -> None:
        self._trial, self._job, self._last_end = trial, job, begun
        self._lock = threading.Lock()
        self._clock = nodes.clock
        self._attached = AttachedSpans(
            trial.attached,
            asked.run_placement,
            asked.devices,
            job.timers,
            nodes,
            is_users=job.framework == COMMAND.name,
        )
        self._sources = LogSources(trial, job, before, self._lock)
        self._chosen: LogSource | None = None
        self._may_lack_log = may_lack_log(job)
        self._written = 0
        self._by_sight: list[int] = []
        """The numbers of steps that the log does not time."""
        self._counts_tokens = False
        self._begun, self._logged_s = begun, 0.0
        """When the command was started, and how long all steps took together that the log alone times."""

    def __enter__(self) -> "StepReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._sources.close()

    def read(self) -> Found:
        """The steps that have become whole since the last call, and what else has become known.

        Raises:
            UsageError: a log cannot be read on.
        """
        self._sources.find()
        self._attached.read()
        now = time.monotonic()
        with self._lock:
            self._sources.look(now)
            self._choose_source(now, ends=False)
            attached = self._attached
            has_spans = attached.counts_steps or (self._may_lack_log and attached.step(1) is not None)
            self._sources.refuse_errors(self._chosen, elsewhere=has_spans or bool(self._job.log_files))
            whole = self._chosen.whole(now) if self._chosen else 0
            return self._found(self._known_by_now(whole, now))

    def under_way(self) -> tuple[PhaseTime, ...]:
        """The phases of the step under way that have ended, as far as processes tell of them."""
        return self._attached.since(self._last_end)

    def finish(self, *, is_cut: bool = False) -> Found:
        """The steps that are left, whole or not; and `log.json`.

        Args:
            is_cut: whether the command may have ended in the middle of a line.

        Raises:
            UsageError: a log cannot be read to its end.
            LaunchError: nothing tells what a step takes.
        """
        self._sources.find()
        self._attached.read(all_files=True)
        self._sources.finish()
        self._choose_source(time.monotonic(), ends=True)
        is_known = self._chosen is not None or self._attached.counts_steps
        windows = self._attached.all_time() if self._job.until_end and not is_known else []
        self._sources.refuse_errors(self._chosen, elsewhere=is_known or bool(windows))
        if windows:
            found = self._of_spans(windows)
        else:
            found = self._found(self._lines(len(self._chosen.ended) if self._chosen else 0, self._attached.steps), True)
        if self._chosen:
            self._refuse_held_back(self._chosen)
            self._write_record(self._run(self._chosen), is_cut=is_cut)
        elif self._written or found.steps:  # also where all of them were known before
            self._record_spans()
        return found

    def _refuse_held_back(self, source: LogSource) -> None:
        """Refuse steps of which nothing tells how long they took: all their lines came at once."""
        if len(self._by_sight) > 1 and len({source.ended[number] for number in self._by_sight}) == 1:
            raise LaunchError(
                f"all {len(self._by_sight)} steps were seen at once, so nothing tells how long each took: have the"
                " command print each line as its step ends (python -u, grep --line-buffered, stdbuf -oL), or log"
                " timing_s/step"
            )

    def _choose_source(self, now: float, *, ends: bool) -> None:
        """Settle what says which steps there are, unless that is known: a log, or the spans where there is none."""
        if self._chosen or (self._may_lack_log and self._attached.counts_steps):
            return
        self._chosen = self._sources.choose(now, ends=ends)
        if self._chosen is None and self._may_lack_log and (first := self._attached.step(1)):
            self._attached.counts_steps = ends or now - first.end > PATIENCE_S

    def _run(self, source: LogSource) -> LoggedRun:
        log = source.growing.log
        assert log is not None
        log.table.steps_per_number = log.table.steps_per_number or 1
        return run_of_logs((log,), learner_ranks=self._job.learner_ranks)

    def _known_by_now(self, whole: int, now: float) -> list[_StepInLog]:
        """The steps of which no more will come, as far as `whole` lines of the log are whole."""
        attached = self._attached
        if whole > self._written and not attached.counts_steps:
            attached.read(all_files=True)  # a step is timed before it is logged
        if not attached.counts_steps:
            return self._lines(whole, 0)
        last = attached.step(attached.steps)
        ended = attached.steps - (last is not None and now - last.end <= SETTLED_S)
        known = self._lines(whole, ended)
        # A trainer logs a step as soon as it has ended; its line may be on its way.
        logged = set(attached.logged_steps)
        waits = (
            place
            for place, line in enumerate(known)
            if line.number is None
            and line.step in logged
            and (window := attached.step(line.step)) is not None
            and now - window.end <= PATIENCE_S
        )
        return known[: next(waits, None)]

    def _lines(self, whole: int, ended: int) -> list[_StepInLog]:
        """The steps that are not written yet, up to the last one of the launch, each with its line of the log.

        Args:
            whole: lines that are whole, of which each is of a step unless a trainer counts its steps itself.
            ended: its steps that have ended.
        """
        numbers = sorted(self._chosen.ended)[:whole] if self._chosen else []
        if not self._attached.counts_steps:
            lines = [_StepInLog(step, number, 1) for step, number in enumerate(numbers, start=1)]
            return lines[self._written : self._job.steps]
        logged = self._attached.logged_steps
        of = {
            step: (number, step - before) for number, before, step in zip(numbers, (0, *logged), logged, strict=False)
        }
        steps = range(self._written + 1, min(ended, self._job.steps) + 1)
        return [_StepInLog(step, *of.get(step, (None, 1))) for step in steps]

    def _found(self, fresh: Sequence[_StepInLog], final: bool = False) -> Found:
        """What is known now, with these steps."""
        found, windows = Found(), []
        figures = LogFigures.of(self._run(self._chosen) if fresh and self._chosen else None)
        for line in fresh:
            self._written = line.step
            window, took = self._timed(line, figures)
            own = self._metrics(line, took, figures)
            self._counts_tokens |= _TOKENS in own
            found.steps.append(self._row(window, own))
            windows.append(window)
            self._last_end = window.end
        return self._with_spans(found, windows, final=final)

    def _timed(self, line: _StepInLog, figures: LogFigures) -> tuple[Window, float]:
        """When a step was under way, and how long it took without what counts apart.

        The hooks say it, else the log; else its line was seen.
        """
        if window := self._attached.step(line.step):
            return window, window.end - window.start - figures.apart.get(line.number, 0.0)
        assert self._chosen is not None
        assert line.number is not None
        seen = max(self._chosen.ended[line.number], self._last_end)
        if line.number in figures.work:
            took = figures.work[line.number]
            end = seen
            self._logged_s += took * line.steps
        else:
            took = (seen - self._last_end) / self._together(line.number) or _AT_ONCE_S
            end = self._last_end + took
            self._by_sight.append(line.number)
        return Window(line.step, end - took, end), took

    def _together(self, number: int) -> int:
        """How many steps were seen as one was, itself and later ones: they share the time since the last line."""
        assert self._chosen is not None
        ended = self._chosen.ended
        return sum(one >= number and when == ended[number] for one, when in ended.items())

    def _metrics(self, line: _StepInLog, took: float, figures: LogFigures) -> dict[str, Any]:
        """What the log says of a step, how long it took, and its share of the tokens of its line."""
        known = {} if line.number is None else figures.metrics_of(line.number)
        own: dict[str, Any] = {name: value for name, value in known.items() if may_be_metric(name, value)}
        if not 0 <= own.get(_TOKENS, 0) < MOST_TOKENS:
            del own[_TOKENS]  # no count
        own |= {"timing_s/step": took}
        if isfinite(count := figures.tokens.get(line.number, nan) / line.steps):
            own |= {_TOKENS: count}
            if self._job.sequences:  # of which only the mean length is known
                own |= {"perf/attention_length": count / self._job.sequences}
        return own

    def _of_spans(self, windows: Sequence[Window]) -> Found:
        """Steps of a log that has none, by what the hooks have seen."""
        rows = [self._row(window, {"timing_s/step": window.end - window.start}) for window in windows]
        return self._with_spans(Found(rows), windows, final=True)

    def _with_spans(self, found: Found, windows: Sequence[Window], *, final: bool) -> Found:
        found.spans += [*map(self._span, windows), *self._attached.rows(windows, final=final)]
        found.bound += self._attached.bound()
        found.allotted += self._attached.allotted()
        return found

    def _row(self, window: Window, metrics: dict[str, Any]) -> dict[str, Any]:
        ended = {"wall": self._clock.wall(window.end), "mono": window.end}
        return {"step": window.step, **ended, "metrics": metrics}

    def _span(self, window: Window) -> dict[str, Any]:
        walls = (self._clock.wall(window.start), self._clock.wall(window.end))
        return Span(window.step, STEP, None, None, CONTROLLER, *walls, window.start, window.end).to_dict()

    def _record_spans(self) -> None:
        """Write `log.json` of a launch whose steps are those of its spans."""
        is_one_step = self._attached.step(1) is None
        flags = [LogFlag(name=LogFlag.SPANS, text=text) for text in self._attached.notes]
        if is_one_step:
            flags.append(
                LogFlag(name="steps", text="neither log nor spans tell steps apart: all time counts as one step")
            )
        LogRecord(framework=self._job.framework, format="spans", flags=tuple(flags), is_one_step=is_one_step).write(
            self._trial
        )

    def _too_long(self) -> Iterator[LogFlag]:
        """Whether the log has more time than has passed."""
        passed = max(self._last_end - self._begun, 0.0)
        if self._logged_s > passed * (1 + CLOCK_SHARE) + CLOCK_SECONDS:
            text = (
                f"the log's steps take {self._logged_s:,.1f} s together, but only {passed:,.1f} s had passed: their"
                " times are not seconds, or overlap"
            )
            yield LogFlag(name="clock", text=text)

    def _write_record(self, run: LoggedRun, *, is_cut: bool) -> None:
        settled = {NOT_FINITE}  # the steps themselves tell what is no number
        if not is_cut:
            settled |= {OPEN_END}
        if self._attached.step(1) is not None:
            settled |= {*self._job.settled_flags}
        if self._counts_tokens:  # of steps that the log does not time, too
            settled |= {NO_TOKENS}
        LogRecord(
            framework=run.dialect.framework,
            format=run.logs[0].format.name,
            phases=self._job.phases,
            flags=(
                *(LogFlag(name=one.name, text=one.text) for one in run.flags if one.name not in settled),
                *self._too_long(),
                *((LogFlag(name="step-time", text=_told_by_sight(run, self._by_sight)),) if self._by_sight else ()),
                *(LogFlag(name=LogFlag.SPANS, text=text) for text in self._attached.notes),
            ),
        ).write(self._trial)


def _told_by_sight(run: LoggedRun, steps: Sequence[int]) -> str:
    """How it is known what steps last that the log does not time, be they all of them or some."""
    is_first = min(run.logs[0].table.steps()) in steps
    by_sight = _BY_SIGHT.format(first=", the first from the command's start" if is_first else "")
    if not LogFigures.of(run).work:
        return f"the log does not time its steps: a step {by_sight}; {_MARK_STEPS}"
    which = f"{'step' if len(steps) == 1 else 'steps'} {few(index_ranges(steps).split(','), ', ')}"
    return f"the log times other steps, but not {which}: such a step {by_sight}"
