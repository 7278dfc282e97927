"""TRL itself as the job, on CPU devices: two ranks under torchrun, and one with vLLM in its process."""

import os
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from beside import HERE, ON_CPU, write_model
from launching import assert_nothing_left
from trl_beside import write_prompts

from placebench.compare.read.run_reading import load_run

OPTIONS = (
    "--use_cpu true --bf16 true --seed 1 --per_device_train_batch_size 4 --num_generations 4"
    " --max_completion_length 16 --gradient_checkpointing false --use_vllm"
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed; `make test-slow` sets it up"),
]


@pytest.mark.parametrize(
    ("devices", "more", "settings"),
    [(2, "false", ""), (1, "true --vllm_mode colocate --vllm_max_model_length 64", "--logging_steps 2")],
    ids=["transformers", "vllm-logs-every-other-step"],
)
def test_ranks_of_trl_generate_and_train_each_on_its_device(temp: Path, devices: int, more: str, settings: str) -> None:
    write_model(temp / "model", "tiny", is_gpu=False)
    write_prompts(temp / "prompts.jsonl", count=16, length=16)
    own = [sys.executable, "-m", "placebench", "run", "--job", str(temp / "job.yaml"), "--out", str(temp / "runs")]
    files = ["--model_name_or_path", str(temp / "model"), "--dataset_name", str(temp / "prompts.jsonl")]
    train = ["torchrun", "--standalone", str(HERE / "trl_grpo.py"), *files, *OPTIONS.split(), *more.split()]
    bin_first = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    job = {
        "job": "trl",
        "command": shlex.join(train),
        "placements": {"standard": {"args": settings}},
        "devices": f"cpu:{devices}",
        "rounds": 1,
        "steps": 3,
        "warmup_steps": 1,
        "name": "trl",
    }
    (temp / "job.yaml").write_text(yaml.safe_dump(job))
    done = subprocess.run(
        own,
        env={**os.environ, **ON_CPU, "PATH": bin_first, "TMPDIR": str(temp)},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    why = "".join(path.read_text() for path in temp.glob("runs/*/trials/*/error.txt"))
    assert done.returncode == 0, done.stdout + done.stderr + why
    (path,) = (temp / "runs").glob("*-trl")
    (launch,) = load_run(path).launches
    assert launch.log is not None
    assert not [flag for flag in launch.log.flags if flag.name == "spans"]
    spans = launch.spans[launch.spans["device"] != "controller"]
    for device in range(devices):
        phases = set(spans.loc[spans["device"] == f"cpu:{device}", "phase"])
        assert {"gen", "reward", "update_actor"} <= phases
        assert ("update_weights" in phases) == (devices == 1)
    assert len(launch.step_seconds) == 3
    # Each step of the rank that logs begins with generation and ends with the update, in the steps' own time. Another
    # one may begin a moment before it.
    whole = launch.spans[(launch.spans["device"] == "controller") & (launch.spans["phase"] == "step")]
    for step in whole.itertuples():
        mine = spans[(spans["step"] == step.step) & (spans["device"] == "cpu:0")]
        assert mine["start"].min() >= float(str(step.start))
        assert mine["end"].max() <= float(str(step.end))
        assert mine.loc[mine["phase"] == "gen", "end"].max() <= mine.loc[mine["phase"] == "update_actor", "end"].max()
    assert_nothing_left(temp)
