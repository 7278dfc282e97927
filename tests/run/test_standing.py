"""What `show` says of a run that goes on in another process."""

import json
import os
import platform
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from synthetic_run import SyntheticRun

from placebench.cli import main
from placebench.record.folder import RunFolder, Status, Trial
from placebench.record.writing import append_jsonl, write_json
from placebench.run.standing import where_it_stands

AHEAD = dict.fromkeys([(2, "standard"), (3, "split"), (3, "standard")], Status.PLANNED)


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    """The launch that runs of a run of 3 rounds, the first of which is done."""
    path = SyntheticRun(statuses={(2, "split"): Status.RUNNING, **AHEAD}).write(tmp_path / "run")
    launches = [
        {"round": 1, "placement": name, "trial": f"trials/01-{name}", "status": "done",
         "wall": {"total_s": seconds, "after_steps_s": 1.0, "cleanup_s": 0.5}}
        for name, seconds in (("standard", 20.0), ("split", 30.0))
    ]  # fmt: skip
    file = path / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"launches": launches}))
    found = RunFolder(path).trial(2, "split")
    found.error.unlink()
    write_json(found.launch_file, {})
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)
    os.utime(found.launch_file, (0, time.time() - 12))
    return found


def at(trial: Trial, steps: int, stage: str = "step", running: tuple[str, ...] = (), ago: float = 4.0) -> None:
    """Let the job be at something for so long, with so many steps done in 1.5 s each."""
    write_json(trial.progress, {"stage": stage, "step": steps + 1, "running": list(running), "wall": 0.0})
    os.utime(trial.progress, (0, time.time() - ago))
    with trial.steps.open("w") as stream:
        for step in range(1, steps + 1):
            append_jsonl(stream, {"step": step, "metrics": {"timing_s/step": 1.5}})


def stands(trial: Trial) -> str | None:
    return where_it_stands(RunFolder(trial.path.parents[1]))


def test_the_launch_that_runs_says_round_placement_step_phase_and_time_left(trial: Trial) -> None:
    assert stands(trial) == "Now: round 2 of 3, split, start, 0.0 s so far; about 1:28 min left."
    at(trial, 0, "build models", ago=5)
    # 18 s of its 30 s are left, and 20 + 30 + 20 s for the launches behind it.
    assert stands(trial) == "Now: round 2 of 3, split, build models, 5.0 s so far; about 1:28 min left."
    at(trial, 2, running=("update_actor", "update_critic"))
    # Four steps of 1.5 s and 1.5 s to stop, and those behind it.
    assert stands(trial) == (
        "Now: round 2 of 3, split, step 3/6: update_actor + update_critic, 4.0 s so far; about 1:18 min left."
    )
    write_json(trial.progress, {"stage": "step", "step": None})
    assert str(stands(trial)).startswith("Now: round 2 of 3, split, what it does cannot be read: ")
    folder = RunFolder(trial.path.parents[1])
    gone = {"pid": 2**22 + 1, "host": platform.node(), "since": "2026-01-01T00:00:00+00:00"}
    write_json(folder.lock_file, gone)
    killed = f"The process that worked on it was killed; go on with placebench run --resume {folder.path}"
    assert stands(trial) == killed
    folder.lock_file.unlink()
    trial.set_status(Status.DONE)
    assert stands(trial) is None


def test_show_says_where_a_run_stands_and_what_has_not_started(trial: Trial) -> None:
    at(trial, 2, running=("gen",))
    folder = str(trial.path.parents[1])
    result = CliRunner().invoke(main, ["show", folder], prog_name="placebench")
    assert (result.exit_code, result.stderr) == (0, "")
    said = " ".join(result.stdout.split())
    assert "warning: not started: standard in rounds 2–3, split in round 3" in said
    assert said.count("not started") == 1
    assert "Now: round 2 of 3, split, step 3/6: gen, 4.0 s so far; about 1:18 min left." in said


def test_a_run_without_a_launch_that_is_done_has_no_empty_tables(tmp_path: Path) -> None:
    statuses = {(1, "standard"): Status.RUNNING, (1, "split"): Status.PLANNED}
    path = SyntheticRun(rounds=1, statuses=statuses).write(tmp_path / "run")
    result = CliRunner().invoke(main, ["show", str(path), "--verbose"], prog_name="placebench")
    assert result.stdout.startswith("Values: median")
    assert "0 of 2 launches done" in result.stdout
