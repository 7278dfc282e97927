"""A user's script: GRPO by TRL on a tiny model, on CPU. train.py --model_name_or_path FOLDER [OPTION...]"""

from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser


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
    config, model = TrlParser((GRPOConfig, ModelConfig)).parse_args_and_config()
    if config.use_vllm:
        keep_plain_weights()
    questions = [{"prompt": [{"role": "user", "content": f"What is {n}+{n % 7}?"}]} for n in range(256)]
    GRPOTrainer(
        model=model.model_name_or_path,
        reward_funcs=closeness_to_20,
        args=config,
        train_dataset=Dataset.from_list(questions),
    ).train()
