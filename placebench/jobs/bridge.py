"""One launch of a job of the user's: `python -m placebench.jobs.bridge TRIAL_DIR`, started fresh by the runner.

Starts the command in launch.json, turns its log into steps.jsonl and spans.jsonl while it grows, and ends it after its
steps. What it has to know is in launch.json, what it leaves lies in the trial's folder. Exit codes: see `JobExit`.
"""

import contextlib
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from placebench.errors import JobExit, LaunchError
from placebench.host.processes import adopt_orphans, descendants, kill_processes, reap_orphans
from placebench.host.signals import StopSignals, exit_words
from placebench.jobs.end import end_by, end_by_words
from placebench.jobs.job_ray import ray_head, wait_for_ray
from placebench.jobs.log_files import states_of
from placebench.jobs.log_steps import Found, StepReader, may_lack_log
from placebench.jobs.nodes import nodes_of
from placebench.record.end_file import STOPPED, EndFile
from placebench.record.folder import AFTER, ENDED, IN_STEP, STOPPING, Trial
from placebench.record.launch_file import LaunchFile
from placebench.record.progress import PhaseTime, Progress
from placebench.record.tail import read_end
from placebench.record.writing import append_jsonl, append_to, write_atomically
from placebench.sessions.own_ray import HEAD_PATIENCE
from placebench.sessions.torchrun.command import start_bound
from placebench.spec.devices import Device
from placebench.spec.legible import one_line

_POLL_S = 0.05
_TELL_EVERY_S = 1.0
_REAP_EVERY_S = 1.0
# A framework that ends by itself after the last step has time for it; then it is ended.
_GRACE_S = 3.0
_END_S = 2.0
_HEAD_S = 60.0
# So much of what is printed is looked at for why a command ended.
_LAST_BYTES = 1 << 14
# What it starts prints to a file, in blocks, unless it is told otherwise, and steps would be seen late.
_LINE_BY_LINE = {"PYTHONUNBUFFERED": "1"}


