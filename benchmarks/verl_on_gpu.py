"""verl beside placebench's own job, the same model shape, batch and lengths, tokens/s in one report.

    python benchmarks/verl_on_gpu.py [--model qwen2.5-0.5b] [--rounds 2] [--into runs/reference/HOST/verl]
    python benchmarks/verl_on_gpu.py --algorithm ppo --devices gpu:4 --placements standard,split,learners:2+engines:2 \
        --model qwen2.5-1.5b --batch-size 256 --prompt-length 512 --response-length 512 --micro-batch 16

GRPO on one GPU, or PPO on several: each placement in turn, by both.

Makes a model of the preset's shape with random weights and prompts of full length, runs `placebench run` and
`placebench run --job verl`, with vLLM both, and compares the two as `beside` says.
Needs `placebench[run,vllm]` and verl 0.9.1, which may be in another environment: `--python ENVIRONMENT/bin/python`.
In verl's there must be no TRL: verl imports a class from it that TRL 1.16 does not have any more.

Without flash-attn verl cannot leave padding out; here there is none, as all sequences are equally long. Nor can it
compute log-probabilities of more than one token at a time, unless its fused kernels do: those are asked for where the
model's embeddings are tied, as with others verl 0.9.1 fails under FSDP2. Its critic asks for flash-attn by name;
`for_verl/critic_by_sdpa.py` has it load without. With `--devices cpu:1` verl's engine makes responses of 8 to 64 tokens
up, so that its times mean nothing.
"""

import os
import sys
from pathlib import Path
from typing import Any

import click
import pandas as pd
from beside import HERE, Asked, asking, begin, made_up_prompts, measure

from placebench.spec.shapes import PRESETS

VERL = "verl"
ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
RAY_INIT = "ray_kwargs.ray_init"
# Nothing is said around a prompt, so that it has as many tokens as characters.
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
FOR_VERL = HERE / "for_verl"
# verl's platform for CPU, and engines that make things up, stand beside the test that needs them, too.
PLUGIN_FOR_CPU = HERE.parent / "tests" / "jobs" / "verl_on_cpu"
ON_CPU = {"VERL_ENGINE_DEVICE": "cuda", "VERL_ENGINE_VENDOR": "nvidia"}


@click.command()
@asking(model="qwen2.5-0.5b", length=256, steps=5, work="runs/verl-on-gpu")
@click.option("--algorithm", type=click.Choice(["grpo", "ppo"]), default="grpo", show_default=True)
@click.option("--placements", default="standard", show_default=True, help="Placements of verl, with PPO of both.")
@click.option("--own-placements", help="Of placebench's own job with PPO, where they differ.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of verl's; repeatable.")
@click.option("--python", default=Path(sys.executable).name, help="verl's own.  [default: the one that runs this]")
def main(work: Path, into: Path | None, python: str, settings: tuple[str, ...], **asked: Any) -> None:
    """Run both, and write their common report."""
    both = Asked(**asked)
    begin(both, work)
    extend_tokenizer(work / "model")
    write_prompts(work / "prompts.parquet", count=both.batch, length=both.prompt)
    command = [*verl_command(work, both, python), *settings]
    measure(both, VERL, command, work, into, env=variables(both))


