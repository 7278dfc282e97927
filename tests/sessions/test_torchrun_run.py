"""Runs under torchrun: the same training as under Ray, without Ray, and nothing left whatever ends them."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from jobs import GRPO, Job, assert_same_training, patched_program, run_job
from launching import assert_nothing_left, processes_of, running, wait_for

from placebench.record.folder import RunFolder, Status
from placebench.record.writing import read_jsonl
from placebench.spec.launchers import TORCHRUN

RUN = (sys.executable, "-m", "placebench", "run", "--launcher", "torchrun", "--devices", "cpu:2", "--rounds", "1")
SMALL = ("--warmup-steps", "1", "--batch-size", "16", "--mini-batch-size", "8", "--set", "algorithm.name=grpo")
# With these it is the work of `replicas_job`, three steps long.
AS_UNDER_RAY = ("--set", "batch.group_size=4", "--set", "sharding=shard", "--set", "trace_kernels=false")
RESULTS = ("critic/score/mean", "critic/advantages/max", "actor/pg_loss", "actor/kl_loss", "actor/grad_norm")


@pytest.fixture
def env(tmp_path: Path, temp: Path) -> Iterator[dict[str, str]]:
    """The environment of a run in which Ray cannot be imported; after the run nothing of it is left."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/ray.py").write_text("raise AssertionError('Ray is imported')\n")
    paths = (str(tmp_path / "modules"), os.environ.get("PYTHONPATH", ""))
    yield {**os.environ, "TMPDIR": str(temp), "CI": "true", "PYTHONPATH": os.pathsep.join(paths)}
    assert_nothing_left(temp)
    assert list(temp.iterdir()) == []


def _spans(job: Job) -> set[tuple[object, ...]]:
    return {tuple(span[key] for key in ("step", "phase", "role", "pool", "device")) for span in job.spans}


def _processes(job: Job) -> list[tuple[object, ...]]:
    rows = read_jsonl(job.trial.processes)
    return [tuple(row[key] for key in ("device", "pool", "rank", "threads")) for row in rows]


@pytest.mark.slow
def test_a_run_compares_replicas_without_ray_trains_as_under_ray_and_leaves_nothing(
    tmp_path: Path, env: dict[str, str], replicas_job: Job
) -> None:
    words = [*RUN, *SMALL, *AS_UNDER_RAY, "--steps", "3", "--placements", "ddp:1,ddp:2", "--verbose"]
    words += ["--out", str(tmp_path / "runs")]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=540)
    assert done.returncode == 0, done.stderr
    folder = RunFolder(next((tmp_path / "runs").iterdir()))
    manifest = json.loads(folder.run_file.read_text())
    assert (manifest["status"], manifest["launcher"]) == ("done", "torchrun")
    threads = set()
    for trial in folder.trials():
        assert trial.status is Status.DONE
        assert [row["step"] for row in read_jsonl(trial.steps)] == [1, 2, 3]
        devices = {row["device"] for row in read_jsonl(trial.processes)} - {"controller"}
        assert devices <= {row["device"] for row in read_jsonl(trial.device_samples) if row["kind"] == "sample"}
        threads |= {row["threads"] for row in read_jsonl(trial.processes) if row["device"] != "controller"}
        assert "Error" not in trial.log.read_text()
    assert len(threads) == 1  # as many in each arm, whatever torchrun sets by itself
    assert "Scaling of replicas" in done.stdout

    (trial,) = (one for one in folder.trials() if one.path.name == "01-ddp-2")
    _assert_as_under_ray(Job(trial, 0, ""), replicas_job)


def _assert_as_under_ray(under_torchrun: Job, under_ray: Job) -> None:
    assert_same_training(under_torchrun, under_ray, RESULTS)
    # Its ranks leave each other in order, where those of a Ray of the launch's own are killed at once.
    leaving = {(0, "stop", None, "replicas", f"cpu:{rank}") for rank in range(2)}
    assert _spans(under_torchrun) == leaving | {
        (step, str(phase).replace("_ray", "_torchrun"), *rest) for step, phase, *rest in _spans(under_ray)
    }
    assert _processes(under_torchrun) == _processes(under_ray)


