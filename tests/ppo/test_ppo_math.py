"""Losses, advantages and KL against an independent float64 implementation and numbers worked by hand."""

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from placebench.ppo.advantages import (
    KLController,
    estimate_kl,
    generalized_advantages,
    group_advantages,
    token_rewards,
    whiten,
)
from placebench.ppo.batch import SequenceBatch
from placebench.ppo.generation import Generation
from placebench.ppo.losses import policy_loss, token_kl, value_loss
from placebench.ppo.step_data import StepData, StepState
from placebench.spec.workload import Algorithm
from placebench.spec.workload_reading import build_workload
from placebench.tasks.data import open_prompts
from placebench.tasks.tokenizer import CharacterTokenizer

FINITE = st.floats(-3, 3, allow_nan=False)


def plain_gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """The definition: A_t = sum over l of (gamma lam)^l delta_(t+l), one sequence, plain Python floats."""
    after = [*values[1:], 0.0]
    deltas = [r + gamma * n - v for r, v, n in zip(rewards, values, after, strict=True)]
    return [
        math.fsum((gamma * lam) ** offset * delta for offset, delta in enumerate(deltas[start:]))
        for start in range(len(deltas))
    ]


@given(
    st.lists(st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=7), min_size=1, max_size=5),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_advantages_follow_the_definition(cases: list[list[tuple[float, float]]], gamma: float, lam: float) -> None:
    longest = max(map(len, cases))
    table = np.zeros((2, len(cases), longest))
    mask = np.arange(longest) < np.array([len(case) for case in cases])[:, None]
    for row, case in enumerate(cases):
        table[:, row, : len(case)] = np.transpose(case)
    advantages, returns = generalized_advantages(table[0], table[1], mask, gamma, lam)
    for row, case in enumerate(cases):
        expected = plain_gae([r for r, _ in case], [v for _, v in case], gamma, lam)
        np.testing.assert_allclose(advantages[row, : len(case)], expected, atol=1e-12)
        np.testing.assert_allclose(returns[row, : len(case)], expected + table[1, row, : len(case)], atol=1e-12)
    assert not advantages[~mask].any()
    assert not returns[~mask].any()


def test_advantages_by_hand() -> None:
    # gamma 0.5, lambda 0.5; deltas: 0 + 0.5*2 - 1 = 0, 1 + 0 - 2 = -1; A_1 = -1, A_0 = 0 + 0.25 * -1.
    advantages, returns = generalized_advantages(
        np.array([[0.0, 1.0]]), np.array([[1.0, 2.0]]), np.ones((1, 2), bool), 0.5, 0.5
    )
    assert advantages.tolist() == [[-0.25, -1.0]]
    assert returns.tolist() == [[0.75, 1.0]]


def test_group_advantages_by_hand() -> None:
    # Groups (1, 2, 3) and (5, 5, 5): means 2 and 5, standard deviations 1 and 0.
    mask = np.array([[True, True], [True, False], [True, True], [True, False], [True, False], [True, False]])
    rewards = np.array([[0.5, 0.5], [2.0, 9.0], [1.0, 2.0], [5.0, 0.0], [5.0, 0.0], [5.0, 0.0]])
    advantages = group_advantages(rewards, mask, 3, by_std=True)
    np.testing.assert_allclose(advantages, [[-1, -1], [0, 0], [1, 1], [0, 0], [0, 0], [0, 0]], atol=1e-5)
    assert group_advantages(3 * rewards, mask, 3, by_std=False)[0].tolist() == [-3, -3]


@given(st.lists(st.lists(st.floats(-10, 10), min_size=4, max_size=4), min_size=1, max_size=5))
def test_group_advantages_are_relative_to_the_own_group(groups: list[list[float]]) -> None:
    rewards = np.array(groups).reshape(-1, 1)
    mask = np.ones_like(rewards, bool)
    together = group_advantages(rewards, mask, 4, by_std=True).reshape(-1, 4)
    alone = [group_advantages(np.array(group)[:, None], mask[:4], 4, by_std=True)[:, 0] for group in groups]
    np.testing.assert_allclose(together, alone, atol=1e-12)
    np.testing.assert_allclose(together.sum(axis=1), 0, atol=1e-6)
    assert np.abs(together).max() <= 1.5 + 1e-9  # (n − 1) / √n, the farthest that one of n values can be out


def test_rewards_lie_on_the_last_token_and_kl_on_every_one() -> None:
    mask = np.array([[True, True], [True, False]])
    rewards = token_rewards(np.array([1.0, 2.0]), np.array([[0.5, 1.0], [3.0, 9.0]]), mask, 0.1)
    np.testing.assert_allclose(rewards, [[-0.05, 0.9], [1.7, 0.0]])


