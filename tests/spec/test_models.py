"""Shapes of models that transformers saves, beside the models that it builds from them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from placebench.errors import UsageError
from placebench.spec.shapes import _HEAD_DIMS, _TIED_TYPES, model_shape

SIZES = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)
# Shapes of Qwen3-0.6B and -4B, Mistral-Nemo-12B and Gemma-3-1B: heads that are wider or narrower than their share.
WIDE_HEADS: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": dict(zip(SIZES, ("qwen3", 151_936, 1024, 3072, 28, 16, 8, 128), strict=True)),
    "qwen3-4b": dict(zip(SIZES, ("qwen3", 151_936, 2560, 9728, 36, 32, 8, 128), strict=True)),
    "nemo-12b": dict(zip(SIZES, ("mistral", 131_072, 5120, 14_336, 40, 32, 8, 128), strict=True)),
    "gemma3-1b": dict(zip(SIZES, ("gemma3_text", 262_144, 1152, 6912, 26, 4, 1, 256), strict=True)),
}


@pytest.mark.parametrize("sizes", WIDE_HEADS.values(), ids=WIDE_HEADS)
def test_heads_and_tied_weights_are_read_as_transformers_reads_them(tmp_path: Path, sizes: dict[str, Any]) -> None:
    config = transformers.AutoConfig.for_model(**sizes)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    parameters = sum(part.numel() for part in model.parameters())
    content = config.to_dict()
    for left_out in ((), ("tie_word_embeddings",)):
        kept = {name: value for name, value in content.items() if name not in left_out}
        (tmp_path / "config.json").write_text(json.dumps(kept))
        shape = model_shape(str(tmp_path))
        assert shape is not None
        assert shape.parameters == pytest.approx(parameters, rel=1e-4)
        assert shape.kv_width() == model.model.layers[0].self_attn.k_proj.weight.shape[0]


def test_what_a_config_leaves_out_is_what_transformers_takes(tmp_path: Path) -> None:
    kinds = ["llama", "mistral", "qwen2", "phi3", "olmo2", "granite", "glm4", *_TIED_TYPES, *_HEAD_DIMS]
    for kind in dict.fromkeys(kinds):
        config = transformers.AutoConfig.for_model(kind, hidden_size=96, num_attention_heads=8)
        content = {name: value for name, value in config.to_dict().items() if name in SIZES and name != "head_dim"}
        (tmp_path / "config.json").write_text(json.dumps(content))
        shape = model_shape(str(tmp_path))
        assert shape is not None
        assert (kind, shape.tie_word_embeddings) == (kind, config.tie_word_embeddings)
        assert (kind, shape.head_width) == (kind, getattr(config, "head_dim", None) or 12)


@pytest.mark.parametrize("kind", ["qwen3_moe", "mixtral", "olmoe", "deepseek_v3", "gpt_oss"])
def test_a_mixture_of_experts_is_refused(tmp_path: Path, kind: str) -> None:
    transformers.AutoConfig.for_model(kind).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"config\.json: a mixture of experts \(.*experts.* \d+.*choose a dense model"):
        model_shape(str(tmp_path))


def test_a_config_nested_too_deep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(UsageError, match="cannot read it as JSON: its brackets are nested too deep"):
        model_shape(str(tmp_path))


def test_a_config_whose_rope_has_no_keys_is_refused(tmp_path: Path) -> None:
    content = transformers.AutoConfig.for_model("qwen2").to_dict() | {"rope_parameters": [10_000.0]}
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=r"config\.json: not the config of .* rope_parameters: \[10000\.0\] holds no"):
        model_shape(str(tmp_path))


def test_a_config_is_not_waited_for_at_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(UsageError, match=r"config\.json: cannot read it: it is a pipe or a device"):
        model_shape(str(tmp_path))
