"""Rewards, advantages and the KL coefficient: the arithmetic of the `adv` phase, in float64.

Arrays are [sequences, longest response] with a mask that is True on response tokens.
Sources: GAE is equation 16 of Schulman et al. 2016 (arXiv:1506.02438); group-relative advantages are section 4.1.2 of
Shao et al. 2024 (arXiv:2402.03300); the adaptive coefficient is section 2.2 of Ziegler et al. 2019
(arXiv:1909.08593); k1 and k3 are named after Schulman's "Approximating KL divergence".
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placebench.spec.workload import Algorithm

Table = NDArray[np.float64]
Mask = NDArray[np.bool_]


def estimate_kl(log_probs: Table, ref_log_probs: Table, estimator: str) -> Table:
    """KL of the policy to the reference per token, in nats, from samples of the policy.

    k1 is log p − log q; k3 is q/p − 1 − log(q/p), never negative.
    """
    log_ratio = ref_log_probs - log_probs
    return -log_ratio if estimator == "k1" else np.expm1(log_ratio) - log_ratio


def token_rewards(scores: NDArray[np.float64], kl: Table, mask: Mask, kl_coef: float) -> Table:
    """The score on each response's last token, and −kl_coef · KL on every token.

    Args:
        scores: of the responses, float64 [sequences].
        kl: per token in nats, see `estimate_kl`; what the mask leaves out may be anything.
        mask: as above; every response has a token.
        kl_coef: 0 where the KL is no part of the reward.
    """
    rewards = np.where(mask, -kl_coef * kl, 0.0)
    last = mask.sum(axis=1) - 1
    rewards[np.arange(len(rewards)), last] += scores
    return rewards


def generalized_advantages(rewards: Table, values: Table, mask: Mask, gamma: float, lam: float) -> tuple[Table, Table]:
    """Advantages and returns by generalized advantage estimation.

    With δ_t = r_t + γ · V_{t+1} − V_t, the advantage is A_t = δ_t + γ · λ · A_{t+1}, and the return A_t + V_t. Behind
    the last token of a response both V and A are 0: the episode ends there.

    Args:
        rewards: r, per token, see `token_rewards`.
        values: V, the critic's where each token is predicted.
        mask: as above.
        gamma: γ, the discount from one token to the next, 0 to 1.
        lam: λ, the weight of later δ, 0 to 1.

    Returns:
        Advantages and returns, 0 where the mask leaves out.
    """
    advantages = np.zeros_like(rewards)
    next_value = np.zeros(len(rewards))
    running = np.zeros(len(rewards))
    for position in reversed(range(rewards.shape[1])):
        here = mask[:, position]
        delta = rewards[:, position] + gamma * next_value - values[:, position]
        running = np.where(here, delta + gamma * lam * running, 0.0)
        next_value = np.where(here, values[:, position], 0.0)
        advantages[:, position] = running
    return advantages, np.where(mask, advantages + values, 0.0)


def group_advantages(rewards: Table, mask: Mask, group_size: int, *, by_std: bool) -> Table:
    """GRPO's advantages: every token of response i of a group has (r_i − mean(r)) / std(r), r the group's rewards.

    r_i is the sum of the response's token rewards. Groups whose rewards are all equal have advantages of 0.

    Args:
        rewards: per token, [sequences, longest response]; the responses to one prompt follow each other.
        mask: as above.
        group_size: responses to each prompt.
        by_std: divide by the standard deviation of a sample (n − 1). It gives prompts on which nearly all responses
            do alike more weight than others, which is why some leave it out (Liu et al. 2025, arXiv:2503.20783).
    """
    groups = np.where(mask, rewards, 0.0).sum(axis=1).reshape(-1, group_size)
    relative = groups - groups.mean(axis=1, keepdims=True)
    if by_std:
        relative = relative / (groups.std(axis=1, ddof=1, keepdims=True) + 1e-6)
    return np.where(mask, relative.reshape(-1, 1), 0.0)


def whiten(table: Table, mask: Mask, *, shift_mean: bool = True) -> Table:
    """Scale to unit variance over the masked entries of the whole batch, and to mean 0 unless it is to be kept.

    The variance is that of the n entries themselves, divided by n.
    """
    mean = table[mask].mean()
    scaled = (table - mean) / np.sqrt(table[mask].var() + 1e-8)
    return np.where(mask, scaled if shift_mean else scaled + mean, 0.0)


@dataclass
class KLController:
    """The KL coefficient, fixed or moved towards a target KL after every step."""

    algorithm: Algorithm
    coefficient: float

    def update(self, kl: float, sequences: int) -> None:
        """Move the coefficient: raise it when the KL (nats per token, batch mean) is above the target."""
        if self.algorithm.kl_control == "adaptive":
            error = float(np.clip(kl / self.algorithm.kl_target - 1, -0.2, 0.2))
            self.coefficient *= 1 + error * sequences / self.algorithm.kl_horizon
