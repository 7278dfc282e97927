"""Log-probabilities and entropies of tokens from hidden states, without the whole table of logits.

The table [tokens, words] in float32 is the largest tensor of training with a large vocabulary: 19 GB for 32,768 tokens
of 151,936 words. Here it exists for some rows at a time, and only once: a loss over tokens gets its gradients from
the same rows, before the next ones take their place, instead of computing them anew in the backward pass.
"""

from collections.abc import Callable
from functools import cache
from math import ceil
from typing import Any

import torch
from torch import Tensor

from placebench.ppo.losses import LossSums
from placebench.predict.memory.model import TABLE_VALUES

TokenLoss = Callable[[Tensor, Tensor, slice], LossSums]
"""Sums over a slice of the tokens, of their log-probabilities and entropies (float32 [tokens of the slice])."""


def token_log_probs(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, *, compiled: bool = False
) -> Tensor:
    """Log-probabilities of given tokens under softmax(hidden · weightᵀ / temperature), without gradient.

    Args:
        hidden: [tokens, width], in the precision of the products.
        weight: the output head's, [words, width].
        targets: int64 [tokens].
        temperature: divides the logits.
        compiled: whether to compile what follows the products.

    Returns:
        Log-probabilities in nats, float32 [tokens].
    """
    chosen = _function(_chosen, compiled)
    log_probs = hidden.new_empty(len(hidden), dtype=torch.float32)
    with torch.no_grad():
        weight = weight.to(hidden.dtype)
        for rows in _row_slices(hidden, weight):
            log_probs[rows] = chosen(hidden[rows] @ weight.t(), targets[rows], temperature)[0]
    return log_probs


def token_loss(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, loss: TokenLoss, *, compiled: bool = False
) -> LossSums:
    """A loss over tokens, from their log-probabilities and the entropies of what they were drawn from.

    Args:
        hidden: [tokens, width], in the precision of the products.
        weight: the output head's, [words, width].
        targets: int64 [tokens].
        temperature: divides the logits.
        loss: called for one slice of the tokens after the other; differentiable in both its tensors.
        compiled: whether to compile what follows the products.

    Returns:
        The sums over all tokens; the loss's has gradients in `hidden` and `weight`.
    """
    statistics = _function(_shifted_statistics, compiled) if compiled else _statistics
    logits_gradient = _function(_logits_gradient, compiled)
    states, head = hidden.detach(), weight.detach().to(hidden.dtype)
    slices = _row_slices(states, head)
    states_gradient = torch.empty_like(states)
    head_gradient: Tensor | None = None
    parts: list[LossSums] = []
    for rows in slices:
        products = states[rows] @ head.t()
        log_probs, normalizers, entropies = statistics(products, targets[rows], temperature)
        leaves = log_probs.requires_grad_(), entropies.detach().requires_grad_()
        part = loss(*leaves, rows)
        gradients = torch.autograd.grad(part.loss, leaves, materialize_grads=True)
        parts.append(part)
        products = logits_gradient(products, targets[rows], normalizers, entropies, *gradients, temperature)
        states_gradient[rows] = products @ head
        if len(slices) == 1:
            head_gradient = products.t() @ states
        else:
            head_gradient = _plus_product(head_gradient, products.t(), states[rows])
    assert head_gradient is not None
    apply: Any = _Differentiated.apply
    total = _sum([part.loss.detach() for part in parts])
    metrics = {name: _sum([part.metrics[name] for part in parts]) for name in parts[0].metrics}
    return LossSums(apply(total, hidden, weight, states_gradient, head_gradient.to(weight.dtype)), metrics)


class _Differentiated(torch.autograd.Function):
    """A number whose gradients are known."""

    @staticmethod
    def forward(context: Any, number: Tensor, hidden: Tensor, weight: Tensor, *gradients: Tensor) -> Tensor:
        context.gradients = gradients
        # A tensor of its own: sharding hooks itself to what comes out of a model.
        return number.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Any, ...]:
        of_hidden, of_weight = context.gradients
        del context.gradients
        return None, of_hidden.mul_(gradient), of_weight.mul_(gradient), None, None


def _row_slices(hidden: Tensor, weight: Tensor) -> list[slice]:
    """Parts of the rows, one at least and as large as each other, of no more logits than are to be there at a time."""
    most = max(1, TABLE_VALUES // weight.shape[0])
    rows = max(1, ceil(len(hidden) / ceil(max(1, len(hidden)) / most)))
    return [slice(start, start + rows) for start in range(0, max(1, len(hidden)), rows)]


def _chosen(products: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the targets, and logarithms of the softmax's denominators: float32 [tokens] each."""
    logits = products.float() / temperature
    normalizers = logits.logsumexp(-1)
    return logits.gather(-1, targets[:, None]).squeeze(-1) - normalizers, normalizers


def _statistics(products: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """What `_chosen` gives, and entropies H = log Σ e^z - Σ p z of logits z: float32 [tokens] each.

    As in version 0.1.0, so that where nothing is compiled losses are what they were to the last bit.
    """
    log_probs, normalizers = _chosen(products, targets, temperature)
    logits = products.float() / temperature
    return log_probs, normalizers, normalizers - ((logits - normalizers[:, None]).exp() * logits).sum(-1)


def _shifted_statistics(products: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """The same where it is compiled: one pass less over the products, and exact for logits of any size.

    Entropies are those of the shifted logits y = z - max z, which both sums share: H = log Σ e^y - Σ e^y y / Σ e^y.
    """
    logits = products.float() / temperature
    highest = logits.amax(-1, keepdim=True)
    shifted = logits - highest
    powers = shifted.exp()
    totals = powers.sum(-1)
    logarithms = totals.log()
    normalizers = logarithms + highest.squeeze(-1)
    log_probs = logits.gather(-1, targets[:, None]).squeeze(-1) - normalizers
    return log_probs, normalizers, logarithms - (powers * shifted).sum(-1) / totals


def _logits_gradient(
    products: Tensor,
    targets: Tensor,
    normalizers: Tensor,
    entropies: Tensor,
    log_probs_gradient: Tensor,
    entropies_gradient: Tensor,
    temperature: float,
) -> Tensor:
    """Gradient of the products: ∂ log p_t / ∂ z = 1_t - p and ∂ H / ∂ z = -p (log p + H), for logits z."""
    log_softmax = products.float() / temperature - normalizers[:, None]
    softmax = log_softmax.exp()
    of_entropy = entropies_gradient[:, None] * (log_softmax + entropies[:, None])
    words = torch.arange(products.shape[-1], device=products.device, dtype=torch.int32)
    is_target = words == targets.int()[:, None]
    gradient = torch.where(is_target, log_probs_gradient[:, None], 0.0) - softmax * (
        log_probs_gradient[:, None] + of_entropy
    )
    return (gradient / temperature).to(products.dtype)


def _plus_product(total: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """A float32 sum plus a product of matrices of the same or a lower precision."""
    if total is None:
        total = torch.zeros(len(left), right.shape[1], device=left.device)
    if left.is_cuda and left.dtype != total.dtype:
        # One pass over the sum, not one for the product and another to add it.
        added: Tensor = torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
        return added
    return total.add_(left @ right)


def _sum(values: list[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.stack(values).sum()


def _function(function: Callable[..., Any], compiled: bool) -> Callable[..., Any]:
    return _compiled(function) if compiled else function


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=True)