@pytest.mark.slow
def test_memory_that_runs_out_in_a_rank_is_told_with_its_figures(tmp_path: Path, env: dict[str, str]) -> None:
    # The plan tries it, too, in a process that has no worker.
    (tmp_path / "modules/greedy.py").write_text(
        "import sys, torch\n\n"
        "def score(*case):\n    return torch.empty(1 << 50).sum() if 'placebench.ppo.worker' in sys.modules else 0.0\n"
    )
    words = [*RUN, *SMALL, "--steps", "2", "--placements", "ddp:2", "--set", "data.reward=greedy:score"]
    done = subprocess.run(
        [*words, "--out", str(tmp_path / "runs")], env=env, capture_output=True, text=True, check=False, timeout=540
    )
    assert done.returncode == 3, done.stderr
    trial = RunFolder(next((tmp_path / "runs").iterdir())).trial(1, "ddp:2")
    assert trial.status is Status.OOM
    lines = trial.error.read_text().splitlines()
    assert lines[0].startswith("oom: RuntimeError: ")
    assert "can't allocate memory" in lines[0]
    assert [line for line in lines if re.match("held by cpu:[01] in reward: actor: weights [1-9]", line)]


@pytest.mark.slow
def test_a_rank_that_is_killed_and_a_runner_that_is_killed(tmp_path: Path, env: dict[str, str], temp: Path) -> None:
    out = tmp_path / "runs"
    words = [*RUN, *SMALL, "--steps", "5000", "--placements", "ddp:2,ddp:1", "--out", str(out)]
    with running(words, temp, env=env) as command:
        wait_for(lambda: list(out.glob("*/trials/01-ddp-2/steps.jsonl")), 200)
        folder = next(out.iterdir())
        first, second = (RunFolder(folder).trial(1, name) for name in ("ddp:2", "ddp:1"))
        rank = next(row for row in read_jsonl(first.processes) if row["device"] == "cpu:1")
        os.kill(rank["pid"], signal.SIGKILL)
        wait_for(lambda: first.status is not Status.RUNNING)
        assert first.status is Status.FAILED
        assert first.error.read_text().splitlines()[0] == (
            f"failed: RankDiedError: the worker of cpu:1 (pid {rank['pid']}) has ended: it was killed, or has crashed"
        )
        wait_for(lambda: second.steps.exists() and list(read_jsonl(second.steps)), 200)
        assert processes_of(first.path) == []
        pids = [row["pid"] for row in read_jsonl(second.processes)]
        command.kill()
        command.wait()
    # The kernel kills the job with its runner, torchrun with the job; ranks end as their connection does.
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    # Its guardian puts things in order, and ends.
    wait_for(lambda: second.status is Status.INTERRUPTED and not processes_of(temp))


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_and_resume_goes_on_under_torchrun(
    tmp_path: Path, env: dict[str, str], temp: Path
) -> None:
    out = tmp_path / "runs"
    words = [*RUN, *SMALL, "--steps", "40", "--placements", "ddp:2", "--out", str(out)]
    with running(words, temp, env=env) as command:
        wait_for(lambda: list(out.glob("*/trials/01-ddp-2/steps.jsonl")), 200)
        command.send_signal(signal.SIGINT)
        output, _ = command.communicate(timeout=300)
    assert command.returncode == 130
    assert "Traceback" not in output
    assert_nothing_left(temp)
    folder = next(out.iterdir())
    resume = [sys.executable, "-m", "placebench", "run", "--resume", str(folder)]
    done = subprocess.run(resume, env=env, capture_output=True, text=True, check=False, timeout=540)
    assert done.returncode == 0, done.stderr
    assert RunFolder(folder).trial(1, "ddp:2").status is Status.DONE


def test_a_torchrun_that_cannot_start_is_one_line(tmp_path: Path) -> None:
    program = patched_program(
        tmp_path,
        "",
        "from placebench.sessions.torchrun import command\ncommand.RANK = 'nowhere'",
    )
    job = run_job(tmp_path / "job", "ddp:1", 1, *GRPO, program=program, launcher=TORCHRUN)
    assert job.exit_code == 10
    last = job.trial.error.read_text().splitlines()[-1]
    assert re.search(r"LaunchError: torchrun has ended with exit code 1 before its ranks began: see train\.log", last)
