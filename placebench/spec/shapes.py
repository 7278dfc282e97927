"""Shapes of decoder-only language models: presets, `config.json` of folders and of the hub, and their arithmetic.

The presets have the true shapes of public models and random weights, so nothing is downloaded. Sources:
the `config.json` of Qwen/Qwen2.5-0.5B, -1.5B and -7B and of meta-llama/Llama-3.1-8B.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from placebench.errors import UsageError
from placebench.spec.hub import hub_config
from placebench.spec.legible import shown
from placebench.spec.nearest import did_you_mean
from placebench.spec.reading import parse_json, refuse_pipe
from placebench.spec.workload import Workload


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a Llama-like transformer (grouped-query attention, gated MLP, RMSNorm).

    `head_dim` is None where heads share the model's width. The field names are those of a transformers config.
    """

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    tie_word_embeddings: bool
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 32_768
    head_dim: int | None = None

    @property
    def head_width(self) -> int:
        """Width of one attention head: the config's own, or the heads' equal share of the model's width."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def attention_width(self) -> int:
        """Width of a token's queries over all heads, and of what attention gives."""
        return self.num_attention_heads * self.head_width

    def kv_width(self, shared_by: int = 1) -> int:
        """Width of a token's keys, and of its values, on each of the devices that share a model.

        Each of them has a head at least: where there are fewer heads than devices, they hold copies.
        """
        return max(1, self.num_key_value_heads // shared_by) * self.head_width

    @property
    def attention_bias(self) -> bool:
        """Whether query, key and value have a bias (Qwen2 does, Llama does not)."""
        return self.model_type == "qwen2"

    @property
    def head_norms(self) -> bool:
        """Whether the queries and keys of each head are normalized (Qwen3 and Gemma 3 do)."""
        return self.model_type in ("qwen3", "gemma3_text")

    @property
    def backbone_parameters(self) -> int:
        """Parameters of the transformer without the output head."""
        width, kv_width = self.attention_width, self.kv_width()
        attention = 2 * self.hidden_size * (width + kv_width)
        if self.attention_bias:
            attention += width + 2 * kv_width
        mlp = 3 * self.hidden_size * self.intermediate_size
        norms = 2 * self.hidden_size + (2 * self.head_width if self.head_norms else 0)
        embedding = self.vocab_size * self.hidden_size
        return self.num_hidden_layers * (attention + mlp + norms) + self.hidden_size + embedding

    @property
    def parameters(self) -> int:
        """Parameters of the causal language model."""
        return self.backbone_parameters + (0 if self.tie_word_embeddings else self.vocab_size * self.hidden_size)

    @property
    def critic_parameters(self) -> int:
        """Parameters of a critic: the backbone and a value head of one output without bias."""
        return self.backbone_parameters + self.hidden_size

    def config(self) -> dict[str, Any]:
        """The keyword arguments of the transformers config with this shape."""
        content = {key: value for key, value in asdict(self).items() if key != "model_type" and value is not None}
        content["rope_parameters"] = {"rope_type": "default", "rope_theta": content.pop("rope_theta")}
        return content


@dataclass(frozen=True)
class JobShapes:
    """Shapes of a job's models; `reward` is None where the reward is a function."""

    actor: ModelShape
    critic: ModelShape
    reward: ModelShape | None = None


PRESETS: Mapping[str, ModelShape] = {
    "tiny": ModelShape("qwen2", 128, 512, 4, 4, 4, 64, False),
    "qwen2.5-0.5b": ModelShape("qwen2", 896, 4864, 24, 14, 2, 151_936, True, 1e6),
    "qwen2.5-1.5b": ModelShape("qwen2", 1536, 8960, 28, 12, 2, 151_936, True, 1e6),
    "qwen2.5-7b": ModelShape("qwen2", 3584, 18_944, 28, 28, 4, 152_064, False, 1e6),
    "llama-3.1-8b": ModelShape("llama", 4096, 14_336, 32, 32, 8, 128_256, False, 5e5, 1e-5),
}

# Kinds of blocks whose tokens see each other through attention alone. Recurrent and convolutional ones (Mamba, LFM2)
# would carry one packed sequence into the next, attention in chunks needs a mask of its own.
_BLOCK_KINDS = frozenset(("full_attention", "sliding_attention"))
# Architectures whose configs leave `tie_word_embeddings` out where embedding and output head are one.
_TIED_TYPES = frozenset(
    ("cohere", "cohere2", "ernie4_5", "gemma", "gemma2", "gemma3_text", "smollm3", "starcoder2", "vaultgemma")
)
# The largest size of a model that is read: vocabularies and contexts of a hundred times what there is.
_MOST = 1_000_000_000
# Architectures whose heads have a width of their own where the config does not say it.
_HEAD_DIMS = {
    **dict.fromkeys(("cwm", "ernie4_5", "glm", "glm4", "helium", "ministral3", "qwen3", "seed_oss"), 128),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "vaultgemma"), 256),
}


def is_folder(model: str) -> bool:
    """Whether a model is a folder, not a preset nor a hub id."""
    return model not in PRESETS and bool(model) and Path(model).is_dir()  # an empty path is the current folder


def hub_models(workload: Workload) -> tuple[str, ...]:
    """The models of a workload, whose shapes were found, that are neither presets nor folders: ids that the hub has."""
    models = (workload.model, workload.critic_model, workload.reward_model)
    return tuple(dict.fromkeys(one for one in models if one and one not in PRESETS and not is_folder(one)))


