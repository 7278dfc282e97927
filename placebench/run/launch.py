"""One launch: its processes started fresh, watched until they end, ended when they must, and nothing left behind."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from placebench.errors import JobExit
from placebench.host.compile_cache import remove_empty_cache
from placebench.host.ownership import RunRecord
from placebench.host.processes import LaunchMark, oom_kills, stop_process
from placebench.jobs.start import job_launch, names_in_braces
from placebench.plan.plan import Plan, PlannedLaunch
from placebench.record.end_file import EndFile
from placebench.record.folder import IN_STEP, SCHEMA_VERSION, STOPPING, RunFolder, Status, Trial
from placebench.record.launch_file import LaunchFile
from placebench.record.launch_lines import count_steps
from placebench.record.parts import ClusterRecord, PlacementRecord
from placebench.record.progress import LaunchState, activity
from placebench.record.run_file import LaunchWall
from placebench.record.writing import read_jsonl
from placebench.run.failures import (
    CLUSTER_CHANGED,
    LaunchEnd,
    explain,
    judge,
    lacks_only,
    lost_head,
    record_cut_off,
    write_end,
)
from placebench.run.forking import RoundServer, forks_workers
from placebench.run.processes import LaunchProcesses, own_environment
from placebench.run.watch import NOT_AS_WRITTEN, DamagedFilesError, Pause, TrialWatch
from placebench.sessions.ray_cluster.clocks import clock_notes
from placebench.sessions.ray_cluster.discovery import Cluster
from placebench.spec.text import format_seconds, plural
from placebench.spec.workload import placed_workload

JOB = (sys.executable, "-m", "placebench.jobs.ppo")
BRIDGE = (sys.executable, "-m", "placebench.jobs.bridge")
SAMPLER = (sys.executable, "-m", "placebench.telemetry.sampler")

_POLL_S = 0.1
# For the workers and their session to end once all steps are done: of no use to what is measured.
_STOP_PATIENCE_S = 60.0
# Together with the report of what is there, a run that is stopped ends within ten seconds.
_JOB_GRACE_S = 3.0
# A command that lasts until it is stopped is part of the report: what it has left is still to be read.
_LAST_GRACE_S = 5.0
_SAMPLER_GRACE_S = 2.0


@dataclass(frozen=True)
class LaunchResult:
    """How a launch ended."""

    status: Status
    """The word in its `status` file."""
    reason: str | None
    """One line on why it is not done; None when it is."""
    wall: LaunchWall
    """Where its time went."""
    notes: tuple[str, ...]
    """What else the user should know, one line each."""
    ends_run: bool = False
    """Whether launches after it would fail alike: the cluster is not any more what it was."""


class Launcher:
    """Runs the launches of one run.

    Args:
        plan: the run.
        record: keeps by what the processes of the launch are known, for the case that this process is killed.
        job: command of the training job; the trial's folder becomes its last argument.
        stop: why the run must end now; None while it need not.
        pause: stops the launch for as long as the user wants, and returns when that was; None where it is not wanted.
    """

    def __init__(
        self,
        plan: Plan,
        record: RunRecord,
        job: Sequence[str],
        stop: Callable[[], str | None],
        pause: Callable[[LaunchMark], Pause | None] = lambda mark: None,
    ) -> None:
        self._plan, self._record, self._job, self._stop, self._pause = plan, record, job, stop, pause
        is_own = tuple(job) == JOB and forks_workers(plan)
        self._server = RoundServer(plan.folder.fork_log, plan.workload, plan.devices) if is_own else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server:
            self._server.close()

    def run(
        self, launch: PlannedLaunch, next_round: int | None, trial: Trial, on_state: Callable[[LaunchState], None]
    ) -> LaunchResult:
        """Run one launch from its first process until the last one is gone.

        Args:
            launch: what to run.
            next_round: of the launch after it; None where none will follow.
            trial: an empty folder for it.
            on_state: called several times a second with the launch's state.
        """
        started, kills = time.monotonic(), oom_kills()
        with contextlib.ExitStack() as behind:
            behind.callback(remove_empty_cache)  # a job that is killed cannot
            processes = behind.enter_context(LaunchProcesses(self._record))
            server = self._server.of(launch.round) if self._server else None
            self._launch_file(launch, trial, processes.mark, server).write(trial.launch_file)
            trial.set_status(Status.RUNNING)
            sampler = self._start_sampler(trial, processes)
            # A command of the user's has the environment that the user has.
            environment = os.environ if tuple(self._job) == BRIDGE else own_environment()
            process = processes.start([*self._job, str(trial.path)], trial.log, environment)
            if self._server and next_round:
                self._server.prepare(next_round)
            job = _StartedJob(process, TrialWatch(trial), launch.steps, on_state, processes.mark)
            end = self._end_of(job)
            unmeasured = self._without_measured_steps(trial)
            was_stopped = end.status is Status.INTERRUPTED and process.returncode == JobExit.DONE
            if self._plan.until_end and was_stopped and not unmeasured:
                end = LaunchEnd(Status.DONE)
            job_ended = time.monotonic()
            notes = self._server.notes if self._server else ()
            notes += (
                job.watch.pauses + _end_sampler(sampler, trial) + (clock_notes(trial) if self._plan.cluster else ())
            )
        notes += tuple(f"process {left.pid} of the launch does not end even after SIGKILL" for left in processes.left)
        end, ends_run = self._explained(end, trial, process.returncode, was_out_of_memory=oom_kills() > kills)
        if end.status is not Status.DONE and not ends_run and (missing := lacks_only(trial)):
            notes += (f"the launch counts, though {missing} failed: {end.reason} (see {trial.path})",)
            record_cut_off(trial, end)
            end = LaunchEnd(Status.DONE)
        if end.status is Status.DONE and unmeasured:
            end = LaunchEnd(Status.FAILED, unmeasured)
        write_end(trial, end, self._plan, launch.placement)
        wall = _launch_wall(trial, started, job_ended, time.monotonic())
        return LaunchResult(end.status, end.reason, wall, notes, ends_run)

    def _launch_file(self, launch: PlannedLaunch, trial: Trial, mark: LaunchMark, server: str | None) -> LaunchFile:
        plan, placement = self._plan, launch.placement
        work: dict[str, Any]
        if plan.job:
            names = names_in_braces(trial.path, launch.round, mark.ray_temp_dir)
            work = {"job": job_launch(plan.job.of_steps(launch.steps), placement, names, plan.addresses)}
        else:
            placed = placed_workload(plan.workload, placement.placement)
            work = {"workload": placed.model_dump(mode="json") | {"steps": launch.steps}}
        return LaunchFile(
            schema_version=SCHEMA_VERSION,
            round=launch.round,
            placement=PlacementRecord.of(placement),
            devices=tuple(device for devices in placement.members.values() for device in devices),
            **work,
            ray_temp_dir=str(mark.ray_temp_dir),
            cluster=ClusterRecord(**plan.cluster.model_dump()) if plan.cluster else None,
            launcher=plan.launcher,
            sample_hz=plan.sample_hz,
            fork_server=server,
            step_timeout_s=plan.step_timeout_s,
            checkpoint_every=plan.checkpoint_every,
            resume_from=str(plan.start.path) if plan.start else None,
        )

    def _start_sampler(self, trial: Trial, processes: LaunchProcesses) -> subprocess.Popen[bytes] | None:
        hz = 0.0 if self._plan.cluster else self._plan.sample_hz  # on a cluster the job has one started on every node
        return processes.start([*SAMPLER, str(trial.path), "--hz", f"{hz:g}"], _sampler_log(trial)) if hz else None

    def _end_of(self, job: "_StartedJob") -> LaunchEnd:
        """Follow the job as `_watch` does, and see that it is gone."""
        try:
            end = self._watch(job)
        except DamagedFilesError as error:
            end = LaunchEnd(Status.FAILED, str(error))
        stop_process(job.process, _LAST_GRACE_S if self._plan.until_end else _JOB_GRACE_S)
        return end

    def _watch(self, job: "_StartedJob") -> LaunchEnd:
        """Follow the job until it ends, or has to; while the user wants it, stop with it."""
        patience = self._plan.step_timeout_s
        while job.process.poll() is None:
            state = job.look()
            if self._server:
                self._server.hold(stopped=state.stage == IN_STEP)
            if pause := self._pause(job.mark):
                job.watch.leave_out(pause, activity(state, job.steps))
            if reason := self._stop():
                return LaunchEnd(Status.INTERRUPTED, reason)
            if state.silent_s > (min(patience, _STOP_PATIENCE_S) if state.stage == STOPPING else patience):
                silence = f"no progress for {format_seconds(state.silent_s)} ({activity(state, job.steps)})"
                return LaunchEnd(Status.TIMEOUT, silence)
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.process.wait(_POLL_S)
        wanted = 0 if self._plan.until_end else job.steps - self._plan.steps_before
        end = judge(job.process.returncode, len(job.look().step_times), wanted)
        # A signal to all processes at once, as a cancelled batch job gets it, may end the job before it is seen here.
        if end.status is not Status.DONE and (reason := self._stop()):
            return LaunchEnd(Status.INTERRUPTED, reason)
        return end

    def _without_measured_steps(self, trial: Trial) -> str | None:
        """Why there is nothing to report on of a command that has ended within its warm-up; None of one that has not.

        How many steps it has is known only by its end.
        """
        had, warmup = count_steps(trial) if self._plan.until_end else 0, self._plan.warmup_steps
        if not 0 < had <= warmup:  # none are those of a damaged file, which the report names
            return None
        none_left = f"the command had {plural(had, 'step')}, and --warmup-steps {warmup} leaves none to measure"
        end = EndFile.read(trial)
        return f"{end.message}; {none_left}" if end and end.message else none_left

    def _explained(
        self, end: LaunchEnd, trial: Trial, exit_code: int, *, was_out_of_memory: bool
    ) -> tuple[LaunchEnd, bool]:
        """The end with why it came to it, and whether launches after this one would fail alike.

        Args:
            end: as it was seen.
            trial: with all that the job has left.
            exit_code: of the job.
            was_out_of_memory: whether the kernel killed a process meanwhile because memory ran out.
        """
        has_failed, has_lost_cluster = end.status is Status.FAILED, exit_code in CLUSTER_CHANGED
        if has_failed and lost_head(trial):
            end, has_lost_cluster = self._headless(), has_lost_cluster or self._plan.cluster is not None
        elif has_failed and was_out_of_memory:
            end = LaunchEnd(Status.OOM, "the kernel killed a process because memory ran out")
        return explain(trial, end, self._plan.devices), has_lost_cluster

    def _headless(self) -> LaunchEnd:
        """What it means that Ray's head is gone."""
        if not isinstance(self._plan.cluster, Cluster):
            return LaunchEnd(Status.FAILED, "the head of the launch's own Ray (gcs_server) was killed")
        address = self._plan.cluster.address
        return LaunchEnd(
            Status.DEVICE_LOST,
            f"the head of the Ray cluster no longer answers (--ray-address {address}): start it again, and the nodes"
            " with it",
        )


