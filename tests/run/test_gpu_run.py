"""The whole command on a GPU with vLLM; nothing here can run without them."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from jobs import save_model

from placebench.host.gpus import list_gpus
from placebench.record.writing import read_jsonl

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

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not list_gpus().gpus, reason="no NVIDIA GPU on this host"),
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: pip install 'placebench[vllm]'"),
]


def run(folder: Path, placement: str, model: str, *settings: str) -> Path:
    """One launch through the command; returns its folder."""
    sizes = ("--rounds", "1", "--steps", "3", "--warmup-steps", "2")
    options = ["--placements", placement, "--devices", "gpu:1", "--model", model, "--out", str(folder), *sizes]
    values = [f"--set={setting}" for setting in (*SETTINGS, *settings)]
    done = subprocess.run(
        [sys.executable, "-m", "placebench", "run", *options, *values],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return next(folder.glob("*/trials/*"))


def test_a_saved_model_trains_and_its_engine_follows(tmp_path: Path) -> None:
    save_model(tmp_path / "model", "qwen2.5-0.5b")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "1+2=", "answer": "3"}\n{"prompt": "2+2=", "answer": "4"}\n')
    trial = run(tmp_path / "runs", "standard", str(tmp_path / "model"), f"data.source={prompts}")
    metrics = [row["metrics"] for row in read_jsonl(trial / "steps.jsonl")]
    assert [step["prompt_length/mean"] for step in metrics] == [4, 4, 4]
    assert max(step["training/rollout_probs_diff_mean"] for step in metrics[:2]) < 0.05
    assert json.loads((trial / "launch.json").read_text())["workload"]["rollout"]["backend"] == "vllm"
    spans = list(read_jsonl(trial / "spans.jsonl"))
    assert {"sleep", "wake_up", "update_weights"} <= {span["phase"] for span in spans}
    tensors = {span["phase"]: span["memory_peak_bytes"] for span in spans if "memory_peak_bytes" in span}
    # An update holds the largest weight once more, 0.54 GB; the engine's own weights would be another 0.99 GB.
    assert tensors["first_weights"] < tensors["import_engine"] + 0.7e9
    kernels = {row["phase"]: row for row in read_jsonl(trial / "kernels.jsonl")}
    assert kernels.keys() == {span["phase"] for span in spans if span["step"] and span["role"]}
    assert all(kernels[phase]["kernel_s"] > 0 for phase in ("gen", "old_log_prob", "update_critic", "update_actor"))
    assert max(span["step"] for span in spans) == 3


def test_a_replica_trains_under_grpo(tmp_path: Path) -> None:
    trial = run(tmp_path / "runs", "ddp:1", "qwen2.5-0.5b", "algorithm.name=grpo", "batch.group_size=4")
    metrics = [row["metrics"] for row in read_jsonl(trial / "steps.jsonl")]
    assert max(step["training/rollout_probs_diff_mean"] for step in metrics[:2]) < 0.05
    assert all(step["actor/grad_norm"] > 0 for step in metrics)
