"""The models of the roles that live in a rank."""

from collections.abc import Collection, Iterator

import torch

from placebench.ppo.batch import SequenceBatch
from placebench.ppo.models import (
    DecoderModel,
    PolicyModel,
    load_critic_model,
    load_language_model,
    load_reward_model,
    model_config,
)
from placebench.ppo.passes import log_probs
from placebench.ppo.training import SequenceModel, TrainedModel
from placebench.spec.placement import Role
from placebench.spec.workload import Workload

# Added to the workload's seed, so that critic and reward model do not start with the actor's weights.
CRITIC_SEED, REWARD_SEED = 1, 2


def build_models(
    roles: Collection[Role], workload: Workload, device: torch.device
) -> Iterator[tuple[Role, SequenceModel]]:
    """Build the model of each of the roles that has one, one after the other; the rollout's is its backend's.

    Those that the workload trains are `TrainedModel`s.
    """
    seed, rates = workload.seed, workload.optimizer
    if Role.ACTOR in roles:
        actor = TrainedModel(policy(workload), workload, device, seed, rates.actor_lr)
        if workload.sharding == "shard":
            # FSDP fixes its units at the first pass through the root; generation enters below it.
            actor.per_token(SequenceBatch.build([[0]], [[0]]), log_probs)
        yield Role.ACTOR, actor
    if Role.REF in roles:
        yield Role.REF, SequenceModel(policy(workload).requires_grad_(False), workload, device, seed)
    if Role.CRITIC in roles and workload.algorithm.has_critic:
        words = model_config(workload.model).vocab_size
        critic: DecoderModel = load_critic_model(workload.critic_model or workload.model, words)
        yield Role.CRITIC, TrainedModel(critic, workload, device, seed + CRITIC_SEED, rates.critic_lr)
    if Role.REWARD in roles and workload.reward_model:
        words = model_config(workload.model).vocab_size
        reward = load_reward_model(workload.reward_model, words).requires_grad_(False)
        yield Role.REWARD, SequenceModel(reward, workload, device, seed + REWARD_SEED)


def policy(workload: Workload) -> PolicyModel:
    """A model that generates, as the actor, the reference and engines in a pool of their own have it."""
    precision: torch.dtype = getattr(torch, workload.precision)
    model = load_language_model(workload.model)
    return PolicyModel(model, workload.rollout.temperature, precision, workload.torch_compile)