def model_shape(model: str) -> ModelShape:
    """The shape of a preset, of a folder with a `config.json`, or of a hub id.

    Raises:
        UsageError: neither a preset nor a folder nor the form of a hub id (`owner/name`), or the hub gives no config,
            or an unreadable one.
    """
    if model in PRESETS:
        return PRESETS[model]
    return _read_shape(_config_path(model))


def score_count(model: str) -> int | None:
    """Scores that a model gives as a sequence classifier; None for a preset, which takes any head.

    A config that names no labels has two, as transformers reads it.

    Raises:
        UsageError: as of `model_shape`.
    """
    if model in PRESETS:
        return None
    labels = _read_config(_config_path(model)).get("id2label")
    return len(labels) if isinstance(labels, dict) else 2


def _config_path(model: str) -> Path:
    if is_folder(model):
        return Path(model) / "config.json"
    owner, slash, name = model.partition("/")
    if slash and owner not in ("", ".", "..", "~") and name and "/" not in name and not Path(model).exists():
        return hub_config(model)
    raise UsageError(
        f"unknown model {shown(model)}: use {', '.join(PRESETS)}, a folder with config.json, or a hub id (owner/name)"
        f"{did_you_mean(model, PRESETS)}"
    )


def _read_config(path: Path) -> dict[str, Any]:
    refuse_pipe(path)
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path.parent}: no config.json there; --model takes the folder of a saved model") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot read it as JSON: {error}") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path}: not the config of a model: it holds no keys and values")
    return content


def _read_shape(path: Path) -> ModelShape:
    content = _read_config(path)
    counts = {name: count for name, count in content.items() if "experts" in name and isinstance(count, int)}
    if experts := [f"{name} {count}" for name, count in counts.items() if count > 1]:
        raise UsageError(
            f"{path}: a mixture of experts ({', '.join(experts)}), whose memory and work are not known; choose a dense"
            " model"
        )
    try:
        shape = _shape_of(content)
    except KeyError as error:
        raise UsageError(f"{path}: not the config of a decoder-only language model: it has no {error}") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{path}: not the config of a decoder-only language model: {error}") from None
    sizes = {name: size for name, size in asdict(shape).items() if type(size) is int}
    if wrong := [f"{name} {shown(size)}" for name, size in sizes.items() if not 1 <= size <= _MOST]:
        what = f"sizes are from 1 to {_MOST:,}"
        raise UsageError(f"{path}: not the config of a language model: {', '.join(wrong)}; {what}")
    types = content.get("layer_types")
    if others := other_blocks(types):
        raise UsageError(f"{path}: has {', '.join(others)} blocks, which are not supported; choose another model")
    if isinstance(types, list) and len(types) != shape.num_hidden_layers:
        raise UsageError(
            f"{path}: num_hidden_layers is {shape.num_hidden_layers} and layer_types names {len(types)}; make them"
            " agree, or save the model again"
        )
    return shape


def _shape_of(content: Mapping[str, Any]) -> ModelShape:
    """What a config says, with what transformers takes where it does not say it."""
    heads, model_type = int(content["num_attention_heads"]), str(content["model_type"])
    head_dim = content.get("head_dim", _HEAD_DIMS.get(model_type))
    rope = content.get("rope_parameters") or content
    if not isinstance(rope, Mapping):
        raise TypeError(f"rope_parameters: {shown(rope)} holds no keys and values")
    return ModelShape(
        model_type=model_type,
        hidden_size=int(content["hidden_size"]),
        intermediate_size=int(content["intermediate_size"]),
        num_hidden_layers=int(content["num_hidden_layers"]),
        num_attention_heads=heads,
        num_key_value_heads=int(content.get("num_key_value_heads") or heads),
        vocab_size=int(content["vocab_size"]),
        tie_word_embeddings=bool(content.get("tie_word_embeddings", model_type in _TIED_TYPES)),
        rope_theta=float(rope.get("rope_theta", 10_000.0)),
        rms_norm_eps=float(content.get("rms_norm_eps", 1e-6)),
        max_position_embeddings=int(content.get("max_position_embeddings", 32_768)),
        head_dim=None if head_dim is None else int(head_dim),
    )


def other_blocks(layer_types: object) -> list[str]:
    """Kinds of blocks named in a config's `layer_types` that packed sequences cannot go through, each once."""
    names = dict.fromkeys(map(str, layer_types)) if isinstance(layer_types, list | tuple) else {}
    return [name for name in names if name not in _BLOCK_KINDS]


def job_shapes(workload: Workload) -> JobShapes:
    """Shapes of a job's models.

    Raises:
        UsageError: a model is not known.
    """
    actor, critic = model_shape(workload.model), model_shape(workload.critic_model or workload.model)
    return JobShapes(actor, critic, model_shape(workload.reward_model) if workload.reward_model else None)


def too_long(key: str, workload: Workload) -> Iterator[str]:
    """A line where sequences are longer than the model of a key, such as `critic_model`, takes; none without one."""
    model = getattr(workload, key)
    length = workload.batch.max_prompt_length + workload.batch.max_response_length
    if model is not None and length > (most := model_shape(model).max_position_embeddings):
        yield (
            f"batch: {length} tokens of prompt and response are more than the {most} that {model} takes; lower"
            " batch.max_prompt_length or batch.max_response_length"
        )
