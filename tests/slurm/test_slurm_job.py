"""The job that the batch script starts, and its summary, without SLURM."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launching import wait_for

from placebench.errors import PlacebenchError, UsageError
from placebench.slurm.job import job_folder, read_allocation, run_command, unfinished_run
from placebench.slurm.node import ray_command
from placebench.slurm.summary import Allocation, JobFacts, job_summary

FACTS: dict[str, Any] = {
    "job": Allocation("17", 0, ("n1", "n2")),
    "command": ("placebench", "run", "--name", "two words"),
    "begun": "2026-11-21T10:00:00Z",
    "seconds": 61.0,
    "exit_code": 0,
    "stopped_by": None,
    "requeued": False,
    "error": None,
}


def test_the_first_node_of_the_step_is_rays_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "3")
    monkeypatch.setenv("SLURM_NODEID", "0")
    head = ray_command(6379, "10.0.0.1", "/tmp/pb-1", 4)
    assert head[1:5] == ["start", "--block", "--node-name=n1", "--num-cpus=4"]
    assert {"--head", "--port=6379", "--num-gpus=4", "--temp-dir=/tmp/pb-1"} <= set(head)
    monkeypatch.setenv("SLURM_NODEID", "1")
    other = ray_command(6379, "10.0.0.1", "/tmp/pb-1", 0)
    assert "--address=10.0.0.1:6379" in other
    assert "--head" not in other
    assert "--num-cpus=3" in other


def test_outside_a_job_there_is_no_allocation() -> None:
    with pytest.raises(PlacebenchError, match="SLURM_JOB_ID is not set"):
        read_allocation({})
    words = ["--logs", "logs", "--gpus-per-node", "0", "--", "run"]
    outside = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    job = [sys.executable, "-m", "placebench.slurm.job", *words]
    done = subprocess.run(job, env=outside, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == PlacebenchError.exit_code
    assert done.stderr.splitlines() == [
        "placebench: SLURM_JOB_ID is not set: this runs in a job of placebench slurm submit"
    ]


def test_a_job_that_was_queued_again_goes_on_in_its_folder(tmp_path: Path) -> None:
    first = job_folder(tmp_path, Allocation("17", 0, ("n1",)))
    assert first.name.startswith("placebench_17_")
    assert job_folder(tmp_path, Allocation("17", 1, ("n1",))) == first
    assert job_folder(tmp_path, Allocation("171", 1, ("n1",))) != first
    assert unfinished_run(first) is None
    for name, status in (("a", "done"), ("b", "interrupted")):
        (first / "runs" / name).mkdir(parents=True)
        (first / "runs" / name / "run.json").write_text(json.dumps({"status": status}))
    assert unfinished_run(first) == first / "runs" / "b"


def test_a_run_s_folder_is_named_before_the_user_s_command(tmp_path: Path) -> None:
    words = ("run", "--job", "command", "--", "bash", "run.sh", "--resume-from", "x")
    runs = tmp_path / "runs"
    assert run_command(words, tmp_path, None)[3:] == [*words[:3], "--out", str(runs), *words[3:]]
    (runs / "b").mkdir(parents=True)
    (runs / "b" / "run.json").write_text(json.dumps({"status": "interrupted"}))
    assert run_command(words, tmp_path, None)[3:] == [*words[:3], "--resume", str(runs / "b"), *words[3:]]


@pytest.mark.parametrize("start", [("--resume-from", "runs/a"), ("--resume-from=runs/a",), ()])
def test_a_run_that_goes_on_has_its_checkpoint_already(tmp_path: Path, start: tuple[str, ...]) -> None:
    words = ("run", "--rounds", "3", *start, "--steps", "9")
    given, cluster = [sys.executable, "-m", "placebench"], ["--ray-address", "n1:1"]
    first = run_command(words, tmp_path, "n1:1")
    assert first == [*given, *words, *cluster, "--out", str(tmp_path / "runs")]
    (tmp_path / "runs" / "b").mkdir(parents=True)
    (tmp_path / "runs" / "b" / "run.json").write_text(json.dumps({"status": "interrupted"}))
    again = run_command(words, tmp_path, "n1:1")
    assert run_command(words, tmp_path, None)[-2:] == ["--resume", str(tmp_path / "runs" / "b")]
    assert "--ray-address" not in run_command(words, tmp_path, None)
    kept = ["run", "--rounds", "3", "--steps", "9"]
    assert again == [*given, *kept, *cluster, "--resume", str(tmp_path / "runs" / "b")]


@pytest.mark.parametrize(
    ("files", "reports"),
    [
        ({}, True),
        ({"summary.json": "interrupted", "report.html": ""}, True),  # of an earlier stop
        ({"summary.json": "done"}, True),
        ({"summary.json": "done", "report.html": ""}, False),
    ],
)
def test_a_run_that_lacks_its_report_alone_is_not_run_again(
    tmp_path: Path, files: dict[str, str], reports: bool
) -> None:
    run = tmp_path / "runs" / "b"
    run.mkdir(parents=True)
    for name, status in {"run.json": "done", **files}.items():
        (run / name).write_text(json.dumps({"status": status}))
    command = run_command(("run", "--rounds", "3"), tmp_path, "n1:1")[3:]
    begun_again = ["run", "--rounds", "3", "--ray-address", "n1:1", "--out", str(tmp_path / "runs")]
    assert command == (["report", str(run)] if reports else begun_again)
    (run / "run.json").write_text(json.dumps({"status": "interrupted"}))
    assert run_command(("run",), tmp_path, "n1:1")[-2:] == ["--resume", str(run)]


# The programs of a SLURM whose controller does not answer squeue; what it is asked for besides is written down.
SLOW_SLURM = {
    "scontrol": '[ "$1" = show ] && echo n1 || echo "$@" >>"$ASKED"',
    "srun": "exec sleep 60",
    "squeue": "exec sleep 60",
}


# Its job, with little patience; what the run would be is never reached.
IMPATIENT = """
import sys
from placebench.slurm import job
job._ASK_TIMEOUT_S = job._STOP_TIMEOUT_S = 0.2
sys.exit(job.main(sys.argv[1:]))
"""
# With time for the programs that answer.
ASKS_LONG = IMPATIENT.replace("sys.exit", "job._ASK_TIMEOUT_S = 5\nsys.exit")


@pytest.fixture
def slow_slurm(tmp_path: Path) -> dict[str, str]:
    """The environment of a job."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, body in SLOW_SLURM.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "ASKED": str(tmp_path / "asked")}
    return {**os.environ, **job, "PATH": f"{programs}:{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("program", "scontrol", "state", "asked"),
    [
        (ASKS_LONG, SLOW_SLURM["scontrol"], "stopped before its time limit; queued again", "requeue 7"),
        (
            IMPATIENT,
            '[ "$1" = show ] && echo n1 || exec sleep 60',
            "failed (exit code 130): queueing it again failed",
            "",
        ),
    ],
    ids=["slow", "slower"],
)
def test_a_slow_controller_costs_neither_summary_nor_requeue(
    tmp_path: Path, slow_slurm: dict[str, str], program: str, scontrol: str, state: str, asked: str
) -> None:
    (tmp_path / "bin" / "scontrol").write_text(f"#!/bin/sh\n{scontrol}\n")
    words = ["--logs", str(tmp_path), "--gpus-per-node", "0", "--requeue", "--", "run"]
    with subprocess.Popen([sys.executable, "-c", program, *words], env=slow_slurm) as job:
        wait_for(lambda: list(tmp_path.glob("placebench_7_*/ray.log")))
        job.send_signal(signal.SIGUSR1)
        assert job.wait(60) == 128 + signal.SIGINT
    (folder,) = tmp_path.glob("placebench_7_*")
    assert state in (folder / "job_summary.txt").read_text().splitlines()[1]
    assert "Ray was not asked to end" in (folder / "output.log").read_text()
    assert (tmp_path / "asked").exists() == bool(asked)
    assert not asked or (tmp_path / "asked").read_text().strip() == asked


