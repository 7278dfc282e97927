"""What an unknown word was probably meant to be: by the names that the field has for it, or by its letters."""

from collections.abc import Iterable, Mapping

# Longer words are none that somebody has mistyped.
_LONGEST = 80
# How much alike a part of a word, or one of its other names, must be.
_CLOSE = 0.75
# What other frameworks, papers and people call it, in lower case with underscores. A key stands for the last parts of a
# dotted word; the first name that is known where the word stands is taken.
_BY_NAME: Mapping[str, tuple[str, ...]] = {
    "model": ("model_path", "model_name", "model_name_or_path", "pretrain", "policy", "actor_model"),
    "critic_model": ("value_model", "critic_path"),
    "reward_model": ("rm", "reward_model_path", "judge"),
    "seed": ("random_seed", "rng"),
    "steps": ("num_steps", "max_steps", "total_steps", "total_training_steps", "iterations", "iters"),
    "warmup_steps": ("warmup", "num_warmup_steps"),
    "precision": ("dtype", "torch_dtype", "mixed_precision", "amp"),
    "sharding": ("fsdp", "fsdp2", "strategy", "zero", "zero_stage"),
    "activation_checkpointing": ("gradient_checkpointing", "recompute", "enable_gradient_checkpointing"),
    "torch_compile": ("compile",),
    "data.source": ("dataset", "data", "train_files", "train_file", "prompts", "prompt_data"),
    "data.reward": ("reward", "reward_fn", "reward_func", "reward_function", "custom_reward_function"),
    "batch.size": ("batch_size", "bs", "train_batch_size", "rollout_batch_size", "global_batch_size"),
    "batch.mini_batch_size": ("mini_batch_size", "mini_batch", "ppo_mini_batch_size", "mbs"),
    "batch.micro_batch_tokens": ("micro_batch_size", "max_tokens_per_gpu", "ppo_max_token_len_per_gpu", "micro_batch"),
    "batch.group_size": ("group_size", "num_generations", "n_samples_per_prompt", "rollout.n", "samples_per_prompt"),
    "batch.max_prompt_length": ("max_prompt_length", "prompt_length", "max_prompt_len", "prompt_max_len"),
    "batch.max_response_length": (
        *("max_tokens", "max_new_tokens", "max_response_length", "response_length", "max_completion_length"),
        *("generate_max_len", "max_length", "max_len"),
    ),
    "rollout.backend": ("backend", "rollout", "engine", "inference_engine", "vllm"),
    "rollout.temperature": ("temperature", "temp"),
    "rollout.top_p": ("top_p", "nucleus"),
    "rollout.ignore_eos": ("ignore_eos",),
    "rollout.tensor_parallel_size": ("tp", "tp_size", "tensor_parallel", "tensor_model_parallel_size", "vllm_tp"),
    "rollout.memory_share": ("gpu_memory_utilization", "vllm_gpu_memory_utilization", "mem_fraction_static"),
    "rollout.sleep": ("free_cache_engine", "enable_sleep_mode", "vllm_enable_sleep"),
    "rollout.cuda_graphs": ("enforce_eager", "cuda_graph"),
    "algorithm.name": ("algorithm", "algo", "adv_estimator", "advantage_estimator"),
    "algorithm.gamma": ("gamma", "discount"),
    "algorithm.lam": ("lam", "lambda", "lambd", "gae_lambda"),
    "algorithm.clip_ratio": ("clip_ratio", "cliprange", "clip_range", "clip", "clip_eps", "eps_clip", "epsilon"),
    "algorithm.clip_value": ("cliprange_value", "value_clip", "vf_clip"),
    "algorithm.entropy_coeff": ("entropy_coeff", "entropy_coef", "ent_coef", "entropy_loss_coef"),
    "algorithm.epochs": ("epochs", "ppo_epochs", "num_epochs", "num_ppo_epochs", "max_epochs"),
    "algorithm.kl_coef": ("kl_coef", "kl", "beta", "init_kl_coef", "kl_loss_coef", "kl_coeff"),
    "algorithm.kl_loss": ("use_kl_loss",),
    "algorithm.kl_in_reward": ("use_kl_in_reward",),
    "algorithm.kl_target": ("target_kl",),
    "optimizer.critic_lr": ("critic_lr", "critic.lr", "critic.optim.lr", "value_lr", "critic_learning_rate"),
    "optimizer.actor_lr": ("lr", "learning_rate", "actor_lr", "policy_lr", "actor_learning_rate"),
    "optimizer.betas": ("betas", "adam_betas"),
    "optimizer.eps": ("eps", "adam_eps", "adam_epsilon"),
    "optimizer.weight_decay": ("weight_decay", "wd", "l2"),
    "optimizer.grad_clip": ("grad_clip", "max_grad_norm", "max_norm", "gradient_clipping", "clip_grad"),
    "placements": ("placement", "layout", "layouts"),
    "devices": ("device", "gpus", "num_gpus", "n_gpus", "n_gpus_per_node", "nproc_per_node"),
    "rounds": ("repeats", "repetitions", "trials", "launches"),
    "name": ("run_name", "experiment_name"),
    "out": ("output", "output_dir", "out_dir", "save_dir"),
    "launcher": ("executor",),
    "standard": ("colocate", "colocated", "hybrid", "together", "colocate_all"),
    "split": ("separate", "apart"),
    "learners": ("disaggregated", "disaggregate", "async", "one_step_off"),
    "ddp": ("dp", "data_parallel", "replicas"),
    "actor": ("policy", "trainer"),
    "rollout": ("generator", "sampler", "engine", "engines"),
    "ref": ("reference",),
    "critic": ("value",),
    "bfloat16": ("bf16", "half"),
    "float32": ("fp32", "full"),
    "shard": ("fsdp", "fsdp2", "zero3", "zero"),
    "replicate": ("ddp", "none"),
}


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word that an unknown one was most probably meant to be; None where there is none like it.

    Args:
        word: the unknown one.
        known: those that it may have been meant to be.
        cutoff: how much alike the whole words must be, of 1; parts of them, and other names, no less than `_CLOSE`.
    """
    import difflib

    if len(word) > _LONGEST:
        return None
    wanted, plain = _plain(word), {_plain(one): one for one in known}
    by_name = {name: right for right, names in _BY_NAME.items() if right in plain for name in (*names, right)}
    by_name = {right.rsplit(".", 1)[-1]: right for right in reversed(plain)} | by_name
    parts = wanted.split(".")
    endings = (".".join(parts[index:]) for index in range(len(parts)))
    best = next((by_name[ending] for ending in endings if ending in by_name), None)
    if best is None:
        close = difflib.get_close_matches(wanted, plain, n=1, cutoff=cutoff) or [
            by_name[name] for name in difflib.get_close_matches(parts[-1], by_name, n=1, cutoff=max(cutoff, _CLOSE))
        ]
        begun = (one for one in plain if len(wanted) > 1 and one.startswith(wanted))
        best = next(iter((*close, *begun)), None)
    return None if best is None else plain[best]


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: `; did you mean 'split'?`, or nothing."""
    best = nearest(word, known) if isinstance(word, str) else None
    return f"; did you mean {str(best)!r}?" if best else ""


def _plain(word: str) -> str:
    return word.strip().lower().replace("-", "_")
