"""The batch script and the summary of a job; what SLURM itself does with them is tested in tests/slurm."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from launching import wait_for

from placebench.cli import main
from placebench.errors import PlacebenchError, UsageError
from placebench.host import devices
from placebench.slurm.checks import USUAL_CPU_DEVICES
from placebench.slurm.job import Allocation, job_folder, read_allocation, run_command, unfinished_run
from placebench.slurm.node import ray_command
from placebench.slurm.script import Submission, _seconds, batch_script
from placebench.slurm.summary import JobFacts, job_summary

GOLDEN = """#!/usr/bin/env bash
#SBATCH --job-name=placebench
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
#SBATCH --output=logs/placebench_%j.slurm
#SBATCH --open-mode=append
#SBATCH --no-kill
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --time 4:00:00
#SBATCH "--comment=two words"

# Starts Ray on every node of the allocation, runs placebench on it, and sums up what came of it.
set -euo pipefail
cd '/home/me/my runs'
export NCCL_DEBUG=INFO
export TORCH_DISTRIBUTED_DEBUG=INFO
exec PYTHON -m placebench.slurm.job --logs=logs --gpus-per-node=4 --requeue -- run --set 'data.source=a b.jsonl'
"""
JOB = Submission(
    nodes=2,
    gpus_per_node=4,
    run=("run", "--set", "data.source=a b.jsonl"),
    sbatch=("--time", "4:00:00", "--comment=two words"),
    folder=Path("/home/me/my runs"),
    requeues=True,
    debug=True,
)


def test_the_script_is_as_it_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "PYTHON")
    assert batch_script(JOB) == GOLDEN


def test_a_job_under_torchrun_starts_no_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", "PYTHON")
    script = batch_script(replace(JOB, launcher="torchrun", run=("run", "--launcher", "torchrun")))
    assert script.splitlines()[-1] == (
        "exec PYTHON -m placebench.slurm.job --logs=logs --gpus-per-node=4 --requeue --launcher=torchrun"
        " -- run --launcher torchrun"
    )
    assert "# Runs placebench, which starts torchrun on the nodes of the allocation, and sums up" in script
    (tmp_path / "bench.yaml").write_text("launcher: torchrun\nplacements: [ddp:2]\n")
    for words in (["--launcher", "torchrun", "--placements", "ddp:2"], ["--config", str(tmp_path / "bench.yaml")]):
        done = CliRunner().invoke(main, ["slurm", "submit", "--print", "--", "run", *words, "--devices", "cpu:2"])
        assert done.exit_code == 0, done.stderr
        assert "--launcher=torchrun -- run" in done.stdout
    done = CliRunner().invoke(main, ["slurm", "submit", "--print", "--", "run", "--launcher", "torchrun"])
    assert done.exit_code == 2
    assert (
        "--launcher torchrun is for ddp alone, as in --placements ddp:1,ddp:2: leave out standard, split" in done.stderr
    )


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("job", [JOB, Submission(1, 0, ("run",))])
def test_shellcheck_finds_nothing(job: Submission) -> None:
    for script in (batch_script(job), (Path(__file__).with_name("with_slurm.sh")).read_text()):
        done = subprocess.run(["shellcheck", "-"], input=script, capture_output=True, text=True, check=False)
        assert done.stdout == ""


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), max_size=4))
def test_the_runs_words_arrive_as_they_were_given(words: list[str]) -> None:
    words = [word for word in words if word.partition("=")[0] not in ("--out", "--ray-address", "--resume")]
    script = batch_script(Submission(1, 0, ("run", *words)))
    command = shlex.split(script[script.index("\nexec ") :])
    assert command[command.index("--") + 1 :] == ["run", *words]


def test_a_node_is_the_jobs_alone_unless_its_cores_are_counted() -> None:
    assert "#SBATCH --exclusive\n" in batch_script(Submission(1, 0, ("run",)))
    assert "--exclusive" not in batch_script(Submission(1, 0, ("run",), ("--cpus-per-task=4",)))
    for words in (("-c", "4"), ("-c4",), ("-s",), ("--exclusive=user",), ("--cpus-per-task", "4")):
        script = batch_script(Submission(1, 0, ("run",), words))
        assert f"#SBATCH {' '.join(words)}\n" in script
        assert "#SBATCH --exclusive\n" not in script


def test_a_folder_of_jobs_may_have_blanks() -> None:
    script = batch_script(Submission(1, 0, ("run",), logs=Path("my logs")))
    assert '#SBATCH "--output=my logs/placebench_%j.slurm"\n' in script


def test_an_h_within_a_short_option_asks_for_no_help() -> None:
    result = CliRunner().invoke(main, ["slurm", "submit", "--print", "-phopper", "--", "run"])
    assert result.exit_code == 0
    assert "#SBATCH -phopper\n" in result.stdout
    for words in (["--help"], ["-h"], ["--nodes", "2", "-h"]):
        helped = CliRunner().invoke(main, ["slurm", "submit", *words])
        assert helped.exit_code == 0
        assert helped.stdout.startswith("Usage: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--", "show", "latest"], "the command after -- is show latest: write -- run"),
        ([], "the command after -- is nothing: write -- run"),
        (["--output=x", "--", "run"], "--output: the script sets it itself; all output is in the job's folder"),
        (["-ox", "--", "run"], "--output: the script sets it itself"),
        (["--array", "1-3", "--", "run"], "--array: the script sets it itself; submit several jobs"),
        (["-n", "4", "--", "run"], "--ntasks: the script sets it itself"),
        (["--nodes", "2", "-N", "4", "--", "run"], "--nodes: the script sets it itself; write --nodes in full"),
        (["-N4", "--", "run"], "--nodes: the script sets it itself"),
        (["-D", "/tmp", "--", "run"], "--chdir: the script sets it itself; the job runs in the folder that it is"),
        (["-D/tmp", "--", "run"], "--chdir: the script sets it itself"),
        (["--chdir=/tmp", "--", "run"], "--chdir: the script sets it itself"),
        (["--gpus-per-task", "1", "--", "run"], "--gpus-per-task: the script sets it itself; give --gpus-per-node"),
        (["gpu", "--", "run"], "'gpu' is neither an option of sbatch nor after --"),
        (["--comment=a\nb", "--", "run"], "has a line break in it"),
        (["--", "run", "--out", "x"], "--out after --: the job sets it itself; leave it out"),
        (["--", "run", "--ray-address=auto"], "--ray-address after --: the job sets it itself"),
        (["--", "run", "--resume", "latest"], "--resume after --: the job sets it itself; leave it out"),
        (["--", "run", "--rounds", "0"], "--rounds"),
        (["--", "run", "--bogus"], "No such option"),
        (["--", "run", "--placements", "splitt"], "unknown placement 'splitt'"),
        (["--", "run", "--placements", "mine.yaml"], "mine.yaml"),
        (["--nodes", "2", "--", "run", "--placements", "split:9+9"], "needs 18 devices"),
        (["--nodes", "2", "--", "run", "--devices", "cpu:3", "--placements", "split:4+4"], "there are 6 (3 on node 0"),
        (["--gpus-per-node", "4", "--", "run", "--placements", "ddp:8"], "there are 4"),
        (["--gpus-per-node", "4", "--", "run", "--devices", "gpu:2", "--placements", "ddp:4"], "there are 2"),
        (
            ["--gpus-per-node", "3", "--", "run", "--placements", "standard"],
            "cannot be shared equally by the 3 devices",
        ),
        (["--", "run", "--devices", "gpu:9"], "the job has 0 GPUs on each node; give --gpus-per-node 9 before --"),
        (["--gpus-per-node", "4", "--", "run", "--devices", "gpu:9"], "the job has 4 GPUs on each node"),
        (["--gpus-per-node", "4", "--", "run", "--devices", "gpu:4x2"], "write gpu:4 for so many of each"),
        (["--", "run", "--devices", "tpu:4"], "--devices 'tpu:4'"),
        (["--", "run", "--config", "nofile.yaml"], "nofile.yaml: cannot read it"),
        (["--", "run", "--set", "batch.sizes=3"], "unknown key 'batch.sizes'"),
        (["--", "run", "--set", "data.source=no.jsonl"], "no.jsonl"),
        (["--", "run", "--set", "data.reward=luck"], "data.reward 'luck': use "),
        (["--", "run", "--set", "reward_model=qwen2.5-0.5b"], "reward_model qwen2.5-0.5b: its vocabulary has"),
        (
            ["--", "run", "--set", "data.source=code", "--set", "batch.max_prompt_length=4"],
            "tokens and batch.max_prompt_length is 4; raise it",
        ),
        (["--", "run", "--model", "qwen2.5-9b"], "unknown model 'qwen2.5-9b'"),
        (["--", "run", "--precision", "5%"], "--precision"),
        (["--", "run", "--name", "two words"], "--name 'two words'"),
        (["--", "run", "--resume-from", "nowhere"], "--resume-from nowhere"),
        (["--", "run", "--checkpoint-every", "11"], "--checkpoint-every 11"),
        (["--nodes", "0", "--", "run"], "--nodes"),
        (["--logs", "", "--", "run"], "Invalid value for '--logs': it is empty: name a folder"),
        (["--", "run", "--model", ""], "unknown model ''"),
        (["--grace", "5", "--", "run"], "--grace"),
        (["--time", "1:00", "--", "run"], "--time 1:00: the run is stopped 120 s (--grace) before its limit"),
        (["-t2", "--", "run"], "--time 2: the run is stopped 120 s"),
        (["--time=0-1", "--grace", "3600", "--", "run"], "--time 0-1: the run is stopped 3600 s"),
        (["--requeue", "--time", "--", "run"], "--time: there is no time limit behind it"),
        (["-t", "--partition=gpu", "--", "run"], "-t: there is no time limit behind it"),
        (["--time=", "--", "run"], "--time=: there is no time limit behind it"),
    ],
)
def test_what_cannot_be_is_refused_before_it_is_submitted(words: list[str], said: str) -> None:
    result = CliRunner().invoke(main, ["slurm", "submit", "--print", *words])
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert said in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["--nodes", "2", "--gpus-per-node", "8", "--", "run", "--model", "qwen2.5-7b"],
        ["--nodes", "2", "--gpus-per-node", "4", "--", "run", "--placements", "standard,split@nodes", "--dry-run"],
        ["--gpus-per-node", "4", "--", "run", "--devices", "cpu:2", "--placements", "split"],
        ["--gpus-per-node", "4", "--", "run", "--devices", "gpu", "--placements", "split:2+2"],
        # How many devices share the batch is known on the nodes alone.
        ["--nodes", "3", "--", "run", "--batch-size", "64"],
        # So is whether they have the reward's module.
        ["--", "run", "--set", "data.reward=module_of_the_nodes:score"],
        ["--", "run", "--rounds", "auto"],
        ["--time", "2:01", "--", "run"],
        ["-t", "0", "--", "run"],  # no limit
        ["--time=UNLIMITED", "--", "run"],
    ],
)
def test_what_can_be_on_the_jobs_nodes_is_submitted(words: list[str]) -> None:
    result = CliRunner().invoke(main, ["slurm", "submit", "--print", *words])
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        ("30", 1800),
        ("1:00", 60),
        ("1:01", 120),
        ("4:00:00", 14400),
        ("1-2", 93600),
        ("1-2:30", 95400),
        ("1-2:30:30", 95460),
        ("0:00", 0),
        ("infinite", None),
        ("1:2:3:4", None),
        ("1-", None),
    ],
)
def test_time_limits_are_read_as_slurm_does(limit: str, seconds: int | None) -> None:
    assert _seconds(limit) == seconds


def test_a_node_has_as_many_cpu_devices_as_is_usual() -> None:
    assert devices._DEFAULT_CPU_DEVICES[1] == USUAL_CPU_DEVICES


SUBMITTED = """
import sys
from placebench.cli import main
try:
    main(["slurm", "submit", "--gpus-per-node", "4", "--print", "--", "run"])
