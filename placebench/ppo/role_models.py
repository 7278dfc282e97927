"""The models of the roles that live in a rank."""

from collections.abc import Callable, Collection, Iterator, Mapping

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
    builders: Mapping[Role, Callable[[Workload, torch.device], SequenceModel]] = {
        Role.ACTOR: _actor,
        Role.REF: _ref,
        **({Role.CRITIC: _critic} if workload.algorithm.has_critic else {}),
        **({Role.REWARD: _reward_model} if workload.reward_model else {}),
    }
    for role, build in builders.items():
        if role in roles:
            yield role, build(workload, device)


def policy(workload: Workload) -> PolicyModel:
    """A model that generates, as the actor, the reference and engines in a pool of their own have it."""
    precision: torch.dtype = getattr(torch, workload.precision)
    model = load_language_model(workload.model)
    return PolicyModel(model, workload.rollout.temperature, precision, workload.torch_compile)


def _actor(workload: Workload, device: torch.device) -> SequenceModel:
    actor = TrainedModel(policy(workload), workload, device, workload.seed, workload.optimizer.actor_lr)
    if workload.sharding == "shard":
        # FSDP fixes its units at the first pass through the root; generation enters below it.
        actor.per_token(SequenceBatch.build([[0]], [[0]]), log_probs)
    return actor


def _ref(workload: Workload, device: torch.device) -> SequenceModel:
    return SequenceModel(policy(workload).requires_grad_(False), workload, device, workload.seed)


def _critic(workload: Workload, device: torch.device) -> SequenceModel:
    words = model_config(workload.model).vocab_size
    critic: DecoderModel = load_critic_model(workload.critic_model or workload.model, words)
    return TrainedModel(critic, workload, device, workload.seed + CRITIC_SEED, workload.optimizer.critic_lr)


def _reward_model(workload: Workload, device: torch.device) -> SequenceModel:
    assert workload.reward_model is not None
    model = load_reward_model(workload.reward_model, model_config(workload.model).vocab_size)
    return SequenceModel(model.requires_grad_(False), workload, device, workload.seed + REWARD_SEED)