def test_a_folder_that_the_node_cannot_write_is_one_line(tmp_path: Path, slow_slurm: dict[str, str]) -> None:
    (tmp_path / "logs").write_text("")
    words = ["--logs", str(tmp_path / "logs"), "--gpus-per-node", "0", "--", "run"]
    command = [sys.executable, "-c", IMPATIENT, *words]
    done = subprocess.run(command, env=slow_slurm, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == UsageError.exit_code
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"placebench: {tmp_path / 'logs'}/placebench_7_")
    assert line.endswith("Not a directory: name another folder with --logs of placebench slurm submit")


def test_a_step_that_has_ended_by_itself_is_no_fault(tmp_path: Path, slow_slurm: dict[str, str]) -> None:
    ended = tmp_path / "ended"
    (tmp_path / "bin" / "srun").write_text(f"#!/bin/sh\nuntil [ -e {ended} ]; do sleep 0.1; done\n")
    (tmp_path / "bin" / "squeue").write_text("#!/bin/sh\necho 7.0 placebench-ray\n")
    (tmp_path / "bin" / "scancel").write_text(f"#!/bin/sh\ntouch {ended}\necho no such step >&2\nexit 1\n")
    (tmp_path / "bin" / "scancel").chmod(0o755)
    words = ["--logs", str(tmp_path), "--gpus-per-node", "0", "--", "run"]
    patient = IMPATIENT.replace("0.2", "20")
    with subprocess.Popen([sys.executable, "-c", patient, *words], env=slow_slurm) as job:
        wait_for(lambda: list(tmp_path.glob("placebench_7_*/ray.log")))
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == 128 + signal.SIGINT
    (folder,) = tmp_path.glob("placebench_7_*")
    assert (folder / "output.log").read_text() == ""