def variables(asked: Asked) -> dict[str, str]:
    """Of the environment of a run of verl: what it loads of ours, and on CPU which platform it is to take."""
    modules = ({} if asked.is_gpu else {"verl_cpu": PLUGIN_FOR_CPU}) | {"critic_by_sdpa": FOR_VERL}
    path = os.pathsep.join([*map(str, modules.values()), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "VERL_USE_EXTERNAL_MODULES": ",".join(modules)} | ({} if asked.is_gpu else ON_CPU)


def verl_command(work: Path, asked: Asked, python: str) -> list[str]:
    """The user's command: one optimizer step on all sequences, with the loss and the sampling of placebench's job."""
    group = 1 if asked.has_critic else asked.group
    prompts = asked.batch // group
    settings: dict[str, object] = {
        "algorithm.adv_estimator": "gae" if asked.has_critic else "grpo",
        "data.train_files": work / "prompts.parquet",
        "data.val_files": work / "prompts.parquet",
        "data.train_batch_size": prompts,
        "data.max_prompt_length": asked.prompt,
        "data.max_response_length": asked.response,
        f"{MODEL}.path": work / "model",
        f"+{MODEL}.override_config.attn_implementation": "sdpa",
        f"{MODEL}.use_remove_padding": False,
        f"{MODEL}.use_fused_kernels": PRESETS[asked.model].tie_word_embeddings,
        f"{MODEL}.enable_gradient_checkpointing": False,
        f"{ACTOR}.strategy": "fsdp2",
        f"{ACTOR}.ppo_mini_batch_size": prompts,
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ACTOR}.ppo_max_token_len_per_gpu": asked.micro_batch_tokens,
        f"{ACTOR}.use_kl_loss": not asked.has_critic,
        f"{ACTOR}.kl_loss_coef": 0.001,
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.n": group,
        f"{ROLLOUT}.tensor_model_parallel_size": 1,
        f"{ROLLOUT}.gpu_memory_utilization": 0.4,
        f"{ROLLOUT}.free_cache_engine": True,
        f"{ROLLOUT}.ignore_eos": True,
        "reward.custom_reward_function.path": os.path.relpath(HERE / "verl_reward.py"),
        "reward.custom_reward_function.name": "closeness_to_20",
        # verl's own counts suit many GPUs: each is a process, which on one host's cores waits for the others.
        f"{ROLLOUT}.agent.num_workers": 2 * asked.device_count,
        "reward.num_workers": 1,
        # All prompts are one step's: verl would start these processes anew in each.
        "data.dataloader_num_workers": 0,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        f"+{RAY_INIT}.include_dashboard": False,
        # verl has vLLM compile the model anew in every launch.
        f"+{RAY_INIT}.runtime_env.env_vars.VLLM_DISABLE_COMPILE_CACHE": "'0'",
        f"+{RAY_INIT}.object_store_memory": 2_000_000_000 if asked.is_gpu else 500_000_000,
    }
    if asked.has_critic:
        settings |= {
            "algorithm.use_kl_in_reward": True,
            "algorithm.kl_ctrl.kl_coef": 0.001,
            "critic.strategy": "fsdp2",
            "critic.model.path": work / "model",
            "+critic.model.override_config.attn_implementation": "sdpa",
            "critic.model.use_remove_padding": False,
            "critic.model.enable_gradient_checkpointing": False,
            "critic.ppo_mini_batch_size": prompts,
            "critic.use_dynamic_bsz": True,
            # The one that verl 0.9.1 goes by, in training too, and leaves out of its configuration.
            "+critic.ppo_infer_max_token_len_per_gpu": asked.micro_batch_tokens,
        }
    if not asked.is_gpu:
        settings |= {
            "trainer.device": "cpu",
            f"{ROLLOUT}.agent.num_workers": 1,
            f"{RAY_INIT}.num_cpus": 32,
            f"+{RAY_INIT}.num_gpus": asked.device_count,
        }
    return [python, "-m", "verl.trainer.main_ppo", *(f"{key}={value}" for key, value in settings.items())]


def extend_tokenizer(model: Path) -> None:
    """Give a model's tokenizer what verl asks of every tokenizer of a Qwen model."""
    from transformers import AutoTokenizer

    auto_tokenizer: Any = AutoTokenizer
    tokenizer = auto_tokenizer.from_pretrained(model)
    tokenizer.add_tokens(["\n", "<|im_end|>"], special_tokens=True)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(model)


def write_prompts(path: Path, *, count: int, length: int) -> None:
    """Prompts of so many tokens, as verl reads them."""
    rows = [
        {
            "data_source": "made-up",
            "prompt": [{"role": "user", "content": prompt}],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": index},
        }
        for index, prompt in enumerate(made_up_prompts(count, length))
    ]
    pd.DataFrame(rows).to_parquet(path)


if __name__ == "__main__":
    main()
