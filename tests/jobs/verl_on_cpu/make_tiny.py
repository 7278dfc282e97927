"""A model with random weights, its tokenizer and data in verl's form, made without a network: `make_tiny.py FOLDER`."""

import random
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_HIDDEN = 64


def main(folder: Path) -> None:
    """Write `model`, `train.parquet` and `test.parquet`."""
    bytes_of = sorted(pre_tokenizers.ByteLevel.alphabet())
    by_byte = Tokenizer(models.BPE(vocab={byte: index for index, byte in enumerate(bytes_of)}, merges=[]))
    by_byte.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    by_byte.decoder = decoders.ByteLevel()
    fast_tokenizer: Any = PreTrainedTokenizerFast
    tokenizer = fast_tokenizer(
        tokenizer_object=by_byte,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=_TEMPLATE,
    )
    tokenizer.save_pretrained(folder / "model")
    config = Qwen2Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=_HIDDEN,
        intermediate_size=4 * _HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    model: Any = Qwen2ForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder / "model")
    for split, count in (("train", 512), ("test", 32)):
        pd.DataFrame(rows(count, split)).to_parquet(folder / f"{split}.parquet")


def rows(count: int, split: str) -> list[dict[str, object]]:
    """Sums, each with its answer."""
    drawn = random.Random(split)
    pairs = [(drawn.randint(1, 99), drawn.randint(1, 99)) for _ in range(count)]
    return [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": f"What is {a}+{b}? Answer after ####."}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(a + b)},
            "extra_info": {"split": split, "index": index},
        }
        for index, (a, b) in enumerate(pairs)
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