@given(FINITE, FINITE)
def test_kl_estimators(log_prob: float, ref_log_prob: float) -> None:
    pair = np.array([[log_prob]]), np.array([[ref_log_prob]])
    k1, k3 = (estimate_kl(*pair, estimator)[0, 0] for estimator in ("k1", "k3"))
    assert k1 == pytest.approx(log_prob - ref_log_prob)
    assert k3 == pytest.approx(math.exp(ref_log_prob - log_prob) - 1 - (ref_log_prob - log_prob), abs=1e-9)
    assert k3 >= 0
    tensors = torch.tensor([log_prob], dtype=torch.float64), torch.tensor([ref_log_prob], dtype=torch.float64)
    for estimator, expected in (("k1", k1), ("k3", k3)):
        assert token_kl(*tensors, estimator).item() == pytest.approx(expected, abs=1e-12)


def test_gradients_of_kl_losses_are_on_average_what_their_description_says() -> None:
    torch.manual_seed(0)
    logits, ref = torch.randn(5, dtype=torch.float64, requires_grad=True), torch.randn(5, dtype=torch.float64)
    log_probs, ref_log_probs = logits.log_softmax(-1), ref.log_softmax(-1)
    policy = log_probs.exp().detach()
    reverse = (ref_log_probs.exp() * (ref_log_probs - log_probs)).sum()
    for estimator, expected in (
        ("k1", torch.zeros(5, dtype=torch.float64)),
        ("k3", torch.autograd.grad(reverse, logits, retain_graph=True)[0]),
    ):
        # The mean over samples of the policy, whose choice has no gradient.
        mean = (policy * token_kl(log_probs, ref_log_probs, estimator)).sum()
        torch.testing.assert_close(torch.autograd.grad(mean, logits, retain_graph=True)[0], expected)


def test_whitening() -> None:
    table, mask = np.array([[1.0, 3.0, 99.0]]), np.array([[True, True, False]])
    np.testing.assert_allclose(whiten(table, mask), [[-1.0, 1.0, 0.0]], atol=1e-7)
    np.testing.assert_allclose(whiten(table, mask, shift_mean=False), [[1.0, 3.0, 0.0]], atol=1e-7)


def test_kl_coefficient() -> None:
    fixed = KLController(Algorithm(), 0.2)
    fixed.update(99.0, 100)
    assert fixed.coefficient == 0.2
    adaptive = KLController(Algorithm(kl_control="adaptive", kl_target=0.1, kl_horizon=1000), 0.2)
    adaptive.update(0.2, 100)  # error 1 is clipped to 0.2
    assert adaptive.coefficient == pytest.approx(0.2 * 1.02)
    adaptive.update(0.09, 100)  # error -0.1
    assert adaptive.coefficient == pytest.approx(0.2 * 1.02 * 0.99)


def test_a_step_has_one_kl_coefficient_in_reward_loss_and_metrics() -> None:
    workload = build_workload(
        {
            "batch": {"size": 2, "mini_batch_size": 2},
            "algorithm": {"kl_loss": True, "kl_coef": 0.2, "kl_control": "adaptive", "kl_horizon": 10},
        }
    )
    generation = Generation(workload, open_prompts(workload.data, 0, 16), CharacterTokenizer())
    steps, state = StepData(workload, generation, is_stale=False), StepState(1, [])
    batch = SequenceBatch.build([[1], [1]], [[2], [2]], rollout_log_probs=[-1, -1], old_log_probs=[-1, -1])
    fields = {name: np.full(2, value, np.float32) for name, value in (("ref_log_probs", -2), ("values", 0))}
    state.batch = batch.with_fields(fields, {"scores": np.zeros(2)})
    steps.compute(state, "adv")
    state.done.add("adv")
    metrics = state.metrics.finish(state.sequences, {}, 1.0, 1, workload)
    # The policy is 1 nat a token off, ten times the target: the next step's coefficient is 1 + 0.2 · 2 / 10 as large.
    assert metrics["actor/reward_kl_penalty_coeff"] == 0.2
    assert metrics["critic/rewards/mean"] == pytest.approx(-0.2)
    assert metrics["training/rollout_probs_diff_max"] == 0
    assert steps.arguments(state, "update_actor", np.arange(2))["kl_coef"] == 0.2
    assert steps.kl.coefficient == pytest.approx(0.2 * 1.04)


def tensors(*columns: list[float]) -> Any:
    return [torch.tensor(column, dtype=torch.float64) for column in columns]


