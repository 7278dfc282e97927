"""Policy and value models on top of transformers' decoders."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from placebench.errors import UsageError
from placebench.ppo.attention import PACKED, register
from placebench.ppo.token_log_probs import TokenLoss, token_log_probs, token_loss
from placebench.spec.shapes import PRESETS, other_blocks

# Settings of some architectures that change logits behind the output head, which `PolicyModel` does not compute.
_HEAD_SETTINGS = ("final_logit_softcapping", "logit_scale", "logits_scaling")


def model_config(model: str) -> Any:
    """The transformers config of a preset, a folder or a hub id.

    Raises:
        UsageError: transformers cannot load it, its logits are not a plain product, or its blocks are not attention.
    """
    from transformers import AutoConfig

    if model in PRESETS:
        shape = PRESETS[model]
        return AutoConfig.for_model(
            shape.model_type, **shape.config(), eos_token_id=0, pad_token_id=0, bos_token_id=None
        )
    try:
        config = AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise UsageError(f"--model {model}: cannot be loaded: {str(error).splitlines()[0]}") from None
    for name in _HEAD_SETTINGS:
        if getattr(config, name, None) is not None:
            raise UsageError(f"--model {model}: its {name} is not supported; choose another model")
    if others := other_blocks(getattr(config, "layer_types", None)):
        kinds = ", ".join(others)
        raise UsageError(f"--model {model}: has {kinds} blocks, which are not supported; choose another model")
    return config


def load_language_model(model: str) -> Any:
    """A causal language model: the saved weights, or for a preset weights on the meta device, without memory yet.

    Raises:
        UsageError: transformers cannot load it, its logits are not a plain product, or its blocks are not attention or
            not where those of Llama are.
    """
    import transformers

    register()
    auto_model: Any = transformers.AutoModelForCausalLM
    config = model_config(model)
    try:
        if model in PRESETS:
            with torch.device("meta"):
                return auto_model.from_config(config, dtype=torch.float32, attn_implementation=PACKED)
        loaded = auto_model.from_pretrained(model, config=config, dtype="auto", attn_implementation=PACKED)
    except ValueError as error:
        raise UsageError(f"--model {model}: cannot be trained: {str(error).splitlines()[0]}") from None
    except RuntimeError as error:
        if "ignore_mismatched_sizes" not in str(error):
            raise
        raise UsageError(
            f"--model {model}: its weights have other sizes than its config.json says; save the model again"
        ) from None
    if getattr(loaded.get_output_embeddings(), "bias", None) is not None:
        raise UsageError(f"--model {model}: its output head has a bias, which is not supported; choose another model")
    if not hasattr(loaded, "lm_head") or not hasattr(getattr(loaded, "model", None), "layers"):
        raise UsageError(
            f"--model {model}: has no model.layers and lm_head as Llama has them, which is not supported; choose"
            " another model"
        )
    return loaded


def load_critic_model(model: str, vocabulary: int) -> "ValueModel":
    """A language model's decoder with a new head of one value.

    Args:
        model: a preset, a folder or a hub id.
        vocabulary: words of the actor's, whose tokens it is to read.

    Raises:
        UsageError: it cannot be loaded, or knows fewer words.
    """
    words = model_config(model).vocab_size
    if words < vocabulary:
        raise UsageError(
            f"critic_model {model}: its vocabulary has {words} words, fewer than the actor's {vocabulary}; name one of"
            " the actor's family"
        )
    return ValueModel(load_language_model(model))


def load_reward_model(model: str, vocabulary: int) -> "ValueModel":
    """A sequence classifier with one score: the saved weights, or for a preset weights on the meta device.

    Args:
        model: a preset, a folder or a hub id.
        vocabulary: words of the actor's, whose tokens it is to read.

    Raises:
        UsageError: it cannot be loaded, has another number of scores, or another vocabulary.
    """
    import transformers

    register()
    auto_model: Any = transformers.AutoModelForSequenceClassification
    config = model_config(model)
    if model in PRESETS:
        config.num_labels = 1
    if config.num_labels != 1:
        raise UsageError(f"reward_model {model}: gives {config.num_labels} scores; name one with a single score")
    if config.vocab_size != vocabulary:
        raise UsageError(
            f"reward_model {model}: its vocabulary has {config.vocab_size} words and the actor's {vocabulary}; name one"
            " of the actor's family"
        )
    try:
        if model in PRESETS:
            with torch.device("meta"):
                classifier = auto_model.from_config(config, dtype=torch.float32, attn_implementation=PACKED)
        else:
            classifier = auto_model.from_pretrained(model, config=config, dtype="auto", attn_implementation=PACKED)
    except ValueError as error:
        raise UsageError(f"reward_model {model}: cannot score: {str(error).splitlines()[0]}") from None
    return ValueModel(classifier, classifier.score)


class DecoderModel(nn.Module):
    """A transformers decoder with a head of its own."""

    def __init__(self, language_model: Any) -> None:
        super().__init__()
        # Not a submodule, because not every head uses all of it.
        self._initialize = language_model._init_weights

    @property
    def decoder(self) -> nn.Module:
        """Embedding, blocks and final norm."""
        raise NotImplementedError

    @property
    def layers(self) -> nn.ModuleList:
        """The transformer blocks, the units of sharding, checkpointing and compiling."""
        return cast(nn.ModuleList, self.decoder.layers)

    def materialize(self, part: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        """Give a part of the model memory on a device, in a precision: its values, or random ones where it has none.

        The draws come from torch's generator of the device. Called for the parts of a model in the same order after
        the same seed, they are the same, whoever keeps which shard of them later.
        """
        for module in part.modules():
            own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
            if any(tensor.is_meta for tensor in own):
                module.to_empty(device=device, recurse=False)
                self.initialize(module)
        part.to(device)
        for parameter in part.parameters():
            parameter.data = parameter.data.to(dtype)

    def initialize(self, module: nn.Module) -> None:
        """Draw one module's own parameters."""
        self._initialize(module)

    def tie_weights(self) -> None:
        """Let tied parameters be one again, once all of the model has memory."""

    def _hidden(self, inputs: dict[str, Any], predict_positions: Tensor) -> Tensor:
        output: Tensor = self.decoder(**inputs, use_cache=False).last_hidden_state
        return output.squeeze(0).index_select(0, predict_positions)


