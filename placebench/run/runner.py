"""All launches of a run, round by round, and what becomes of the run when one fails or the user stops it."""

import contextlib
import errno
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from placebench.errors import InterruptedRunError, LaunchError, PlacebenchError, TimeLimitError, UsageError
from placebench.host.ownership import guarded, live_runs, own_run
from placebench.host.run_lock import lock_run
from placebench.host.signals import StopSignals
from placebench.plan.checks import full_disks
from placebench.plan.limits import exceeded_limit
from placebench.plan.plan import Plan, PlannedLaunch
from placebench.record.folder import RunFolder, Status, Trial, resuming
from placebench.record.progress import LaunchPosition, LaunchState, time_left
from placebench.record.run_file import LaunchWall
from placebench.run.asked import TIME_LIMIT, Asked
from placebench.run.display import Display
from placebench.run.launch import BRIDGE, JOB, Launcher, LaunchResult, fresh_trial
from placebench.run.manifest import Manifest
from placebench.spec.auto_rounds import PILOT_ROUNDS, StepChoice
from placebench.spec.devices import device_labels

# What a disk that could be written when the run began may come to, or a file that something else is put in place of.
_NOT_WRITABLE = (
    *(errno.EROFS, errno.EIO, errno.ESTALE, errno.EACCES, errno.EPERM),
    *(errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENXIO),
)


@dataclass(frozen=True)
class MeasuredSoFar:
    """What is asked of a run's folder while the run is under way."""

    width: Callable[[Path, int], float]
    """How far the ends of the widest headline interval lie apart after so many rounds; only with `--rounds auto`."""
    sentence: Callable[[Path, str], str | None] = field(default=lambda *_: None)
    """What to say when a launch of a placement is done; None for nothing."""
    best_steps: Callable[[Path], StepChoice | None] = field(default=lambda _: None)
    """How many steps the launches after the first rounds should have; None where that is not known. Only with
    `--rounds auto`, and once."""


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    folder: Path
    """The run's folder."""
    done: int
    """Launches that are done, earlier starts of the run included."""
    total: int
    """Launches that it was to have."""
    failures: tuple[tuple[Path, str], ...]
    """Launches that are not done, as folder and reason."""
    stopped_by: str | None
    """Why it ended early; None when it did not."""
    late_signal: signal.Signals | None = None
    """The signal that came when no launch was left to stop; None without one."""

    def raise_unless_done(self) -> None:
        """Say what is missing.

        Raises:
            TimeLimitError: the time limit has passed.
            InterruptedRunError: the user has stopped it.
            LaunchError: a launch has failed.
        """
        resume, first = f"go on with {resuming(self.folder)}", ""
        if self.failures:
            path, reason = self.failures[0]
            first = f"the first with: {reason} (see {path / 'error.txt'})"
        if self.stopped_by is not None:
            kind = TimeLimitError if self.stopped_by == TIME_LIMIT else InterruptedRunError
            failed = f", {len(self.failures)} failed, {first}" if first else ""
            raise kind(f"{self.stopped_by}: {self.done} of {self.total} launches are done{failed}; {resume}")
        if first:
            raise LaunchError(f"{len(self.failures)} of {self.total} launches failed, {first}; {resume}")


def execute(
    plan: Plan,
    command: Sequence[str],
    display: Display,
    so_far: MeasuredSoFar,
    job: Sequence[str] = (),
) -> RunResult:
    """Run a plan's launches; whatever is done by the end of it stays.

    Args:
        plan: what to run; a resumed run is locked by the caller, who has read it.
        command: the command line, for `run.json`.
        display: shows what goes on.
        so_far: what is asked of the run's folder between launches.
        job: command of the training job, whose last argument becomes the trial's folder; the plan's when not given.

    Raises:
        UsageError: the run's folder has come into being since the plan was made.
        PlacebenchError: no space is left, or the folder is moved meanwhile.
    """
    path = plan.folder.path
    with StopSignals() as signals, display, _lost_files_are_an_error(path):
        _make_folder(plan)
        lock = nullcontext() if plan.resumed else lock_run(plan.folder)
        with lock as no_locks, own_run(path) as record, guarded(record):
            display.note(f"this run is {path}")
            for note in (*plan.notes, *filter(None, [no_locks])):
                display.note(note)
            asked = Asked(signals, plan.time_limit_s, display)
            with Launcher(plan, record, job or (BRIDGE if plan.job else JOB), asked, asked.pause) as launcher:
                run = _Run(plan, Manifest(plan, command), launcher, display, so_far)
                result = run.go(asked)
    is_late = result.stopped_by in (None, TIME_LIMIT)
    return replace(result, late_signal=signals.received if is_late else None)


