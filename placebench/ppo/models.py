"""Policy and value models on top of transformers' decoders."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from placebench.errors import UsageError
from placebench.models import PRESETS


def model_config(model: str) -> Any:
    """The transformers config of a preset, a folder or a hub id.

    Raises:
        UsageError: transformers cannot load it.
    """
    from transformers import AutoConfig

    if model in PRESETS:
        shape = PRESETS[model]
        return AutoConfig.for_model(
            shape.model_type, **shape.config(), eos_token_id=0, pad_token_id=0, bos_token_id=None
        )
    try:
        return AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise UsageError(f"--model {model}: cannot be loaded: {str(error).splitlines()[0]}") from None


def load_language_model(model: str, seed: int) -> Any:
    """A causal language model in float32: random weights from the seed for a preset, the saved ones otherwise."""
    import transformers

    auto_model: Any = transformers.AutoModelForCausalLM
    config = model_config(model)
    if model not in PRESETS:
        return auto_model.from_pretrained(model, config=config, dtype=torch.float32)
    torch.manual_seed(seed)
    return auto_model.from_config(config, dtype=torch.float32)


class PolicyModel(nn.Module):
    """A causal language model that gives log-probabilities of given tokens instead of logits."""

    def __init__(self, language_model: Any, temperature: float) -> None:
        super().__init__()
        self.language_model = language_model
        self.temperature = temperature

    @property
    def layers(self) -> nn.ModuleList:
        """The transformer blocks, the units of sharding and checkpointing."""
        return cast(nn.ModuleList, self.language_model.model.layers)

    def forward(self, input_ids: Tensor, predicts: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropy of the sampling distribution at the response tokens.

        Args:
            input_ids: int64 [sequences, length], padded on the right. Attention is causal, so that no response
                token sees the padding.
            predicts: bool [sequences, length], True at the positions whose output predicts a response token.
            targets: int64 [response tokens], those tokens in order.

        Returns:
            Log-probabilities of the targets and entropies in nats, both float32 [response tokens].
        """
        hidden = self.language_model.model(input_ids=input_ids, use_cache=False).last_hidden_state[predicts]
        logits = self.language_model.lm_head(hidden).float() / self.temperature
        log_probs = torch.log_softmax(logits, dim=-1)
        entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
        return log_probs.gather(1, targets[:, None]).squeeze(1), entropy


class ValueModel(nn.Module):
    """A decoder with a value head: the expected return before each response token."""

    def __init__(self, backbone: Any, hidden_size: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.value_head = nn.Linear(hidden_size, 1, bias=False, dtype=next(backbone.parameters()).dtype)
        nn.init.normal_(self.value_head.weight, std=1 / (hidden_size + 1))

    @property
    def layers(self) -> nn.ModuleList:
        """The transformer blocks, the units of sharding and checkpointing."""
        return cast(nn.ModuleList, self.backbone.layers)

    def forward(self, input_ids: Tensor, predicts: Tensor) -> Tensor:
        """Values at the response tokens, float32 [response tokens]; arguments as in `PolicyModel`."""
        hidden = self.backbone(input_ids=input_ids, use_cache=False).last_hidden_state[predicts]
        return cast(Tensor, self.value_head(hidden)).squeeze(-1).float()


def build_policy(model: str, seed: int, temperature: float) -> PolicyModel:
    """The actor's or the reference's model; equal seeds give equal weights."""
    return PolicyModel(load_language_model(model, seed), temperature)


def build_critic(model: str, seed: int) -> ValueModel:
    """The critic: the decoder of `model` with a new value head."""
    language_model = load_language_model(model, seed)
    torch.manual_seed(seed)
    return ValueModel(language_model.model, language_model.config.hidden_size)
