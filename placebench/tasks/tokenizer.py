"""Text to tokens: characters for models with random weights, the model's own tokenizer for real ones."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from placebench.errors import UsageError
from placebench.spec.legible import shown
from placebench.spec.shapes import PRESETS

_GENERATION_CONFIG = "generation_config.json"
CHARACTERS = "0123456789+-*/=()<>.,:;?! abcdefghijklmnopqrstuvwxyz"


class CharacterTokenizer:
    """One token a character, for models with random weights; token 0 ends a sequence.

    Tokens that stand for no character (a model's vocabulary is larger) decode to a replacement character.
    """

    eos_token_id = 0
    stop_token_ids = (0,)

    def encode(self, text: str) -> list[int]:
        """Tokens of lower-case text.

        Raises:
            UsageError: a character has no token.
        """
        unknown = sorted(set(text.lower()) - set(CHARACTERS))
        if unknown:
            raise UsageError(
                f"prompt {shown(text)}: {shown(unknown[0])} has no token in a model with random weights;"
                f" use {CHARACTERS!r} only, or a real model with --model"
            )
        return [CHARACTERS.index(character) + 1 for character in text.lower()]

    def decode(self, tokens: Iterable[int]) -> str:
        """Characters of the tokens; the end token is left out."""
        return "".join(
            CHARACTERS[token - 1] if token <= len(CHARACTERS) else "\N{REPLACEMENT CHARACTER}"
            for token in tokens
            if token != self.eos_token_id
        )


class ModelTokenizer:
    """The tokenizer saved with a real model, through transformers."""

    def __init__(self, model: str) -> None:
        import transformers

        self._model = model
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(model)
        except Exception as error:  # noqa: BLE001 - a file that is not as it should be ends in any of them
            reason = error if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: {error}"
            raise UsageError(f"--model {model}: no tokenizer can be loaded: {str(reason).splitlines()[0]}") from None
        if self._tokenizer.eos_token_id is None:
            raise UsageError(f"--model {model}: its tokenizer has no end-of-sequence token")
        self.stop_token_ids = _stop_tokens(model, int(self._tokenizer.eos_token_id))

    def encode(self, text: str) -> list[int]:
        """Tokens of a prompt, as one user message where the model has a chat template.

        Raises:
            UsageError: the tokenizer, or its template, does not take the prompt.
        """
        message = [{"role": "user", "content": text}]
        try:
            encoded = (
                self._tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True)
                if self._tokenizer.chat_template
                else self._tokenizer(text)
            )
        except Exception as error:  # noqa: BLE001 - a template is a program, which raises what it wants
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise UsageError(
                f"--model {self._model}: its tokenizer cannot encode the prompt {shown(text[:40])}: {reason}"
            ) from None
        return list(encoded["input_ids"])

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of a response, special tokens left out."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))


def _stop_tokens(model: str, own: int) -> tuple[int, ...]:
    """The tokens that end a response: the tokenizer's `own`, and those of the model's `generation_config.json`."""
    import transformers

    try:
        listed: Any = transformers.GenerationConfig.from_pretrained(model).eos_token_id
    except Exception as error:  # noqa: BLE001 - a file that is not as it should be ends in any of them
        if not isinstance(error, OSError) or (Path(model) / _GENERATION_CONFIG).exists():
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise UsageError(f"--model {model}: cannot read {_GENERATION_CONFIG}: {reason}") from None
        listed = None  # a model may have no such file
    tokens = listed if isinstance(listed, list) else [] if listed is None else [listed]
    if not all(isinstance(token, int) for token in tokens):
        raise UsageError(f"--model {model}: eos_token_id of {_GENERATION_CONFIG} must be a token's number, or a list")
    return tuple(sorted({own, *tokens}))


Tokenizer = CharacterTokenizer | ModelTokenizer
"""What the job needs of a tokenizer: `encode` a prompt, `decode` a response, and the `stop_token_ids` that end one."""


def load_tokenizer(model: str) -> Tokenizer:
    """The tokenizer of a preset (characters) or of a saved model."""
    return CharacterTokenizer() if model in PRESETS else ModelTokenizer(model)
