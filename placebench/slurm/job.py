"""`python -m placebench.slurm.job … -- run …`: the job on the first node of an allocation.

Starts Ray on every node and runs placebench on it as any Ray cluster, or runs placebench alone where torchrun is its
launcher; stops it in order before the time limit, and leaves `<logs>/placebench_<job id>_<time>/`: `output.log`,
`ray.log`, `runs/`, `job_summary.txt`. A job that was queued again goes on in the folder it began.
"""

import argparse
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from placebench.errors import PlacebenchError, UsageError
from placebench.host.network import free_port
from placebench.host.processes import ray_temp_dir
from placebench.host.signals import ENDING
from placebench.host.terminal import say
from placebench.record.folder import RunFolder, Status, recorded_text
from placebench.record.writing import utc_now, write_atomically
from placebench.report.paths import HTML
from placebench.sessions.ray_cluster.discovery import PROBE
from placebench.sessions.slurm_steps import host_names, step_command
from placebench.slurm.summary import Allocation, JobFacts, job_summary
from placebench.spec.launchers import COMMAND, LAUNCHERS, RAY

_RAY_TIMEOUT_S = 180.0
_ASK_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 20.0
_POLL_S = 0.5
_STEP = "placebench-ray"
# Exit codes of a run that was stopped in order, and of a fault of this program, as `placebench` itself has them.
_STOPPED, _UNEXPECTED = 128 + signal.SIGINT, os.EX_SOFTWARE


def read_allocation(environment: Mapping[str, str]) -> Allocation:
    """The job's allocation.

    Raises:
        PlacebenchError: this is no batch job.
    """
    try:
        job_id, names = environment["SLURM_JOB_ID"], environment["SLURM_JOB_NODELIST"]
    except KeyError as missing:
        raise PlacebenchError(f"{missing.args[0]} is not set: this runs in a job of placebench slurm submit") from None
    return Allocation(job_id, int(environment.get("SLURM_RESTART_COUNT", "0")), host_names(names))


