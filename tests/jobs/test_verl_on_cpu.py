"""verl itself as the job, on CPU devices: real trainers and workers of verl, with engines that make responses up."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from launching import assert_nothing_left, processes_of, running, wait_for

from placebench.compare.comparison import compare_run
from placebench.compare.explain.caveats import caveats
from placebench.compare.explain.placing import misplacements
from placebench.compare.read.run_reading import load_run
from placebench.record.folder import RunFolder, Status, Trial
from placebench.record.writing import read_jsonl

ROOT = Path(__file__).parents[2]
VERL = ROOT / ".venv-verl"
ON_CPU = Path(__file__).parent / "verl_on_cpu"
MODULES = (ON_CPU, ROOT / "benchmarks" / "for_verl")
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
        "env": {"PYTHONPATH": os.pathsep.join(map(str, MODULES))},
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


def metrics(trial: Trial) -> pd.DataFrame:
    return pd.DataFrame([row["metrics"] for row in read_jsonl(trial.steps)])[list(EQUAL)]


def overlap_s(spans: pd.DataFrame, one: str, other: str) -> float:
    """Seconds of a launch in which two phases both ran on their devices."""
    on_devices = spans[spans["device"] != "controller"]
    pairs = on_devices[on_devices["phase"] == one].merge(on_devices[on_devices["phase"] == other], on="step")
    both = pairs[["end_x", "end_y"]].min(axis=1) - pairs[["start_x", "start_y"]].max(axis=1)
    return float(both.clip(lower=0).sum())


def test_placements_compute_the_same_and_a_runner_that_is_killed_in_mid_step_leaves_nothing(
    temp: Path, tiny: Path
) -> None:
    words = ("standard", "split:1+1", "learners:1+engines:1")

    def begun() -> list[Path]:
        return [path for path in temp.glob("runs/*/trials/*/steps.jsonl") if path.stat().st_size]

    with running(command(temp, tiny, placements=list(words), rounds=2), temp) as runner:
        wait_for(lambda: len(begun()) == 6 or runner.poll() is not None, 1400)
        assert runner.stdout
        assert runner.poll() is None, runner.stdout.read()
        runner.kill()
        runner.wait()
        wait_for(lambda: not processes_of(temp), 30)
    assert_nothing_left(temp)
    (path,) = (temp / "runs").glob("*-verl")
    folder, run = RunFolder(path), load_run(path)
    first = metrics(folder.trial(1, "standard"))
    assert (first["actor/grad_norm"] > 0).all()
    for word in words[:2]:
        for number in (1, 2):
            found = metrics(folder.trial(number, word))
            expected = first[: len(found)]
            pd.testing.assert_frame_equal(found, expected, rtol=0.02, obj=f"round {number} {word}")
    done = [launch for launch in run.launches if launch.status is Status.DONE]
    assert len(done) >= 5
    for launch in done:
        placed = launch.spans[launch.spans["device"] != "controller"]
        assert {"gen", "old_log_prob", "ref", "values", "update_critic", "update_actor"} <= set(placed["phase"])
        assert set(placed["device"]) == {"cpu:0", "cpu:1"}
        beside = overlap_s(launch.spans, "update_actor", "update_critic")
        if launch.placement == "split:1+1":
            assert beside > 0
            assert overlap_s(launch.spans, "values", "old_log_prob") > 0
        elif launch.placement == "standard":
            assert beside == 0
    comparison = compare_run(path)
    assert [side.name for side in comparison.placements] == [*words]
    assert any("one token at a time" in line for line in caveats(comparison))
    # Each role was where it was asked for.
    assert [line for side in comparison.placements for line in misplacements(side)] == []
