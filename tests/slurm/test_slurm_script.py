"""The batch script and the summary of a job; what SLURM itself does with them is tested in tests/slurm."""

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from placebench.cli import main
from placebench.errors import UsageError
from placebench.host import devices
from placebench.slurm.checks import USUAL_CPU_DEVICES
from placebench.slurm.script import Submission, _seconds, batch_script
from placebench.spec.legible import visible

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
        "--launcher torchrun runs only ddp placements, as in --placements ddp:1,ddp:2: leave out standard, split"
        in done.stderr
    )


def test_a_job_of_the_user_s_has_its_command_last() -> None:
    words = ["--", "run", "--job", "command", "--steps", "4", "--", "bash", "-c", "exit 1"]
    done = CliRunner().invoke(main, ["slurm", "submit", "--print", *words])
    assert done.exit_code == 0, done.stderr
    assert done.stdout.endswith(f"--launcher=command {shlex.join(words)}\n")
    assert (
        "# Runs placebench, with a command of yours on the nodes of the allocation as its launches, and sums up"
        in done.stdout
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
    words = [visible(word) for word in words]  # others are refused
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
        (["--", "run", "--job", "verl", "--", "nothing-of-this-name"], "there is no program 'nothing-of-this-name'"),
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
        (["--comment=a\nb", "--", "run"], "a line of the script cannot hold"),
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
        (["--gpus-per-node", "4", "--", "run", "--devices", "gpu:4x2"], "write gpu:4 for that many on each node"),
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
        (["--", "run", "--allow-kill"], "--allow-kill is for the scripts of a job of yours"),
        (["--", "run", "--checkpoint-every", "11"], "--checkpoint-every 11"),
        (["--nodes", "0", "--", "run"], "--nodes"),
        (["--logs", "", "--", "run"], "Invalid value for '--logs': it is empty: name a folder"),
        (["--", "run", "--model", ""], "unknown model ''"),
        (["--grace", "5", "--", "run"], "--grace"),
        (["--time", "1:00", "--", "run"], "--time 1:00: the run is stopped 120 s (--grace) before its limit"),
        (["-t2", "--", "run"], "--time 2: the run is stopped 120 s"),
        (["--time=0-1", "--grace", "3600", "--", "run"], "--time 0-1: the run is stopped 3600 s"),
        (["--requeue", "--time", "--", "run"], "--time: there is no time limit after it"),
        (["-t", "--partition=gpu", "--", "run"], "-t: there is no time limit after it"),
        (["--time=", "--", "run"], "--time=: there is no time limit after it"),
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
        ["--", "run", "--serve", "--track", "mlflow"],
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


def test_a_folder_of_jobs_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placebench.commands.slurm.os.access", lambda *_: False)
    words = ["slurm", "submit", "--logs", str(tmp_path), "--", "run", "--devices", "cpu:2"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == UsageError.exit_code
    assert f"--logs {tmp_path}: no permission to write there; name another folder" in result.stderr


def test_all_reasons_are_told_at_once() -> None:
    with pytest.raises(UsageError) as raised:
        batch_script(Submission(1, 0, ("show",), ("--wrap=x", "--signal=9")))
    assert len(str(raised.value).splitlines()) == 3


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
    for reason in ("--wrap", "--rounds 'many'", "unknown placement 'spilt'", "'split:9+9' needs 18", "--seed: must be"):
        assert reason in done.stderr