def job_folder(logs: Path, job: Allocation) -> Path:
    """The job's folder: a new one, or the one it began before it was queued again."""
    earlier = sorted(logs.glob(f"placebench_{job.job_id}_*/")) if job.restarts else []
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    folder = earlier[-1] if earlier else logs / f"placebench_{job.job_id}_{now}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Signals:
    """Remembers why the job has to stop, and stops the process that runs."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._process: subprocess.Popen[bytes] | None = None
        for number in ENDING:
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: object) -> None:
        self.received = signal.Signals(number)
        if self._process is not None:
            self._process.terminate()

    def wait(self, process: "subprocess.Popen[bytes]") -> int:
        """Wait for a process, which is told to stop when the job is; returns its exit code."""
        self._process = process
        if self.received is not None:
            process.terminate()
        try:
            return process.wait()
        finally:
            self._process = None


@contextlib.contextmanager
def ray_on(job: Allocation, folder: Path, gpus: int, signals: Signals) -> Iterator[str]:
    """Ray on all nodes of the allocation while the body runs; gives its address.

    Raises:
        PlacebenchError: it does not come up on all of them.
    """
    # A token of its own keeps the other users of the network out.
    os.environ |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # what there was to finish has finished
    }
    import ray

    # The address by which Ray's other nodes reach this one.
    port, head = free_port(), str(ray.util.get_node_ip_address())
    temp = ray_temp_dir(secrets.token_hex(4))
    words = [sys.executable, "-m", "placebench.slurm.node", str(port), head, str(temp), str(gpus)]
    step = step_command(_STEP, job.nodes)
    with (folder / "ray.log").open("ab") as log:
        nodes = subprocess.Popen([*step, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait_for_nodes(f"{head}:{port}", len(job.nodes), nodes, signals, folder / "ray.log")
            yield f"{head}:{port}"
        finally:
            refused = _end_step(job)
            try:
                nodes.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                # A step that SLURM has ended by itself, as with a cancelled job, needed nobody to ask.
                if refused:
                    say(f"placebench: Ray was not asked to end: {refused}; SLURM ends it with the job", sys.stderr)
                nodes.kill()
                nodes.wait()


def _wait_for_nodes(address: str, count: int, step: "subprocess.Popen[bytes]", signals: Signals, log: Path) -> None:
    deadline = time.monotonic() + _RAY_TIMEOUT_S
    there = 0
    while there < count:
        if signals.received is not None:
            return
        if step.poll() is not None:
            raise PlacebenchError(f"Ray has not started on the {count} nodes (exit code {step.returncode}): see {log}")
        if time.monotonic() > deadline:
            raise PlacebenchError(f"after {_RAY_TIMEOUT_S:g} s Ray runs on only {there} of {count} nodes: see {log}")
        time.sleep(_POLL_S)
        there = _count_nodes(address)


def _count_nodes(address: str) -> int:
    """Nodes that have joined; 0 as long as there is no head to ask."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_ASK_TIMEOUT_S).close()
        done = subprocess.run([*PROBE, address, "cpu:1"], capture_output=True, timeout=_ASK_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    lines = done.stdout.splitlines()
    return 0 if done.returncode or not lines else len(json.loads(lines[-1]).get("nodes", ()))


def run_command(words: Sequence[str], folder: Path, address: str | None) -> list[str]:
    """The command of the run: as given, or to go on with what an earlier start of the job has left.

    A run that lacks nothing but its report gets that alone: begun again, it would take all of its time once more.

    Args:
        words: the run, as given.
        folder: of the job.
        address: of the Ray that the job has started; None where it starts none.
    """
    program, cluster = [sys.executable, "-m", "placebench"], ["--ray-address", address] if address else []
    end = words.index("--") if "--" in words else len(words)
    words, command = words[:end], words[end:]
    if begun := unfinished_run(folder):
        # The run has its checkpoint written down, and takes no other one.
        return [*program, *_without("--resume-from", words), *cluster, "--resume", str(begun), *command]
    if done := unreported_run(folder):
        return [*program, "report", str(done)]
    return [*program, *words, *cluster, "--out", str(folder / "runs"), *command]


def _without(option: str, words: Sequence[str]) -> Iterator[str]:
    """The words of a command less an option and its value."""
    rest = iter(words)
    for word in rest:
        if word == option:
            next(rest, None)
        elif not word.startswith(f"{option}="):
            yield word


def unfinished_run(folder: Path) -> Path | None:
    """The run of an earlier start of the job that has not come to its end; None without one."""
    files = sorted((folder / "runs").glob("*/run.json"), reverse=True)
    return next((file.parent for file in files if recorded_text(file, "status") != Status.DONE), None)


def unreported_run(folder: Path) -> Path | None:
    """The newest run of an earlier start of the job, where it is done and its report is not; else None."""
    runs = sorted((folder / "runs").glob("*/run.json"))
    if not runs or recorded_text(runs[-1], "status") != Status.DONE:
        return None
    run = RunFolder(runs[-1].parent)
    # The page is written last; a summary of another status is that of an earlier stop of the run.
    is_whole = (run.path / HTML).exists() and recorded_text(run.summary_file, "status") == Status.DONE
    return None if is_whole else run.path


def _end_step(job: Allocation) -> str | None:
    """Ask Ray's tasks to end: srun itself would have them killed at once, with their files left on the nodes.

    Returns:
        Why they were not asked; None when they were. What the run has done is there all the same, and is summed up.
    """
    asked = ["squeue", "--noheader", "--steps", f"--jobs={job.job_id}", "--format=%i %j"]
    try:
        listed = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=_ASK_TIMEOUT_S)
        for line in listed.stdout.splitlines():
            step, _, name = line.strip().partition(" ")
            if name.strip() == _STEP:
                ask = ["scancel", "--signal=TERM", step]
                subprocess.run(ask, capture_output=True, check=True, timeout=_ASK_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return None


def main(arguments: Sequence[str]) -> int:
    """Run the job; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m placebench.slurm.job")
    parser.add_argument("--logs", type=Path, required=True)
    parser.add_argument("--gpus-per-node", type=int, required=True)
    parser.add_argument("--requeue", action="store_true")
    parser.add_argument("--launcher", choices=(*LAUNCHERS, COMMAND), default=RAY)
    parser.add_argument("run", nargs="+")
    options = parser.parse_args(arguments)
    signals = Signals()
    try:
        job = read_allocation(os.environ)
        folder = _begin_folder(options.logs, job)
    except PlacebenchError as wrong:
        say(f"placebench: {wrong}", sys.stderr)
        return wrong.exit_code
    session = ray_on(job, folder, options.gpus_per_node, signals) if options.launcher == RAY else nullcontext()
    begun, started = utc_now(), time.monotonic()
    code, error = _run(options.run, folder, session, signals)
    facts = JobFacts(
        job=job,
        command=("placebench", *options.run),
        begun=begun,
        seconds=time.monotonic() - started,
        exit_code=code,
        stopped_by=signals.received,
        requeued=options.requeue and signals.received is signal.SIGUSR1 and code != 0,
        error=error,
    )
    _end(folder, facts)
    return code


def _begin_folder(logs: Path, job: Allocation) -> Path:
    """The job's folder, to whose `output.log` goes what is said from now on.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        folder = job_folder(logs, job)
        with (folder / "output.log").open("ab", buffering=0) as output:
            os.dup2(output.fileno(), sys.stdout.fileno())
            os.dup2(output.fileno(), sys.stderr.fileno())
    except OSError as wrong:
        where = wrong.filename or logs
        raise UsageError(
            f"{where}: {wrong.strerror}: name another folder with --logs of placebench slurm submit"
        ) from None
    return folder


def _run(
    words: Sequence[str], folder: Path, session: AbstractContextManager[str | None], signals: Signals
) -> tuple[int, str | None]:
    """Run placebench on the allocation; returns its exit code, and why it could not start or end in order."""
    try:
        with session as address:
            code = _STOPPED
            if signals.received is None:
                code = signals.wait(subprocess.Popen(run_command(words, folder, address)))
    except PlacebenchError as failed:
        say(f"placebench: {failed}", sys.stderr)
        return failed.exit_code, str(failed)
    except Exception as failed:  # noqa: BLE001 - whatever it is, there is a summary, and the job can go on
        traceback.print_exc()
        return _UNEXPECTED, f"unexpected {type(failed).__name__}: {failed}"
    return code, None


def _end(folder: Path, facts: JobFacts) -> None:
    """Leave the job's summary, and have it queued again where it is to be."""
    write_atomically(folder / "job_summary.txt", job_summary(folder, facts))
    if facts.requeued and (refused := _requeue(facts.job)):
        facts = replace(facts, requeued=False, error=refused)
        write_atomically(folder / "job_summary.txt", job_summary(folder, facts))


def _requeue(job: Allocation) -> str | None:
    """Have the job queued again, which ends it at once; returns why it is not."""
    try:
        subprocess.run(["scontrol", "requeue", job.job_id], check=True, timeout=_ASK_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        why = f"queueing it again failed: {error}"
        say(f"placebench: {why}", sys.stderr)
        return why
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
