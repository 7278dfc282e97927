"""A user's script: GRPO by TRL, its prompts from a file of JSON lines.

    torchrun benchmarks/trl_grpo.py --model_name_or_path FOLDER --dataset_name prompts.jsonl [OPTION...]

TrlParser reads the options. The reward is made up: what is trained makes no difference to how long it takes.
"""

import json
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser


def closeness_to_20(completions: list[Any], **_: Any) -> list[float]:
    """Rewards responses of 20 characters."""
    return [-abs(20 - len(one if isinstance(one, str) else one[0]["content"])) / 20 for one in completions]


def keep_plain_weights() -> None:
    """Let vLLM on CPU take new weights, as it does on GPUs: it packs its matrices else."""
    import vllm.model_executor.layers.utils as layers

    def leave(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    layers.dispatch_cpu_unquantized_gemm = leave


if __name__ == "__main__":
    script, config, model = TrlParser((ScriptArguments, GRPOConfig, ModelConfig)).parse_args_and_config()
    if config.use_vllm and config.use_cpu:
        keep_plain_weights()
    lines = Path(script.dataset_name).read_text(encoding="utf-8").splitlines()
    GRPOTrainer(
        model=model.model_name_or_path,
        reward_funcs=closeness_to_20,
        args=config,
        train_dataset=Dataset.from_list([json.loads(line) for line in lines]),
    ).train()