def fresh_trial(folder: RunFolder, round_number: int, placement: str) -> Trial:
    """An empty trial folder; an earlier try that was not done moves to `trials/replaced/`."""
    trial = folder.trial(round_number, placement)
    if os.path.lexists(trial.path):
        replaced = folder.folders_of_trials[1]
        replaced.mkdir(exist_ok=True)
        tries = sum(1 for _ in replaced.glob(f"{trial.path.name}.*"))
        trial.path.rename(replaced / f"{trial.path.name}.{tries + 1}")
    trial.path.mkdir(parents=True)
    return trial


@dataclass(frozen=True)
class _StartedJob:
    """The job of a launch that has been started, and what is needed to follow it."""

    process: subprocess.Popen[bytes]
    watch: TrialWatch
    steps: int
    """That it is to do, of its launch."""
    on_state: Callable[[LaunchState], None]
    """Called with every state that is seen."""
    mark: LaunchMark
    """By which its processes are known."""

    def look(self) -> LaunchState:
        """What it is doing now."""
        state = self.watch.read()
        self.on_state(state)
        return state


def _sampler_log(trial: Trial) -> Path:
    return trial.path / "sampler.log"


def _end_sampler(sampler: subprocess.Popen[bytes] | None, trial: Trial) -> tuple[str, ...]:
    """End the sampler in order; returns a note when it has not lasted until now."""
    if sampler is None:
        return ()
    lasted = sampler.poll() is None
    stop_process(sampler, _SAMPLER_GRACE_S)
    log = _sampler_log(trial)
    with contextlib.suppress(FileNotFoundError):  # the job may remove what it likes
        if lasted and not log.stat().st_size:
            log.unlink()
    return () if lasted else (f"the sampler ended before its launch, so device figures are missing: see {log}",)


def _launch_wall(trial: Trial, started: float, job_ended: float, cleaned: float) -> LaunchWall:
    """Where the time went; all times on the host's monotonic clock, since the other one may be set meanwhile."""
    total, cleanup = cleaned - started, cleaned - job_ended
    try:
        steps = list(read_jsonl(trial.steps))
        first = float(steps[0]["mono"]) - float(steps[0]["metrics"]["timing_s/step"])
        last = float(steps[-1]["mono"])
    except (IndexError, OSError, *NOT_AS_WRITTEN):  # none has finished, or the launch has failed for what it found
        return LaunchWall(total_s=total, cleanup_s=cleanup)
    return LaunchWall(
        total_s=total,
        before_steps_s=first - started,
        steps_s=last - first,
        after_steps_s=job_ended - last,
        cleanup_s=cleanup,
    )