except SystemExit as end:
    assert not end.code
print({"torch", "ray", "transformers"} & sys.modules.keys())
"""


def test_a_run_is_checked_without_the_packages_of_the_job() -> None:
    done = subprocess.run([sys.executable, "-c", SUBMITTED], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.splitlines()[-1] == "set()", done.stderr


def test_a_host_without_slurm_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = CliRunner().invoke(main, ["slurm", "submit", "--", "run"])
    assert result.exit_code == 3
    assert "sbatch is not installed here" in result.stderr


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("exit 1", "exit code 1"),
        ("echo 'sbatch: warning: foo' >&2; echo 'sbatch: error: real reason' >&2; exit 1", "real reason"),
        (
            "echo 'sbatch: error: no such partition' >&2; echo 'sbatch: error: it failed' >&2; exit 1",
            "no such partition; it failed",
        ),
        ("echo one >&2; echo two >&2; echo >&2; exit 1", "two"),
    ],
)
def test_why_sbatch_refuses_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str, said: str
) -> None:
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\n{body}\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    result = CliRunner().invoke(main, ["slurm", "submit", "--", "run"])
    assert (result.exit_code, result.stderr) == (2, f"placebench: sbatch refuses the job: {said}\n")


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
    ("scontrol", "state", "asked"),
    [
        (SLOW_SLURM["scontrol"], "stopped before its time limit; queued again", "requeue 7"),
        ('[ "$1" = show ] && echo n1 || exec sleep 60', "failed (exit code 130): queueing it again failed", ""),
    ],
    ids=["slow", "slower"],
)
def test_a_slow_controller_costs_neither_summary_nor_requeue(
    tmp_path: Path, slow_slurm: dict[str, str], scontrol: str, state: str, asked: str
) -> None:
    (tmp_path / "bin" / "scontrol").write_text(f"#!/bin/sh\n{scontrol}\n")
    words = ["--logs", str(tmp_path), "--gpus-per-node", "0", "--requeue", "--", "run"]
    with subprocess.Popen([sys.executable, "-c", IMPATIENT, *words], env=slow_slurm) as job:
        wait_for(lambda: list(tmp_path.glob("placebench_7_*/ray.log")), 60)
        job.send_signal(signal.SIGUSR1)
        assert job.wait(60) == 128 + signal.SIGINT
    (folder,) = tmp_path.glob("placebench_7_*")
    assert state in (folder / "job_summary.txt").read_text().splitlines()[1]
    assert "Ray was not asked to end" in (folder / "output.log").read_text()
    assert (tmp_path / "asked").exists() == bool(asked)
    assert not asked or (tmp_path / "asked").read_text().strip() == asked


def test_a_folder_of_jobs_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placebench.commands.slurm.os.access", lambda *_: False)
    words = ["slurm", "submit", "--logs", str(tmp_path), "--", "run", "--devices", "cpu:2"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == UsageError.exit_code
    assert f"--logs {tmp_path}: no permission to write there; name another folder" in result.stderr


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
        wait_for(lambda: list(tmp_path.glob("placebench_7_*/ray.log")), 60)
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


FACTS: dict[str, Any] = {
    "job_id": "17",
    "restarts": 0,
    "nodes": ("n1", "n2"),
    "command": ("placebench", "run", "--name", "two words"),
    "begun": "2026-11-21T10:00:00Z",
    "seconds": 61.0,
    "exit_code": 0,
    "stopped_by": None,
    "requeued": False,
    "error": None,
}


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


def test_all_reasons_are_told_at_once() -> None:
    with pytest.raises(UsageError) as raised:
        batch_script(Submission(1, 0, ("show",), ("--wrap=x", "--signal=9")))
    assert len(str(raised.value).splitlines()) == 3


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "[]", '{"status": "done"}'])
def test_damaged_runs_end_no_job(tmp_path: Path, text: str) -> None:
    run = tmp_path / "runs" / "a"
    run.mkdir(parents=True)
    (run / "run.json").write_text(text)
    assert f"run:          {run}: cannot read run.json or summary.json: " in job_summary(tmp_path, JobFacts(**FACTS))
    if "done" not in text:
        assert run_command(("run",), tmp_path, "n1:1")[-2:] == ["--resume", str(run)]


def test_what_is_wrong_with_job_and_run_is_told_at_once() -> None:
    words = [
        "--wrap=x",
        "--nodes",
        "2",
        "--",
        "run",
        "--rounds",
        "many",
        "--placements",
        "spilt,split:9+9",
        "--seed",
        "-1",
    ]
    done = CliRunner().invoke(main, ["slurm", "submit", *words])
    assert done.exit_code == 2
    for reason in ("--wrap", "--rounds 'many'", "unknown placement 'spilt'", "'split:9+9' needs 18", "seed: input"):
        assert reason in done.stderr
