"""PPO's losses as sums over tokens; the caller divides by the token count of the whole mini-batch.

Sums, because a mini-batch is spread over ranks and micro-batches: sum / global count gives the same loss and
gradient however it is cut. Source: Schulman et al. 2017 (arXiv:1707.06347), equations 7 and 9.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from placebench.spec.workload import Algorithm


@dataclass(frozen=True)
class LossSums:
    """A loss with gradient, and metrics, each summed over tokens (scalars)."""

    loss: Tensor
    metrics: dict[str, Tensor]


def policy_loss(
    log_probs: Tensor,
    entropy: Tensor,
    old_log_probs: Tensor,
    ref_log_probs: Tensor,
    advantages: Tensor,
    algorithm: Algorithm,
    kl_coef: float,
    rollout_log_probs: Tensor | None = None,
) -> LossSums:
    """Clipped surrogate, minus the entropy term, plus the KL term when it is a loss.

    Negative advantages have no second clip (dual-clip PPO, Ye et al. 2020, arXiv:1912.09729).

    Where weights older than the step's generated, each token's surrogate is weighted with the truncated importance
    ratio min(pi_old / pi_rollout, `importance_cap`), without gradient. pi_old, the policy that the step began with,
    stays the one that clipping is measured from: the decoupled objective of Hilton et al. 2022 (arXiv:2110.00641),
    with weights truncated like the rho of Espeholt et al. 2018 (arXiv:1802.01561, section 4.1).

    Args:
        log_probs: of the sampled tokens under the policy now, float32 [tokens], with gradient.
        entropy: of the policy's distribution at each token in nats, float32 [tokens], with gradient.
        old_log_probs: under the policy that the step began with, [tokens].
        ref_log_probs: under the reference, [tokens].
        advantages: [tokens].
        algorithm: clip ratio, entropy and KL settings.
        kl_coef: coefficient of the KL term.
        rollout_log_probs: under the weights that generated the tokens, [tokens]; None where these were the step's own.
    """
    log_ratio = log_probs - old_log_probs
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - algorithm.clip_ratio, 1 + algorithm.clip_ratio)
    surrogate = torch.maximum(-advantages * ratio, -advantages * clipped)
    metrics = {}
    if rollout_log_probs is not None:
        ratios = (old_log_probs - rollout_log_probs).exp()
        weights = ratios.clamp(max=algorithm.importance_cap)
        surrogate = weights * surrogate
        metrics = {"actor/importance_weight": weights.sum(), "actor/importance_capfrac": (ratios > weights).sum()}
    loss = surrogate.sum() - algorithm.entropy_coeff * entropy.sum()
    metrics |= {
        "actor/pg_loss": surrogate.sum(),
        "actor/pg_clipfrac": (-advantages * clipped > -advantages * ratio).sum(),
        "actor/ppo_kl": -log_ratio.sum(),
        "actor/entropy": entropy.sum(),
    }
    if algorithm.kl_loss:
        kl = token_kl(log_probs, ref_log_probs, algorithm.kl_estimator).sum()
        loss = loss + kl_coef * kl
        metrics["actor/kl_loss"] = kl
    return LossSums(loss, {name: value.detach() for name, value in metrics.items()})


def token_kl(log_probs: Tensor, ref_log_probs: Tensor, estimator: str) -> Tensor:
    """KL to the reference per token in nats; see `advantages.estimate_kl` for the estimators.

    As a loss they are not what they are as numbers (Tang and Munos 2025, arXiv:2506.09477): on samples of the policy
    itself, the gradient of k1 has the mean 0, and that of k3 the gradient of KL(reference ‖ policy) as its mean.
    """
    log_ratio = ref_log_probs - log_probs
    return -log_ratio if estimator == "k1" else torch.expm1(log_ratio) - log_ratio


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip_value: float) -> LossSums:
    """Half the squared error, the worse of the clipped and the plain prediction.

    Args:
        values: the critic's predictions now, float32 [tokens], with gradient.
        old_values: its predictions at the start of the step, [tokens].
        returns: targets, [tokens].
        clip_value: how far a prediction may move from the old one before clipping.
    """
    clipped = old_values + (values - old_values).clamp(-clip_value, clip_value)
    error, clipped_error = (values - returns).square(), (clipped - returns).square()
    loss = 0.5 * torch.maximum(error, clipped_error).sum()
    metrics = {
        "critic/vf_loss": loss,
        "critic/vf_clipfrac": (clipped_error > error).sum(),
        "critic/vpred_mean": values.sum(),
    }
    return LossSums(loss, {name: value.detach() for name, value in metrics.items()})
