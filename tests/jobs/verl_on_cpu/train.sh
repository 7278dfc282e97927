#!/usr/bin/env bash
# A user's script: verl's PPO on CPU with the model and data of make_tiny.py. train.sh FOLDER [OVERRIDE...]
set -euo pipefail
folder=$1
shift
export VERL_USE_EXTERNAL_MODULES="verl_cpu,critic_by_sdpa${VERL_USE_EXTERNAL_MODULES:+,$VERL_USE_EXTERNAL_MODULES}"
export VERL_ENGINE_DEVICE=cuda VERL_ENGINE_VENDOR=nvidia HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=1
exec python -m verl.trainer.main_ppo \
    ray_kwargs.ray_init.num_cpus=32 +ray_kwargs.ray_init.num_gpus=2 +ray_kwargs.ray_init.include_dashboard=False \
    +ray_kwargs.ray_init.object_store_memory=500000000 transfer_queue.backend.SimpleStorage.num_data_storage_units=1 \
    data.train_files="$folder/train.parquet" data.val_files="$folder/test.parquet" data.train_batch_size=16 \
    data.max_prompt_length=64 data.max_response_length=64 data.dataloader_num_workers=0 \
    actor_rollout_ref.model.path="$folder/model" actor_rollout_ref.model.use_remove_padding=False \
    +actor_rollout_ref.model.override_config.attn_implementation=sdpa \
    actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.ref.strategy=fsdp2 \
    actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.agent.num_workers=1 \
    critic.strategy=fsdp2 critic.model.path="$folder/model" critic.model.use_remove_padding=False \
    +critic.model.override_config.attn_implementation=sdpa critic.ppo_mini_batch_size=16 \
    critic.ppo_micro_batch_size_per_gpu=4 reward.num_workers=1 trainer.device=cpu "$@"
