"""Checkpoints: whole or not there, refused in one line when they do not fit, and a job that goes on from one."""

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_files import write_checkpoint
from jobs import PPO, Job, run_job
from rich.console import Console

from placebench.errors import UsageError
from placebench.plan import checks
from placebench.plan.plan import make_plan
from placebench.plan.request import RunRequest
from placebench.plan.views import show_plan
from placebench.record.checkpoints import checkpoint_bytes, read_checkpoint
from placebench.spec.shapes import PRESETS, JobShapes
from placebench.spec.workload import Workload
from placebench.spec.workload_reading import build_workload


def test_a_checkpoint_says_what_it_is_and_replaces_the_one_before(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    write_checkpoint(folder, 2)
    grpo = build_workload({"algorithm": {"name": "grpo"}})
    path = write_checkpoint(folder, 12, grpo)
    assert [entry.name for entry in folder.iterdir()] == ["step-000012"]
    for named in (path, folder, tmp_path):
        found = read_checkpoint(named)
        assert (found.path, found.step, found.kl_coef) == (path, 12, 0.5)
        assert Workload.model_validate(found.workload) == grpo


KILLED = """
import os, signal, sys
from pathlib import Path
from placebench.record import checkpoints
from placebench.spec.workload import Workload

folder, moment = Path(sys.argv[1]), sys.argv[2]

def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

if moment == "before the rename":
    Path.rename = die
elif moment == "after it":
    checkpoints.shutil.rmtree = lambda path, ignore_errors=False: None if ignore_errors else die()
with checkpoints.new_checkpoint(folder, 4, 0.5, Workload()) as scratch:
    (scratch / "actor.pt").write_bytes(b"weights")
    if moment == "among the models":
        die()
    (scratch / "critic.pt").write_bytes(b"weights")
"""


@pytest.mark.parametrize(("moment", "step"), [("among the models", 2), ("before the rename", 2), ("after it", 4)])
def test_a_kill_while_saving_leaves_only_whole_checkpoints(tmp_path: Path, moment: str, step: int) -> None:
    folder = tmp_path / "checkpoints"
    write_checkpoint(folder, 2)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(folder), moment], check=False, timeout=60)
    assert killed.returncode == -9
    assert len(list(folder.iterdir())) == 2
    assert read_checkpoint(folder).step == step
    # The next one takes away what the killed one has left.
    write_checkpoint(folder, 6)
    assert [entry.name for entry in folder.iterdir()] == ["step-000006"]


def test_a_kill_during_the_first_one_leaves_none(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    subprocess.run([sys.executable, "-c", KILLED, str(folder), "before the rename"], check=False, timeout=60)
    with pytest.raises(UsageError, match="there is no checkpoint; name a folder step-N"):
        read_checkpoint(folder)


FULL = """
import resource, signal, sys
from pathlib import Path
import torch
import torch.distributed as dist
from placebench.record.checkpoints import new_checkpoint
from placebench.ppo.model_state import save_model
from placebench.spec.workload import Workload

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.Linear(512, 512)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
with new_checkpoint(Path(sys.argv[1]), 4, 0.5, Workload()) as scratch:
    save_model(scratch / "actor.pt", model, torch.optim.AdamW(model.parameters()))
"""


def test_a_file_that_cannot_be_written_is_one_line_and_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    write_checkpoint(folder, 2)
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(folder)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    reason = f"cannot write the checkpoint {folder}/.step-000004/actor.pt: File too large"
    assert f"placebench.errors.LaunchError: {reason}\n" in done.stderr
    assert [entry.name for entry in folder.iterdir()] == ["step-000002"]
    assert read_checkpoint(folder).step == 2


def test_checkpoints_that_the_disk_cannot_hold_are_refused(tmp_path: Path) -> None:
    each = checkpoint_bytes(Workload(), JobShapes(PRESETS["tiny"], PRESETS["tiny"]))
    assert each == 12 * (PRESETS["tiny"].parameters + PRESETS["tiny"].critic_parameters)
    rounds = shutil.disk_usage(tmp_path).free // each + 2
    request = RunRequest("standard", devices="cpu:2", rounds=rounds, out=tmp_path / "runs", checkpoint_every=5)
    with pytest.raises(UsageError) as refused:
        make_plan(request)
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f"--checkpoint-every: checkpoints of {rounds} launches, ")
    assert f" in {tmp_path}, where " in line
    # Fewer, none, or on other devices' disk, which nobody knows.
    make_plan(replace(request, rounds=3))
    make_plan(replace(request, checkpoint_every=None))
    make_plan(replace(request, devices="cpu:2@64GiB", dry_run=True))


