"""verl itself as the job, on CPU devices: real trainers and workers of verl, with engines that make responses up."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from launching import assert_nothing_left, processes_of, running, wait_for

from placebench.compare.read.run_reading import load_run
from placebench.record.folder import RunFolder, read_jsonl

ROOT = Path(__file__).parents[2]
VERL = ROOT / ".venv-verl"
ON_CPU = Path(__file__).parent / "verl_on_cpu"
EQUAL = ("critic/vf_loss", "critic/grad_norm", "actor/grad_norm", "actor/kl_loss")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not (VERL / ".installed").exists(), reason="verl is not installed; `make test-slow` sets it up"),
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and data for verl."""
    folder = tmp_path_factory.mktemp("tiny")
    subprocess.run([VERL / "bin" / "python", ON_CPU / "make_tiny.py", folder], check=True, timeout=300)
    return folder


def command(folder: Path, tiny: Path, **keys: object) -> list[str]:
    """Runs verl by a job file of a user's."""
    job = {
        "job": "verl",
        "command": f"bash {ON_CPU / 'train.sh'} {tiny}",
        "python": str(VERL),
        "env": {"PYTHONPATH": str(ON_CPU)},
        "devices": "cpu:2",
        "steps": 4,
        "warmup_steps": 1,
        **keys,
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return [
        sys.executable,
        "-m",
        "placebench",
        "run",
        "--job",
        str(path),
        "--out",
        str(folder / "runs"),
        "--name",
        "verl",
    ]


def the_run(folder: Path) -> RunFolder:
    (path,) = (folder / "runs").glob("*-verl")
    return RunFolder(path)


def metrics(run: RunFolder, placement: str, round_number: int) -> pd.DataFrame:
    rows = read_jsonl(run.trial(round_number, placement).steps)
    return pd.DataFrame([row["metrics"] for row in rows])[list(EQUAL)]


def overlap_s(spans: pd.DataFrame, one: str, other: str) -> float:
    """Seconds of a launch in which two phases both ran on their devices."""
    on_devices = spans[spans["device"] != "controller"]
    pairs = on_devices[on_devices["phase"] == one].merge(on_devices[on_devices["phase"] == other], on="step")
    both = pairs[["end_x", "end_y"]].min(axis=1) - pairs[["start_x", "start_y"]].max(axis=1)
    return float(both.clip(lower=0).sum())


def test_placements_of_verl_compute_the_same_and_split_works_on_both_devices_at_once(temp: Path, tiny: Path) -> None:
    words = ("standard", "split:1+1", "learners:1+engines:1")
    job = command(temp, tiny, placements=list(words), rounds=2)
    done = subprocess.run(job, capture_output=True, text=True, timeout=1400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    run = the_run(temp)
    first = metrics(run, "standard", 1)
    assert (first["actor/grad_norm"] > 0).all()
    for word in words[:2]:
        for number in (1, 2):
            pd.testing.assert_frame_equal(metrics(run, word, number), first, rtol=0.02, obj=f"round {number} {word}")
    launches = {(launch.round, launch.placement): launch for launch in load_run(run.path).launches}
    assert len(launches) == 6
    for number in (1, 2):
        split = launches[number, "split:1+1"].spans
        assert overlap_s(split, "update_actor", "update_critic") > 0
        assert overlap_s(split, "values", "old_log_prob") > 0
        assert overlap_s(launches[number, "standard"].spans, "update_actor", "update_critic") == 0
        for launch in (launches[number, word] for word in words):
            placed = launch.spans[launch.spans["device"] != "controller"]
            assert {"gen", "old_log_prob", "ref", "values", "update_critic", "update_actor"} <= set(placed["phase"])
            assert set(placed["device"]) == {"cpu:0", "cpu:1"}
    assert "split:1+1" in done.stdout
    assert_nothing_left(temp)


def has_step(runs: Path) -> bool:
    return any(path.stat().st_size for path in runs.glob("*/trials/*/steps.jsonl"))


def test_a_runner_that_is_killed_in_mid_step_leaves_nothing_of_verl(temp: Path, tiny: Path) -> None:
    with running(command(temp, tiny, placements=["standard"], rounds=1, steps=500), temp) as runner:
        wait_for(lambda: has_step(temp / "runs"), 300)
        runner.kill()
        runner.wait()
        wait_for(lambda: not processes_of(temp), 30)
    assert_nothing_left(temp)
