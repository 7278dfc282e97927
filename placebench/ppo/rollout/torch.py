"""Batched generation with a key-value cache on the policy's own weights."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from placebench.ppo.attention import cached_attention
from placebench.ppo.rollout.base import Generated, SamplingSettings, WeightUpdates
from placebench.ppo.training import stays_whole


class TorchRollout:
    """Generates with the trained model itself, so that there is no second copy and no update of weights."""

    def __init__(self, language_model: Any) -> None:
        self._model = language_model

    @torch.inference_mode()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        longest: Sequence[int],
        seeds: Sequence[int],
        settings: SamplingSettings,
        updates: WeightUpdates | None = None,
    ) -> list[Generated]:
        """Generate one response per prompt, the whole batch in step until the last one ends."""
        with cached_attention(self._model):
            tokens, log_probs = self._decode(prompts, longest, seeds, settings, updates)
        return _responses(tokens, log_probs, longest, settings)

    def _decode(
        self,
        prompts: Sequence[Sequence[int]],
        longest: Sequence[int],
        seeds: Sequence[int],
        settings: SamplingSettings,
        updates: WeightUpdates | None,
    ) -> tuple[Tensor, Tensor]:
        device = next(self._model.parameters()).device
        sources = [np.random.default_rng(seed) for seed in seeds]
        limits, stops = torch.tensor(longest, device=device), torch.tensor(settings.stop_token_ids, device=device)
        inputs = _pad_left(prompts, device)
        tokens, log_probs = [], []
        finished = torch.zeros(len(prompts), dtype=torch.bool, device=device)
        for position in range(max(longest)):
            output = self._model(**inputs, use_cache=True, logits_to_keep=1)
            chosen, log_prob = _sample(output.logits[:, -1], settings, sources)
            tokens.append(chosen)
            log_probs.append(log_prob)
            finished |= torch.isin(chosen, stops) | (limits == position + 1)
            if not settings.ignore_eos and bool(finished.all()):
                break
            if updates is not None and updates.pending():
                updates.take()
            inputs = _next_inputs(inputs, output.past_key_values, chosen)
        return torch.stack(tokens, 1), torch.stack(log_probs, 1)

    def update_weights(self, weights: Iterable[tuple[str, Tensor]]) -> int:
        """Nothing to do: the weights are the policy's own."""
        return 0

    def sleep(self) -> None:
        """Nothing is held."""

    def wake_up(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""


class TorchEngine(TorchRollout):
    """Generates with a copy of the trained model, in a pool where that model is not trained."""

    def update_weights(self, weights: Iterable[tuple[str, Tensor]]) -> int:
        """Take over the policy's weights, named as in transformers, in place; returns the bytes written."""
        written = 0
        own = dict(self._model.named_parameters())
        with torch.no_grad():
            for name, weight in weights:
                written += own.pop(name).copy_(weight).nbytes
        assert not own, "every weight is updated"
        return written


@contextmanager
def unsharded(module: nn.Module) -> Iterator[None]:
    """Hold a sharded model's whole weights on every rank meanwhile; other models are left as they are.

    Ranks generate for different numbers of tokens, so that no forward pass inside may gather weights.
    """
    from torch.distributed.fsdp import FSDPModule

    parts = [part for part in module.modules() if isinstance(part, FSDPModule)]
    # The root, which generation does not pass through, stays whole behind its own forward pass anyway, and blocks may.
    inner = [part for part in parts if part is not module and not stays_whole(module)]
    for part in inner:
        part.set_reshard_after_forward(False, recurse=False)
    for part in parts:
        part.unshard()
    try:
        yield
    finally:
        for part in inner:
            part.set_reshard_after_forward(True, recurse=False)
        for part in parts:
            part.reshard()


def _pad_left(prompts: Sequence[Sequence[int]], device: torch.device) -> dict[str, Any]:
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    mask = torch.arange(longest, device=device) >= longest - lengths[:, None]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    return {"input_ids": ids, "attention_mask": mask.long(), "position_ids": positions}


def _next_inputs(inputs: dict[str, Any], cache: Any, chosen: Tensor) -> dict[str, Any]:
    mask = inputs["attention_mask"]
    return {
        "input_ids": chosen[:, None],
        "attention_mask": torch.cat([mask, mask.new_ones(len(mask), 1)], 1),
        "position_ids": inputs["position_ids"][:, -1:] + 1,
        "past_key_values": cache,
    }


def _sample(
    logits: Tensor, settings: SamplingSettings, sources: Sequence[np.random.Generator]
) -> tuple[Tensor, Tensor]:
    """Draw the token with the largest sum of log-probability and Gumbel noise (Gumbel 1954; Maddison et al. 2014).

    The noise belongs to sequence, position and token. So a rounding error of the logits changes a draw only where two
    tokens nearly tie, which inverting the cumulative distribution of many words would not give.

    Returns:
        Tokens int64 [sequences] and their log-probabilities before top-p, float32 [sequences].
    """
    log_probs = torch.log_softmax(logits.float() / settings.temperature, dim=-1)
    noise = np.stack([source.gumbel(size=logits.shape[-1]) for source in sources])
    scores = _nucleus(log_probs, settings.top_p).double() + torch.from_numpy(noise).to(logits.device)
    chosen = scores.argmax(-1, keepdim=True)
    return chosen.squeeze(1), log_probs.gather(1, chosen).squeeze(1)


def _nucleus(log_probs: Tensor, top_p: float) -> Tensor:
    """The log-probabilities of the most likely tokens that make up the mass `top_p`, -inf elsewhere."""
    if top_p == 1:
        return log_probs
    mass, order = log_probs.double().exp().sort(dim=-1, descending=True, stable=True)
    # A token stays while the mass before it is below top_p, so that the first one always does.
    left_out = (mass.cumsum(-1) - mass >= top_p).gather(1, order.argsort(-1))
    return log_probs.masked_fill(left_out, float("-inf"))


def _responses(
    tokens: Tensor, log_probs: Tensor, longest: Sequence[int], settings: SamplingSettings
) -> list[Generated]:
    stops = torch.tensor(settings.stop_token_ids, device=tokens.device)
    ends = torch.isin(tokens, stops) & (not settings.ignore_eos)
    first_end = torch.where(ends.any(1), ends.int().argmax(1) + 1, tokens.shape[1])
    lengths = [min(end, limit) for end, limit in zip(first_end.tolist(), longest, strict=True)]
    return [
        Generated(row[:length], values[:length])
        for row, values, length in zip(tokens.tolist(), log_probs.tolist(), lengths, strict=True)
    ]
