"""Batched generation with a key-value cache on the policy's own weights."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from placebench.ppo.attention import cached_attention
from placebench.ppo.rollout.base import Generated, SamplingSettings


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
    ) -> list[Generated]:
        """Generate one response per prompt, the whole batch in step until the last one ends."""
        with cached_attention(self._model):
            tokens, log_probs = self._decode(prompts, longest, seeds, settings)
        return _responses(tokens, log_probs, longest, settings)

    def _decode(
        self,
        prompts: Sequence[Sequence[int]],
        longest: Sequence[int],
        seeds: Sequence[int],
        settings: SamplingSettings,
    ) -> tuple[Tensor, Tensor]:
        device = next(self._model.parameters()).device
        draws = _uniform_draws(seeds, max(longest)).to(device)
        limits = torch.tensor(longest, device=device)
        inputs = _pad_left(prompts, device)
        tokens, log_probs = [], []
        finished = torch.zeros(len(prompts), dtype=torch.bool, device=device)
        for position in range(max(longest)):
            output = self._model(**inputs, use_cache=True, logits_to_keep=1)
            chosen, log_prob = _sample(output.logits[:, -1], settings, draws[:, position])
            tokens.append(chosen)
            log_probs.append(log_prob)
            finished |= (chosen == settings.eos_token_id) | (limits == position + 1)
            if not settings.ignore_eos and bool(finished.all()):
                break
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


@contextmanager
def unsharded(module: nn.Module) -> Iterator[None]:
    """Hold a sharded model's whole weights on every rank meanwhile; other models are left as they are.

    Ranks generate for different numbers of tokens, so that no forward pass inside may gather weights.
    """
    from torch.distributed.fsdp import FSDPModule

    parts = [part for part in module.modules() if isinstance(part, FSDPModule)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(True, recurse=False)
            part.reshard()


def _uniform_draws(seeds: Sequence[int], count: int) -> Tensor:
    """One row of uniform numbers per seed, float64 [sequences, count]."""
    return torch.from_numpy(np.stack([np.random.default_rng(seed).random(count) for seed in seeds]))


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


def _sample(logits: Tensor, settings: SamplingSettings, draws: Tensor) -> tuple[Tensor, Tensor]:
    """Draw by inverting the cumulative distribution, tokens in falling order of probability.

    Returns:
        Tokens int64 [sequences] and their log-probabilities before top-p, float32 [sequences].
    """
    log_probs = torch.log_softmax(logits.float() / settings.temperature, dim=-1)
    mass, order = log_probs.double().exp().sort(dim=-1, descending=True, stable=True)
    cumulative = mass.cumsum(-1)
    # A token stays while the mass before it is below top_p, so that the first one always does.
    nucleus = torch.where(cumulative - mass < settings.top_p, mass, 0.0).cumsum(-1)
    rank = torch.searchsorted(nucleus, draws[:, None] * nucleus[:, -1:], right=True)
    rank = rank.clamp(max=logits.shape[-1] - 1)
    chosen = order.gather(1, rank)
    return chosen.squeeze(1), log_probs.gather(1, chosen).squeeze(1)


def _responses(
    tokens: Tensor, log_probs: Tensor, longest: Sequence[int], settings: SamplingSettings
) -> list[Generated]:
    ends = (tokens == settings.eos_token_id) & (not settings.ignore_eos)
    first_end = torch.where(ends.any(1), ends.int().argmax(1) + 1, tokens.shape[1])
    lengths = [min(end, limit) for end, limit in zip(first_end.tolist(), longest, strict=True)]
    return [
        Generated(row[:length], values[:length])
        for row, values, length in zip(tokens.tolist(), log_probs.tolist(), lengths, strict=True)
    ]