def test_steps_that_are_no_number_have_no_checkpoints_to_tell_the_size_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr("shutil.disk_usage", lambda _: full)
    monkeypatch.setattr(checks, "LEAST_FREE_BYTES", 0)
    request = RunRequest("standard", devices="cpu:2", rounds=1, out=tmp_path / "runs", checkpoint_every=1)
    for steps, tells in ((3, True), ("abc", False)):
        with pytest.raises(UsageError) as refused:
            make_plan(replace(request, workload={"steps": steps}))
        assert ("--checkpoint-every: checkpoints of 1 launch, " in str(refused.value)) is tells
    assert "steps: must be a whole number" in str(refused.value)


def test_checkpoints_further_apart_than_the_steps_are_refused(tmp_path: Path) -> None:
    request = RunRequest("standard", {"steps": 10}, "cpu:2", out=tmp_path, checkpoint_every=10)
    assert make_plan(request).checkpoint_every == 10
    with pytest.raises(UsageError) as refused:
        make_plan(replace(request, checkpoint_every=11))
    assert str(refused.value) == (
        "--checkpoint-every 11: a launch ends with step 10 and would save nothing; give 10 at the most, or leave it out"
    )
    # The rest of a job whose checkpoints lay before it saves none either, and has one.
    path = write_checkpoint(tmp_path / "checkpoints", 6)
    make_plan(replace(request, checkpoint_every=6, resume_from=path))


def test_staleness_counts_the_steps_after_the_checkpoint(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "checkpoints", 6)
    request = RunRequest(
        "standard/staleness=3", devices="cpu:2", out=tmp_path, resume_from=path, workload={"steps": 10}
    )
    assert make_plan(request).steps_before == 6
    with pytest.raises(
        UsageError, match=r"staleness 4 needs a launch of more than 4 steps, and this one has 4; use at most 3"
    ):
        make_plan(replace(request, placements="standard/staleness=4"))


def change_state(path: Path, **content: Any) -> None:
    state = path / "state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | content))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: shutil.rmtree(path), "cannot read state.json: No such file"),
        (lambda path: (path / "critic.pt").unlink(), "critic.pt is missing"),
        (lambda path: (path / "actor.pt").write_bytes(b"we"), "actor.pt has 2 bytes and was written with 7"),
        (lambda path: (path / "state.json").write_text("{"), "state.json is damaged"),
        (lambda path: (path / "state.json").write_text("[]"), "not as this placebench writes it"),
        (lambda path: (path / "state.json").write_text("[" * 100_000), "state.json is damaged"),
        (lambda path: change_state(path, schema_version=2), "not as this placebench writes it"),
        (lambda path: change_state(path, step=float("inf")), "not as this placebench writes it"),
        (lambda path: change_state(path, step=-3), "not as this placebench writes it"),
        (lambda path: change_state(path, kl_coef=float("nan")), "not as this placebench writes it"),
        (lambda path: change_state(path, files={}), "not as this placebench writes it"),
        (lambda path: change_state(path, step=9), "with 2 warm-up steps --steps must be at least 12; it is 6"),
    ],
)
def test_a_checkpoint_that_cannot_be_is_one_line(tmp_path: Path, damage: Callable[[Path], Any], reason: str) -> None:
    path = write_checkpoint(tmp_path / "checkpoints", 2)
    damage(path)
    with pytest.raises(UsageError) as refused:
        make_plan(RunRequest(devices="cpu:2", out=tmp_path, resume_from=path))
    assert len(str(refused.value).splitlines()) == 1
    assert str(refused.value).startswith(f"--resume-from {path}: ")
    assert reason in str(refused.value)


def test_all_that_is_wrong_with_a_checkpoint_is_told_at_once(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "checkpoints", 2)
    (path / "critic.pt").unlink()
    (path / "actor.pt").write_bytes(b"we")
    with pytest.raises(UsageError) as refused:
        read_checkpoint(path)
    assert sorted(line.split(": ")[1].split()[0] for line in str(refused.value).splitlines()) == [
        "actor.pt",
        "critic.pt",
    ]
    (path / "state.json").unlink()
    os.mkfifo(path / "state.json")
    with pytest.raises(UsageError, match="it is a pipe or a device"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        ({"model": "qwen2.5-0.5b", "rollout": {"backend": "torch"}, "precision": "float32"}, "model is 'tiny'"),
        ({"seed": 1}, "its seed is 0 and the workload's is 1"),
        ({"algorithm": {"name": "grpo"}}, "its algorithm.name is 'ppo' and the workload's is 'grpo'"),
    ],
)
def test_a_checkpoint_of_another_job_is_refused(tmp_path: Path, workload: dict[str, Any], reason: str) -> None:
    path = write_checkpoint(tmp_path / "checkpoints", 2)
    with pytest.raises(UsageError) as refused:
        make_plan(RunRequest("standard", workload, "cpu:2", out=tmp_path, resume_from=path))
    assert reason in str(refused.value)


