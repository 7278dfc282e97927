"""TRL beside placebench's own job: GRPO on one device, the same model shape, batch and lengths, tokens/s in one report.

    python benchmarks/trl_beside.py [--model qwen2.5-1.5b] [--devices gpu:1] [--into runs/reference/HOST/trl]

Makes a model of the preset's shape with random weights and prompts of full length, runs `placebench run` under `ddp:1`
and `placebench run --job trl` with an engine of vLLM in the trainer's process, and compares the two as `beside` says.
Needs `placebench[run,vllm]` and trl 1.16.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from beside import HERE, Asked, asking, begin, made_up_prompts, measure

TRL = "trl"


@click.command()
@asking(model="qwen2.5-1.5b", length=512, steps=6, work="runs/trl-beside")
def main(work: Path, into: Path | None, **asked: Any) -> None:
    """Run both, and write their common report."""
    both = Asked(**asked)
    begin(both, work)
    write_prompts(work / "prompts.jsonl", count=both.batch, length=both.prompt)
    measure(both, TRL, trl_command(work, both), work, into)


def trl_command(work: Path, asked: Asked) -> list[str]:
    """The user's command: one optimizer step on all sequences, with the loss and the sampling of placebench's GRPO."""
    options: Mapping[str, object] = {
        "model_name_or_path": work / "model",
        "dataset_name": work / "prompts.jsonl",
        "use_vllm": "true",
        "vllm_enable_sleep_mode": "true" if asked.is_gpu else "false",
        "vllm_max_model_length": asked.prompt + asked.response,
        "generation_kwargs": json.dumps({"ignore_eos": True, "detokenize": False}),
        "max_completion_length": asked.response,
        "num_generations": asked.group,
        "per_device_train_batch_size": asked.micro_batch,
        "gradient_accumulation_steps": asked.batch // asked.micro_batch,
        "gradient_checkpointing": "false",
        "beta": 0.001,
        "learning_rate": 1e-6,
        "lr_scheduler_type": "constant",
        "bf16": "true",
        **({} if asked.is_gpu else {"use_cpu": "true"}),
    }
    words = [str(word) for key, value in options.items() for word in (f"--{key}", value)]
    return [Path(sys.executable).name, os.path.relpath(HERE / "trl_grpo.py"), *words]


def write_prompts(path: Path, *, count: int, length: int) -> None:
    """Prompts of so many tokens, in JSON lines."""
    lines = (json.dumps({"prompt": prompt}) + "\n" for prompt in made_up_prompts(count, length))
    path.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
