"""What every rollout backend offers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class SamplingSettings:
    """How tokens are drawn, and what is told of them."""

    temperature: float
    """What divides the logits; above 0."""
    top_p: float
    """Mass of the most likely tokens to draw from."""
    ignore_eos: bool
    """Whether a response goes on behind a token that would end it."""
    stop_token_ids: tuple[int, ...]
    """The tokens that end a response; the one that does is part of it."""
    log_probs: bool = True
    """Whether log-probabilities are wanted; a backend that has them anyway tells them."""


@dataclass(frozen=True)
class Generated:
    """One response."""

    tokens: list[int]
    """Response tokens, the one that ended it included where one was drawn."""
    log_probs: list[float] | None
    """Log-probabilities of the tokens under the temperature-scaled distribution before top-p, in nats; None where they
    were not wanted."""


class WeightUpdates(Protocol):
    """New weights that may come in while responses are generated."""

    def pending(self) -> bool:
        """Whether there are newer weights than the rollout's."""

    def take(self) -> None:
        """Write them into the rollout. Collective over all engines."""


class RolloutBackend(Protocol):
    """Generates responses with the policy's current weights."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        longest: Sequence[int],
        seeds: Sequence[int],
        settings: SamplingSettings,
        updates: WeightUpdates | None = None,
    ) -> list[Generated]:
        """Generate one response per prompt.

        Args:
            prompts: tokens of each prompt.
            longest: tokens after which each response is cut.
            seeds: one a prompt, which alone decides the prompt's draws, not its neighbors; but for vLLM's first model
                runner on GPUs.
            settings: how tokens are drawn.
            updates: new weights to take between two tokens; what was computed from the old ones is kept.
        """

    def update_weights(self, weights: Iterable[tuple[str, Tensor]]) -> int:
        """Take over the policy's weights, named as in transformers, in place; returns the bytes written."""

    def sleep(self) -> None:
        """Give device memory back until `wake_up`; a backend without memory of its own has nothing to give."""

    def wake_up(self) -> None:
        """Take device memory again; the weights are undefined until the next `update_weights`."""

    def close(self) -> None:
        """Free what the backend holds."""