def test_what_else_has_changed_is_said(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "checkpoints", 2)
    same = make_plan(RunRequest(workload={"steps": 20}, devices="cpu:2", out=tmp_path, resume_from=path))
    assert not any("checkpoint" in note for note in same.notes)
    assert same.steps_before == 2
    other = RunRequest(workload={"optimizer": {"actor_lr": 1e-4}}, devices="cpu:2", out=tmp_path, resume_from=path)
    assert any(
        note.endswith("with a different optimizer.actor_lr than it was written with") for note in make_plan(other).notes
    )


BATCH = {"batch": {"size": 128, "mini_batch_size": 32}}
LARGER = {"batch": {"size": 256, "mini_batch_size": 64}}


@pytest.mark.parametrize(
    ("placements", "written", "changed"),
    [
        ("ddp:2/scaling=weak", LARGER, ()),
        ("ddp:2/scaling=weak", BATCH, ("ddp:2/scaling=weak",)),
        ("standard,ddp:2,ddp:2/scaling=weak", BATCH, ("ddp:2/scaling=weak",)),
        ("standard,split,ddp:2/scaling=weak", LARGER, ("standard", "split")),
    ],
)
def test_a_checkpoint_is_compared_with_the_batch_that_a_placement_makes(
    tmp_path: Path, placements: str, written: dict[str, Any], changed: tuple[str, ...]
) -> None:
    path = write_checkpoint(tmp_path / "checkpoints", 2, build_workload(written))
    plan = make_plan(RunRequest(placements, BATCH, "cpu:2", out=tmp_path, resume_from=path))
    console = Console(file=io.StringIO(), width=200)
    show_plan(plan, console)
    assert isinstance(console.file, io.StringIO)
    notes = [line for line in console.file.getvalue().splitlines() if "goes on from" in line]
    what = f"goes on from {path} with a different batch.size, batch.mini_batch_size than it was written with"
    assert notes == [f"note      {name} {what}" for name in changed]


RESULTS = ("actor/pg_loss", "actor/entropy", "actor/grad_norm", "critic/vf_loss", "critic/score/mean")


def assert_goes_on(job: Job, whole: Job) -> None:
    """The step of a job that goes on from a checkpoint is that of the one that was never stopped."""
    assert job.exit_code == 0, job.output[-3000:]
    assert len(job.steps) == 1
    names = [name for name in whole.steps[3] if not name.startswith(("timing_s/", "perf/time", "perf/through"))]
    assert {*RESULTS, "actor/reward_kl_penalty_coeff"} <= set(names)
    for name in names:
        np.testing.assert_allclose(job.steps[0][name], whole.steps[3][name], rtol=1e-6, err_msg=name)


def test_a_resumed_job_goes_on_as_if_never_stopped(split_job: Job, resumed_job: Job) -> None:
    assert split_job.exit_code == 0, split_job.output[-3000:]
    assert [entry.name for entry in split_job.trial.checkpoints.iterdir()] == ["step-000003"]
    assert_goes_on(resumed_job, split_job)


@pytest.mark.slow
def test_it_goes_on_with_the_same_overlap(tmp_path: Path, split_job: Job) -> None:
    assert_goes_on(run_job(tmp_path / "job", "split", 2, *PPO, resume_from=split_job.trial.checkpoints), split_job)


@pytest.mark.slow
@pytest.mark.parametrize(("placement", "settings"), [("standard", ("sharding=shard",)), ("learners:1+engines:1", ())])
def test_it_goes_on_under_another_placement(
    tmp_path: Path, split_job: Job, placement: str, settings: tuple[str, ...]
) -> None:
    job = run_job(tmp_path / "job", placement, 2, *PPO, *settings, resume_from=split_job.trial.checkpoints)
    assert job.exit_code == 0, job.output[-3000:]
    for name in RESULTS:
        np.testing.assert_allclose(job.steps[0][name], split_job.steps[3][name], rtol=1e-4, atol=1e-6, err_msg=name)