def test_the_summary_tells_of_a_fault_too(tmp_path: Path, slow_slurm: dict[str, str]) -> None:
    (tmp_path / "bin" / "srun").unlink()
    words = ["--logs", str(tmp_path), "--gpus-per-node", "0", "--", "run"]
    without_srun = {**slow_slurm, "PATH": str(tmp_path / "bin")}
    done = subprocess.run([sys.executable, "-c", IMPATIENT, *words], env=without_srun, check=False, timeout=60)
    assert done.returncode == os.EX_SOFTWARE
    (folder,) = tmp_path.glob("placebench_7_*")
    state = (folder / "job_summary.txt").read_text().splitlines()[1]
    assert "failed (exit code 70): unexpected FileNotFoundError" in state
    assert "Traceback" in (folder / "output.log").read_text()


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "done (exit code 0)"),
        ({"exit_code": 3}, "failed (exit code 3)"),
        ({"exit_code": 3, "error": "no Ray"}, "failed (exit code 3): no Ray"),
        ({"exit_code": 124}, "stopped by --time-limit of the run (exit code 124)"),
        ({"exit_code": 130, "stopped_by": signal.SIGUSR1}, "stopped before its time limit (exit code 130)"),
        ({"exit_code": 130, "stopped_by": signal.SIGUSR1, "requeued": True}, "queued again, it goes on where it was"),
        ({"exit_code": 130, "stopped_by": signal.SIGTERM}, "stopped by SLURM (cancelled or preempted) (exit code 130)"),
    ],
)
def test_the_summary_says_how_the_job_ended(tmp_path: Path, changes: dict[str, Any], state: str) -> None:
    text = job_summary(tmp_path, JobFacts(**{**FACTS, **changes}))
    assert state in text.splitlines()[1]
    assert "'two words'" in text
    assert "2: n1, n2" in text
    assert "1:01 min" in text


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "[]", '{"status": "done"}'])
def test_damaged_runs_end_no_job(tmp_path: Path, text: str) -> None:
    run = tmp_path / "runs" / "a"
    run.mkdir(parents=True)
    (run / "run.json").write_text(text)
    assert f"run:          {run}: cannot read run.json or summary.json: " in job_summary(tmp_path, JobFacts(**FACTS))
    if "done" not in text:
        assert run_command(("run",), tmp_path, "n1:1")[-2:] == ["--resume", str(run)]
