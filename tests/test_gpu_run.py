"""The whole command on a GPU with vLLM; nothing here can run without them."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from jobs import save_model

from placebench.gpus import list_gpus
from placebench.runfolder import read_jsonl

SETTINGS = (
    "batch.size=32",
    "batch.mini_batch_size=16",
    "batch.max_prompt_length=64",
    "batch.max_response_length=64",
    "data.reward=exact_match",
    # Random weights then prefer few tokens, whose probabilities under other weights would be near 0.
    "rollout.temperature=0.1",
    "torch_compile=false",
)


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_a_saved_model_trains_and_its_engine_follows(tmp_path: Path) -> None:
    if not list_gpus().gpus:
        pytest.skip("no NVIDIA GPU on this host")
    if find_spec("vllm") is None:
        pytest.skip("vLLM is not installed: pip install 'placebench[vllm]'")
    save_model(tmp_path / "model", "qwen2.5-0.5b")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "1+2=", "answer": "3"}\n{"prompt": "2+2=", "answer": "4"}\n')
    options = ["--model", str(tmp_path / "model"), "--devices", "gpu:1", "--rounds", "1", "--out", str(tmp_path)]
    options += ["--placements", "standard", "--steps", "3", "--warmup-steps", "2", "--name", "saved"]
    values = (*SETTINGS, f"data.source={tmp_path / 'prompts.jsonl'}")
    done = subprocess.run(
        [sys.executable, "-m", "placebench", "run", *options, *(f"--set={value}" for value in values)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    trial = next(tmp_path.glob("*-saved/trials/*"))
    metrics = [row["metrics"] for row in read_jsonl(trial / "steps.jsonl")]
    assert [step["prompt_length/mean"] for step in metrics] == [4, 4, 4]
    assert max(step["training/rollout_probs_diff_mean"] for step in metrics) < 0.05
    assert json.loads((trial / "launch.json").read_text())["workload"]["rollout"]["backend"] == "vllm"
    assert {"sleep", "wake_up", "update_weights"} <= {span["phase"] for span in read_jsonl(trial / "spans.jsonl")}