@given(st.integers(0, 2**32), st.sampled_from(["k1", "k3"]), st.floats(0, 1), st.floats(0.05, 0.5))
def test_policy_loss_and_gradient(seed: int, estimator: str, kl_coef: float, clip: float) -> None:
    draw = random.Random(seed)
    count = draw.randint(1, 8)
    new, old, ref, advantages, entropy = ([draw.gauss(0, 1) for _ in range(count)] for _ in range(5))
    algorithm = Algorithm(clip_ratio=clip, entropy_coeff=0.3, kl_loss=True, kl_estimator=estimator)
    log_probs, entropies, *constants = tensors(new, entropy, old, ref, advantages)
    log_probs.requires_grad_()
    result = policy_loss(log_probs, entropies, constants[0], constants[1], constants[2], algorithm, kl_coef)

    def reference(values: list[float]) -> float:
        total = 0.0
        for value, o, r, a, e in zip(values, old, ref, advantages, entropy, strict=True):
            ratio = math.exp(value - o)
            surrogate = min(a * ratio, a * min(max(ratio, 1 - clip), 1 + clip))
            kl = value - r if estimator == "k1" else math.exp(r - value) - (r - value) - 1
            total += -surrogate - 0.3 * e + kl_coef * kl
        return total

    assert result.loss.item() == pytest.approx(reference(new), rel=1e-10, abs=1e-10)
    torch.autograd.backward(result.loss)
    assert log_probs.grad is not None
    for index in range(count):
        ratio = math.exp(new[index] - old[index])
        if min(abs(ratio - 1 + clip), abs(ratio - 1 - clip)) < 1e-4:
            continue  # a central difference across the clip's kink is not the gradient
        up, down = list(new), list(new)
        up[index] += 1e-6
        down[index] -= 1e-6
        slope = (reference(up) - reference(down)) / 2e-6
        assert log_probs.grad[index].item() == pytest.approx(slope, rel=1e-4, abs=1e-4)


def test_older_weights_are_corrected_for_up_to_the_cap() -> None:
    old = torch.tensor([0.5, 0.25, 0.2]).log()
    rollout = torch.tensor([0.5, 0.5, 0.01]).log()
    advantages = torch.tensor([1.0, 2.0, -3.0])
    algorithm, zeros = Algorithm(importance_cap=2.0, entropy_coeff=0.0), torch.zeros(3)
    new = old.clone().requires_grad_()
    result = policy_loss(new, zeros, old, zeros, advantages, algorithm, 0.0, rollout)
    # Weights 0.5 / 0.5, 0.25 / 0.5 and 0.2 / 0.01 cut to 2; at the old policy each token's surrogate is -advantage.
    assert result.loss.item() == pytest.approx(-1 * 1 - 0.5 * 2 + 2 * 3)
    assert float(result.metrics["actor/importance_weight"]) == pytest.approx(3.5)
    assert float(result.metrics["actor/importance_capfrac"]) == 1
    (gradient,) = torch.autograd.grad(result.loss, new)
    torch.testing.assert_close(gradient, torch.tensor([-1.0, -1.0, 6.0]))
    # At the weights that generated, nothing is corrected.
    plain = policy_loss(new, zeros, old, zeros, advantages, algorithm, 0.0)
    fresh = policy_loss(new, zeros, old, zeros, advantages, algorithm, 0.0, old)
    assert fresh.loss.item() == pytest.approx(plain.loss.item())
    assert not any("importance" in name for name in plain.metrics)


def test_policy_loss_by_hand() -> None:
    # Ratios 2 and 0.5 with clip 0.2: advantage 1 keeps min(2, 1.2), advantage -1 keeps max(0.5, 0.8) as loss.
    new, old, zeros = tensors([math.log(2), math.log(0.5)], [0.0, 0.0], [0.0, 0.0])
    (advantages,) = tensors([1.0, -1.0])
    result = policy_loss(new, zeros, old, zeros, advantages, Algorithm(clip_ratio=0.2), 0.0)
    assert result.loss.item() == pytest.approx(-1.2 + 0.8)
    assert result.metrics["actor/pg_clipfrac"].item() == 2
    assert result.metrics["actor/ppo_kl"].item() == pytest.approx(0.0)


def test_value_loss_by_hand() -> None:
    # Prediction 2 from old 0, clip 0.5, target 1: plain error 1, clipped prediction 0.5 gives 0.25; the worse counts.
    prediction, old, near, far = tensors([2.0], [0.0], [1.0], [2.0])
    result = value_loss(prediction, old, near, 0.5)
    assert result.loss.item() == pytest.approx(0.5)
    assert result.metrics["critic/vf_clipfrac"].item() == 0
    # Target 2: the plain error is 0, the clipped one (0.5 - 2)^2 = 2.25.
    result = value_loss(prediction, old, far, 0.5)
    assert result.loss.item() == pytest.approx(1.125)
    assert result.metrics["critic/vf_clipfrac"].item() == 1