class Bridge:
    """A launch of a command.

    Args:
        trial: the folder with launch.json.
    """

    def __init__(self, trial: Trial) -> None:
        self._asked = asked = LaunchFile.read(trial.launch_file)
        assert asked.job is not None
        self._trial, self._job, self._devices = trial, asked.job, asked.devices
        self._nodes = nodes_of(asked, trial)
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._done = 0
        self._told = self._reaped = 0.0
        self._phases: tuple[PhaseTime, ...] = ()

    def run(self) -> EndFile:
        """Run it from what comes before it to what comes after it, which changes nothing of how it has ended."""
        try:
            with contextlib.ExitStack() as behind:
                end = self._run_command(behind)
        except KeyboardInterrupt:
            self._run_after(is_done=False)
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this launch and is written down
            end = _end_by(error, self._trial)
        end.write(self._trial)  # also if what comes after it never ends
        is_done = end.kind is JobExit.DONE
        if why := self._run_after(is_done=is_done):
            if is_done:  # its stage says that nothing else is missing
                return end.model_copy(update={"kind": JobExit.FAILED, "after": why})
            end = end.model_copy(update={"message": "; ".join(filter(None, (end.message, why)))})
        return end

    def _run_command(self, behind: contextlib.ExitStack) -> EndFile:
        """Run the command with what it needs until it has ended, and all that it has started.

        Args:
            behind: is left when all has ended; once the command runs, signals until then cut nothing in half.

        Raises:
            LaunchError: what it needs did not start, or ended.
        """
        job = self._job
        others = descendants()
        try:
            if job.attach:
                self._trial.attached.mkdir(exist_ok=True)
            self._nodes.open()
            if job.ray_head:
                self._start_ray(job.ray_head)
            if job.before:
                self._progress("before")
                self._wait_for("before", job.before)
            self._progress("start")
            self._start_beside()
            signals = behind.enter_context(StopSignals())
            begun, written = time.monotonic(), states_of(job.log_files)
            command = self._start("the command", job.command, self._environment, self._trial.log)
            self._register(command.pid)
            with StepReader(self._trial, self._asked, self._job, self._nodes, begun, written) as reader:
                end = self._follow(command, reader, signals)
            end.write(self._trial)  # nobody waits forever for what is still to end
            if end.kind is JobExit.DONE:
                self._progress(STOPPING, self._done)
            return end
        except Exception as error:
            explained = self._nodes.explain(error)
            if explained is error:
                raise
            raise explained from error
        finally:
            self._stop_all()
            self._nodes.close()
            kill_processes(lambda: descendants(others))  # also those that nothing but their parent is known by

    def _run_after(self, *, is_done: bool) -> str | None:
        """Run what comes after a launch that is done or has failed; returns why that went wrong, else None."""
        if not self._job.after:
            return None
        self._progress(AFTER if is_done else ENDED, self._done)
        try:
            self._wait_for("after", self._job.after)
        except (LaunchError, OSError) as error:
            return str(error)
        return None

    def _follow(self, command: "subprocess.Popen[bytes]", reader: StepReader, signals: StopSignals) -> EndFile:
        """Read steps until there are enough, the command ends, or a signal has come.

        Raises:
            KeyboardInterrupt: one has come, and the launch is nothing without the steps that are left.
        """
        self._read_steps(command, reader, signals)
        if signals.received and not self._job.until_end:
            raise KeyboardInterrupt
        is_stopped = signals.received is not None and command.poll() is None
        if is_stopped:
            self._end(command)
        self._write(reader.finish(is_cut=is_stopped or bool(command.returncode)))
        if self._done >= self._job.steps or (self._done and is_stopped):
            return EndFile(kind=JobExit.DONE, message=STOPPED if is_stopped else None)
        end = self._too_early(command.returncode)
        if self._job.until_end and self._done:
            return EndFile(kind=JobExit.DONE, message=end.message if command.returncode else None)
        return end

    def _read_steps(self, command: "subprocess.Popen[bytes]", reader: StepReader, signals: StopSignals) -> None:
        while self._done < self._job.steps and command.poll() is None and signals.received is None:
            self._reap()
            self._write(reader.read())
            self._tell(reader)
            for name, process in self._running[:-1]:
                if process.poll() is not None:
                    raise LaunchError(f"{name} ended with {exit_words(process.returncode)}: see {name}.log")
            if elsewhere := self._nodes.failed():
                raise LaunchError(elsewhere)
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.wait(_POLL_S)
        until = time.monotonic() + (_GRACE_S if self._done >= self._job.steps else 0.0)
        while command.poll() is None and signals.received is None and time.monotonic() < until:
            time.sleep(_POLL_S)

    def _failed_elsewhere(self) -> str | None:
        """What has failed on another node, where a process that this one has missed may still be about to end."""
        until = time.monotonic() + (_GRACE_S if self._job.elsewhere else 0.0)
        while not (found := self._nodes.failed(now=True)) and time.monotonic() < until:
            time.sleep(_POLL_S)
        return found

    def _too_early(self, code: int) -> EndFile:
        """What it means that the command has ended before its last step."""
        steps = str(self._done) if self._job.until_end else f"{self._done} of {self._job.steps}"
        ended = f"the command ended with {exit_words(code)} after {steps} steps"
        if not self._trial.log.is_file():
            ended += f"; something else is now in place of {self._trial.log.name}"
        if code:
            printed = read_end(self._trial.log, _LAST_BYTES).strip()
            end = end_by_words(printed, ended + (f": {one_line(printed.splitlines()[-1])}" if printed else ""))
            elsewhere = self._failed_elsewhere()  # of which this may be the consequence
            return end.model_copy(update={"message": f"{end.message}; {elsewhere}"}) if elsewhere else end
        if self._done:
            advice = f"ask for --steps {self._done}, or pass the number of steps to the command by {{steps}}"
            return EndFile(kind=JobExit.FAILED, message=ended if self._job.until_end else f"{ended}: {advice}")
        where = " nor in ".join((self._trial.log.name, *self._job.log_files))
        looked = f"no step of {f'format {self._job.log_format}' if self._job.log_format else 'a known format'}"
        advice = "name its log and format under log in a job file of placebench run"
        if may_lack_log(self._job):
            advice += ", print for each step a line such as 'step:3 - timing_s/step:1.25', or mark it by span(\"step\")"
        spans = ", nor have its processes written a span" if self._job.until_end else ""
        return EndFile(kind=JobExit.FAILED, message=f"{ended}: {looked} in {where}{spans}; {advice}")

    def _start_ray(self, address: str) -> None:
        """Start the head of the launch's own Ray, and join the other nodes to it."""
        self._progress("ray")
        if shutil.which("ray", path=self._environment.get("PATH", os.defpath)) is None:
            raise LaunchError(
                "there is no program ray on PATH to start the job's own Ray: activate the environment of its"
                " framework, or name that environment as python in a job file"
            )
        log = self._trial.path / "ray.log"
        words = ray_head(address, self._environment["RAY_TMPDIR"])
        wait_for_ray(self._start("ray", words, self._environment, log), address, log, _HEAD_S)
        self._nodes.start(self._job, self._own_environment, _HEAD_S)

    def _start_beside(self) -> None:
        """Start what the command needs beside it: its parts on other nodes, servers."""
        if not self._job.ray_head:
            self._nodes.start(self._job, self._own_environment, _HEAD_S)
        for one in self._job.companions:
            log = self._trial.path / f"{one.name}.log"
            self._start(one.name, one.command, {**self._environment, **one.env}, log)

    @property
    def _environment(self) -> dict[str, str]:
        env = {**os.environ, **_LINE_BY_LINE, **self._job.env}
        if self._job.ray == "own":
            env.pop("RAY_ADDRESS", None)  # Ray would join whatever this names
            env |= self._own_environment
        return env

    @property
    def _own_environment(self) -> dict[str, str]:
        """Variables by which the parts of the launch's own Ray find each other; none where it has none."""
        if self._job.ray != "own":
            return {}
        # Without a token Ray would leave one in the user's home.
        env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self._token, HEAD_PATIENCE[0]: HEAD_PATIENCE[1]}
        return env | ({"RAY_ADDRESS": self._job.ray_head} if self._job.ray_head else {})

    _token = secrets.token_hex(32)

    def _start(self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
        """Start a command that dies with this process, in a session of its own."""
        with self._on_cores():
            process = start_bound(command, env, cwd=self._job.cwd, log=log)
        self._running.append((name, process))
        return process

    @contextlib.contextmanager
    def _on_cores(self) -> Any:
        """Let what is started meanwhile run on the cores of the launch's CPU devices."""
        cores = {core for device in self._devices for core in device.cores}
        before = os.sched_getaffinity(0)
        if cores:
            os.sched_setaffinity(0, cores)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    def _wait_for(self, name: str, command: Sequence[str]) -> None:
        """Run a command to its end.

        Raises:
            LaunchError: it fails.
        """
        log = self._trial.log
        size = log.stat().st_size if log.is_file() else 0
        process = self._start(name, command, self._environment, log)
        try:
            while process.poll() is None:
                self._reap()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_S)
        finally:
            self._end(process)
            self._running.pop()
        if process.returncode:
            more = log.stat().st_size - size if log.is_file() else 0
            said = read_end(log, min(more, _LAST_BYTES)).strip().splitlines()[-1:] if more > 0 else []
            what = one_line(said[0]) if said else shown(command)
            raise LaunchError(f"{name} ended with {exit_words(process.returncode)}: {what}")

    def _reap(self) -> None:
        """Let go of what the job's processes have left behind and what has ended since, now and then."""
        if time.monotonic() - self._reaped >= _REAP_EVERY_S:
            self._reaped = time.monotonic()
            reap_orphans([process.pid for _, process in self._running])

    def _stop_all(self) -> None:
        """End what runs, the last that was started first."""
        while self._running:
            self._end(self._running.pop()[1])

    @staticmethod
    def _end(process: "subprocess.Popen[bytes]") -> None:
        """End a process and its group: in order if it does so at once, else by force."""
        for number, patience in ((signal.SIGTERM, _END_S), (signal.SIGKILL, _END_S)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience)
                if number == signal.SIGKILL:
                    return

    def _register(self, pid: int) -> None:
        """The command as the process of its device, where there is but one: of several its workers have to say it."""
        if len(self._devices) == 1:
            self._bind([(pid, self._devices[0])])

    def _bind(self, bound: Sequence[tuple[int, Device]]) -> None:
        """Note which process works on which device, for the sampler of CPU devices."""
        with append_to(self._trial.processes) as stream:
            for pid, device in bound:
                pool = self._asked.run_placement.pool_of(device.id)
                row = {"pid": pid, "device": device.id, "pool": pool, "rank": None, "threads": None}
                append_jsonl(stream, row)
                self._nodes.register(pid, device.id)

    def _write(self, found: Found) -> None:
        if len(self._devices) > 1 and found.bound:
            self._bind(found.bound)
        if found.allotted:
            with append_to(self._trial.ray) as workers:
                for worker in found.allotted:
                    append_jsonl(workers, worker)
        if not found.steps and not found.spans:
            return
        with append_to(self._trial.steps) as rows, append_to(self._trial.spans) as spans:
            for span in found.spans:
                append_jsonl(spans, span)
            for row in found.steps:
                append_jsonl(rows, row)
        self._done += len(found.steps)
        if found.steps:
            self._progress(IN_STEP, min(self._done + 1, self._job.steps))

    def _tell(self, reader: StepReader) -> None:
        """Say which phases of the step under way are done, as far as that is known, now and then."""
        if time.monotonic() - self._told < _TELL_EVERY_S:
            return
        self._told = time.monotonic()
        if (phases := reader.under_way()) and phases != self._phases:
            self._progress(IN_STEP, min(self._done + 1, self._job.steps), phases)

    def _progress(self, stage: str, step: int = 0, phases: tuple[PhaseTime, ...] = ()) -> None:
        self._phases = phases
        Progress(stage=stage, step=step, steps=self._job.steps, phases=phases).write(self._trial)


def shown(command: Sequence[str]) -> str:
    """A command as a shell takes it, not all of a long one."""
    text = shlex.join(command)
    return text if len(text) <= 100 else f"{text[:100]}…"


def _end_by(error: Exception, trial: Trial) -> EndFile:
    """What ended a launch; of what was not foreseen, the traceback is left in its folder."""
    if isinstance(error, LaunchError):
        return EndFile(kind=JobExit.FAILED, message=str(error))
    write_atomically(trial.error, traceback.format_exc())
    traceback.print_exc()
    return end_by(error)


def main(folder: str) -> int:
    """Run the launch of a trial folder; returns the exit code."""
    trial = Trial(Path(folder))
    # SIGTERM ends it by exception, so that what it has started is ended in order.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        end = Bridge(trial).run()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001 - likewise
        end = _end_by(error, trial)
    end.write(trial)
    return end.kind


if __name__ == "__main__":
    adopt_orphans()
    sys.exit(main(sys.argv[1]))