@contextlib.contextmanager
def _lost_files_are_an_error(path: Path) -> Iterator[None]:
    """Tell in one line that the disk is full or cannot be written, or that a folder is not there any more.

    Raises:
        PlacebenchError: one of these.
    """
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        if (lost := _lost_folder(path, error)) is None:
            raise
        raise PlacebenchError(lost) from error
    except OSError as error:
        go_on = f"go on with {resuming(path)}"
        if limit := exceeded_limit(str(error)):
            raise PlacebenchError(f"{limit} ({error}): {limit.advice}, then {go_on}") from error
        if error.errno in _NOT_WRITABLE and _has_begun(path):
            what = f"{error.filename2 or error.filename or path}: {error.strerror}"
            raise PlacebenchError(f"{what}: check the disk, then {go_on}") from error
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        if not _has_begun(path):
            with contextlib.suppress(OSError):
                path.rmdir()  # nothing has begun in it
            go_on = "start the run again"
        raise PlacebenchError(
            f"no space left for {path} or in {tempfile.gettempdir()}: free some, then {go_on}"
        ) from error


def _lost_folder(path: Path, error: OSError) -> str | None:
    """Which folder is not there any more, and what to do; None where none that a run needs is missing."""
    lost = "was moved or removed while the run went on:"
    try:
        Path.cwd()
    except FileNotFoundError:
        return f"the working directory {lost} cd to one that exists, and go on with placebench run --resume"
    if not path.is_dir():
        return f"{path} {lost} go on with placebench run --resume where it is now"
    named = Path(error.filename or "")
    missing = [part for part in (named, *named.parents) if part.is_relative_to(path) and not part.exists()]
    return f"{missing[-1]} {lost} go on with {resuming(path)}" if missing else None


def _has_begun(path: Path) -> bool:
    try:
        return RunFolder(path).run_file.exists()
    except PermissionError:  # it was there to be written
        return True


def _make_folder(plan: Plan) -> None:
    try:
        plan.folder.path.mkdir(parents=True, exist_ok=plan.resumed)
    except FileExistsError:
        raise UsageError(f"{plan.folder.path} is there already: choose another --name or --out") from None


