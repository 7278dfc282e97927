"""What the rollout generates: a step's prompts, and for each of them how long and by which draws."""

from collections.abc import Iterable, Sequence
from math import log
from typing import Any

import numpy as np

from placebench.errors import UsageError
from placebench.spec.workload import Workload
from placebench.tasks.data import Prompt, PromptSource
from placebench.tasks.prompt_lengths import too_long
from placebench.tasks.tokenizer import Tokenizer


class Generation:
    """The prompts of a job.

    Args:
        workload: the job.
        source: where prompts come from.
        tokenizer: the actor's.
        is_stale: whether older weights than the actor's may generate.
        first_step: the first step of the launch.
    """

    def __init__(
        self,
        workload: Workload,
        source: PromptSource,
        tokenizer: Tokenizer,
        *,
        is_stale: bool = False,
        first_step: int = 1,
    ) -> None:
        self._workload, self._source, self._tokenizer = workload, source, tokenizer
        self._is_stale, self._first_step = is_stale, first_step

    def refuse_long_prompts(self) -> None:
        """Look at all prompts before any is generated from.

        Raises:
            UsageError: one is too long, or cannot be encoded.
        """
        data, longest = self._workload.data, self._workload.batch.max_prompt_length
        for reason in too_long(self._source, self._tokenizer, data, longest):
            raise UsageError(reason)

    def step_prompts(self, step: int) -> list[Prompt]:
        """One prompt a sequence: each of the step's prompts as often as its group is large."""
        batch = self._workload.batch
        prompts = self._source.step_prompts(step, batch.size // batch.group_size)
        return [prompt for prompt in prompts for _ in range(batch.group_size)]

    def arguments(self, step: int, prompts: Sequence[Prompt], indices: Iterable[int]) -> dict[str, Any]:
        """What one rank needs for `gen`: those of a step's prompts that stand at `indices`."""
        chosen = [int(index) for index in indices]
        # From 1: numpy takes a seed that ends in 0 for the one without it, which is that of the step's prompts.
        sources = [np.random.default_rng([self._workload.seed, step, index + 1]) for index in chosen]
        return {
            "prompts": [self._encode(prompts[index].text) for index in chosen],
            "longest": [self._longest_response(source) for source in sources],
            "seeds": [int(source.integers(2**32)) for source in sources],
            "log_probs": self._wants_log_probs(step),
        }

    def _wants_log_probs(self, step: int) -> bool:
        """Whether the rollout tells the log-probabilities of a step's tokens.

        The loss needs them where they may not be those that `old_log_prob` computes. In warm-up steps, which are in no
        measured time, they show whether the rollout has the policy's weights.
        """
        warms_up = step < self._first_step + self._workload.warmup_steps
        return self._is_stale or warms_up or self._workload.rollout.log_probs == "always"

    def _longest_response(self, source: np.random.Generator) -> int:
        rollout, longest = self._workload.rollout, self._workload.batch.max_response_length
        if rollout.response_lengths == "longest":
            return longest
        drawn = source.lognormal(log(rollout.response_length_median), rollout.response_length_sigma)
        return min(longest, max(1, round(drawn)))

    def _encode(self, text: str) -> list[int]:
        tokens, limit = self._tokenizer.encode(text), self._workload.batch.max_prompt_length
        if not tokens:
            raise UsageError(
                f"the tokenizer of {self._workload.model} gives no tokens for the prompt {text[:60]!r}; save the"
                " model's own tokenizer there"
            )
        if len(tokens) > limit:
            raise UsageError(
                f"a prompt has {len(tokens)} tokens, batch.max_prompt_length allows {limit}: {text[:60]!r};"
                " start a new run with --set batch.max_prompt_length=N"
            )
        return tokens