class PolicyModel(DecoderModel):
    """A causal language model that gives log-probabilities of given tokens, or a loss over them, instead of logits."""

    def __init__(self, language_model: Any, temperature: float, precision: torch.dtype, compiled: bool) -> None:
        super().__init__(language_model)
        self.language_model = language_model
        self._temperature, self._precision, self._compiled = temperature, precision, compiled

    @property
    def decoder(self) -> nn.Module:
        """Embedding, blocks and final norm."""
        return cast(nn.Module, self.language_model.model)

    def tie_weights(self) -> None:
        """Let output head and embedding share their weights again where the architecture says so."""
        self.language_model.tie_weights()

    def forward(
        self, inputs: dict[str, Any], predict_positions: Tensor, targets: Tensor, loss: TokenLoss | None = None
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """Log-probabilities of the response tokens under the sampling distribution, or a loss over them.

        Args:
            inputs: packed sequences, see `packing.pack`.
            predict_positions: int64 [response tokens], the positions whose output predicts a response token.
            targets: int64 [response tokens], those tokens in order.
            loss: of the log-probabilities and entropies of a slice of the response tokens, see `token_loss`.

        Returns:
            Log-probabilities of the targets in nats, float32 [response tokens], without gradient. With a loss its sum,
            with gradient, and those of its metrics, in a form in which sharding finds the tensor to hook itself to.
        """
        hidden = self._hidden(inputs, predict_positions).to(self._precision)
        head = self.language_model.lm_head.weight
        if loss is None:
            return token_log_probs(hidden, head, targets, self._temperature, compiled=self._compiled)
        sums = token_loss(hidden, head, targets, self._temperature, loss, compiled=self._compiled)
        return sums.loss, sums.metrics


class ValueModel(DecoderModel):
    """A decoder with one number a token: a critic's expected return, or a reward model's score.

    Args:
        language_model: the decoder is its `model`.
        head: of one output; None for a new one.
    """

    def __init__(self, language_model: Any, head: nn.Linear | None = None) -> None:
        super().__init__(language_model)
        self.backbone = language_model.model
        with torch.device("meta"):
            self.value_head = head or nn.Linear(language_model.config.hidden_size, 1, bias=False)

    @property
    def decoder(self) -> nn.Module:
        """Embedding, blocks and final norm."""
        return cast(nn.Module, self.backbone)

    def initialize(self, module: nn.Module) -> None:
        """Draw one module's own parameters; the head's so that values begin near 0."""
        if module is self.value_head:
            nn.init.normal_(self.value_head.weight, std=1 / (self.value_head.in_features + 1))
        else:
            super().initialize(module)

    def forward(self, inputs: dict[str, Any], predict_positions: Tensor) -> Tensor:
        """Values at the positions given, float32 [positions]; arguments as in `PolicyModel`."""
        values: Tensor = self.value_head(self._hidden(inputs, predict_positions))
        # A tensor of its own: sharding hooks itself to what comes out of a model.
        return values.float().squeeze(-1).clone()