class _Run:
    """A run under way."""

    def __init__(
        self, plan: Plan, manifest: Manifest, launcher: Launcher, display: Display, so_far: MeasuredSoFar
    ) -> None:
        self._plan, self._manifest, self._launcher, self._display = plan, manifest, launcher, display
        self._so_far = so_far
        self._expected_rounds = plan.rounds
        self._own_path = plan.folder.path.resolve()  # as the record of live runs has it
        self._named: set[Path] = set()
        self._finished: dict[str, list[LaunchWall]] = {}
        self._done = len(plan.done)
        self._failures: list[tuple[Path, str]] = []

    def go(self, asked: Asked) -> RunResult:
        """Run what is to come; the manifest says failed unless it comes to an end in order."""
        status = Status.FAILED
        try:
            self._run_rounds(asked)
            enough = self._plan.auto is None
            while not enough and not self._failures and not asked():
                if self._add_round():
                    self._run_rounds(asked)
                else:
                    enough = True
            ended = asked() if self._done < self._plan.total or not enough else None
            status = Status.INTERRUPTED if ended else Status.FAILED if self._failures else Status.DONE
        finally:
            self._manifest.finish(status)
        return RunResult(self._plan.folder.path, self._done, self._plan.total, tuple(self._failures), ended)

    def _run_rounds(self, asked: Asked) -> None:
        for index in range(len(self._plan.launches)):
            if self._plan.launches[index].round > PILOT_ROUNDS and not self._failures:
                self._choose_steps()
            launch, *later = self._plan.launches[index:]
            if asked() or self._run(launch, later).ends_run:
                break

    def _choose_steps(self) -> None:
        """Give later launches the steps that their costs and variances call for, once; the display says how many."""
        auto = self._plan.auto
        if auto is None or not auto.chooses_steps or auto.choice:
            return
        try:
            choice = self._so_far.best_steps(self._plan.folder.path)
        except UsageError as error:  # a file of an earlier launch is damaged, as in `_sentence`
            self._display.note(f"launches keep {self._plan.steps} steps, which cannot be chosen: {error}")
            choice = None
        auto = replace(auto, choice=choice, chooses_steps=choice is not None)
        self._plan = replace(self._plan, auto=auto)
        self._manifest.extend(self._plan)
        if choice:
            self._display.note(choice.sentence)

    def _add_round(self) -> bool:
        """Add a round to the plan, unless the number is fixed or there is a reason to stop; the display says so."""
        plan, auto = self._plan, self._plan.auto
        if auto is None:
            return False
        try:
            before, now = (self._so_far.width(plan.folder.path, rounds) for rounds in (plan.rounds - 1, plan.rounds))
        except UsageError as error:  # as above: what was measured stays, and the report says what is missing
            self._display.note(f"no round is added after {plan.rounds}: {error}")
            return False
        seconds = self._manifest.round_s(plan.rounds)
        reason = auto.reason_to_stop(plan.rounds, before, now, self._manifest.elapsed_s, seconds)
        if reason is None:
            every = ((number, bound.name) for number in range(1, plan.rounds + 1) for bound in plan.placements)
            self._expected_rounds = max(auto.expected_rounds(plan.rounds, now), plan.rounds + 1)
            self._plan = replace(plan, rounds=plan.rounds + 1, done=frozenset(every))
            self._manifest.extend(self._plan)
            return True
        self._display.note(reason)
        return False

    def _run(self, launch: PlannedLaunch, later: Sequence[PlannedLaunch]) -> LaunchResult:
        Path.cwd()  # without it, what is started would fail, and not say why
        plan, name = self._plan, launch.placement.name
        rounds_to_add = max(self._expected_rounds - plan.rounds, 0)
        self._display.begin(self._position(launch, len(later), rounds_to_add))
        steps = launch.steps - plan.steps_before
        remaining = [one.placement.name for one in later] + [bound.name for bound in plan.placements] * rounds_to_add

        def show(state: LaunchState) -> None:
            self._display.update(state, time_left(self._finished, name, state, steps, remaining))

        trial = fresh_trial(plan.folder, launch.round, name)
        others = self._other_runs()
        with _interrupted_by_errors(trial):
            result = self._launcher.run(launch, self._next_round(launch, later), trial, show)
        others |= self._other_runs()
        self._manifest.add(launch, trial, result.status, result.wall, other_runs=len(others))
        self._display.end(result.status, result.wall.total_s, result.reason or self._sentence(name))
        for note in result.notes:
            self._display.note(note)
        self._keep(result, name, trial.path)
        return result

    def _position(self, launch: PlannedLaunch, later: int, rounds_to_add: int) -> LaunchPosition:
        """Where a launch stands in the run, of which so many are planned after it."""
        plan = self._plan
        return LaunchPosition(
            number=plan.total - later,
            total=plan.total + rounds_to_add * len(plan.placements),
            round=launch.round,
            rounds=plan.rounds + rounds_to_add,
            placement=launch.placement.name,
            steps=launch.steps,
            labels=device_labels(plan.devices),
            steps_before=plan.steps_before,
            is_estimate=plan.auto is not None,
        )

    def _other_runs(self) -> set[Path]:
        """Folders of the other runs that go on now; the display names each of them once."""
        found = set(live_runs()) - {self._own_path}
        for other in sorted(found - self._named):
            self._display.note(f"another run is going on here ({other}): each slows the other down")
        self._named |= found
        return found

    def _next_round(self, launch: PlannedLaunch, later: Sequence[PlannedLaunch]) -> int | None:
        """The round of the launch after one; with `--rounds auto`, that of one that may be added."""
        if later:
            return later[0].round
        return launch.round + 1 if self._plan.auto else None

    def _sentence(self, placement: str) -> str | None:
        try:
            return self._so_far.sentence(self._plan.folder.path, placement)
        except UsageError as error:  # a file of an earlier launch is damaged: the report will say so, too
            return str(error)

    def _keep(self, result: LaunchResult, name: str, path: Path) -> None:
        if result.status is Status.DONE:
            self._done += 1
            self._finished.setdefault(name, []).append(result.wall)
        elif result.status is not Status.INTERRUPTED:
            self._failures.append((path, f"{result.status}, {result.reason}"))
            Path.cwd()
            for reason in full_disks(self._plan.folder.path):
                raise PlacebenchError(f"{reason}, then go on with {resuming(self._plan.folder.path)}")


@contextlib.contextmanager
def _interrupted_by_errors(trial: Trial) -> Iterator[None]:
    """Let no launch say that it runs when an error of the body has ended it."""
    try:
        yield
    except Exception:
        with contextlib.suppress(OSError):
            trial.set_status(Status.INTERRUPTED)
        raise
