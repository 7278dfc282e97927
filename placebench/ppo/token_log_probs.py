"""Log-probabilities and entropies of tokens from hidden states, without the whole table of logits.

The table [tokens, words] in float32 is the largest tensor of training with a large vocabulary: 19 GB for 32,768 tokens
of 151,936 words. Here it exists for some rows at a time, in the forward pass, and again, computed anew, in the
backward pass.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from placebench.predict.memory.model import TABLE_VALUES

_compiled: dict[str, Callable[..., Any]] = {}


def token_log_probs(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, *, entropy: bool, compiled: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of given tokens, and entropies, under softmax(hidden · weightᵀ / temperature).

    Args:
        hidden: [tokens, width], in the precision of the products.
        weight: the output head's, [words, width].
        targets: int64 [tokens].
        temperature: divides the logits.
        entropy: whether entropies are wanted; they are zeros otherwise.
        compiled: whether to compile what follows the products.

    Returns:
        Log-probabilities and entropies in nats, float32 [tokens] each.
    """
    apply: Any = _TokenLogProbs.apply
    results: tuple[Tensor, Tensor] = apply(hidden, weight, targets, temperature, entropy, compiled)
    return results


class _TokenLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        entropy: bool,
        compiled: bool,
    ) -> tuple[Tensor, Tensor]:
        weight = weight.to(hidden.dtype)
        statistics = _function(_statistics, compiled)
        results = hidden.new_empty(3, len(hidden), dtype=torch.float32)
        for rows in _row_slices(hidden, weight):
            results[:, rows] = statistics(hidden[rows] @ weight.t(), targets[rows], temperature, entropy)
        context.save_for_backward(hidden, weight, targets, results)
        context.temperature, context.compiled = temperature, compiled
        # Tensors of their own: sharding hooks itself to what comes out of a model.
        return results[0].clone(), results[2].clone()

    @staticmethod
    def backward(context: Any, log_probs_gradient: Tensor, entropies_gradient: Tensor) -> tuple[Any, ...]:
        hidden, weight, targets, (_, normalizers, entropies) = context.saved_tensors
        logits_gradient = _function(_logits_gradient, context.compiled)
        hidden_gradient = torch.empty_like(hidden)
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32)
        for rows in _row_slices(hidden, weight):
            gradient = logits_gradient(
                hidden[rows] @ weight.t(),
                targets[rows],
                normalizers[rows],
                entropies[rows],
                log_probs_gradient[rows],
                entropies_gradient[rows],
                context.temperature,
            )
            hidden_gradient[rows] = gradient @ weight
            weight_gradient += gradient.t() @ hidden[rows]
        return hidden_gradient, weight_gradient.to(weight.dtype), None, None, None, None


def _row_slices(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    rows = max(1, TABLE_VALUES // weight.shape[0])
    return (slice(start, start + rows) for start in range(0, len(hidden), rows))


def _statistics(products: Tensor, targets: Tensor, temperature: float, entropy: bool) -> Tensor:
    """Log-probabilities of the targets, logarithms of the softmax's denominators, entropies: [3, tokens]."""
    logits = products.float() / temperature
    normalizers = logits.logsumexp(-1)
    log_probs = logits.gather(-1, targets[:, None]).squeeze(-1) - normalizers
    entropies = torch.zeros_like(log_probs)
    if entropy:
        entropies = normalizers - ((logits - normalizers[:, None]).exp() * logits).sum(-1)
    return torch.stack([log_probs, normalizers, entropies])


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
    is_target = torch.arange(products.shape[-1], device=products.device) == targets[:, None]
    gradient = torch.where(is_target, log_probs_gradient[:, None], 0.0) - softmax * (
        log_probs_gradient[:, None] + of_entropy
    )
    return (gradient / temperature).to(products.dtype)


def _function(function: Callable[..., Any], compiled: bool) -> Callable[..., Any]:
    if not compiled:
        return function
    if function.__name__ not in _compiled:
        _compiled[function.__name__] = torch.compile(function, dynamic=True)
    return _compiled[function.__name__]
