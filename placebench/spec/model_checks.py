"""Reasons why the models of a workload cannot be, each one line with what to do."""

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from placebench.errors import Reasons
from placebench.spec.check import Check, Facts
from placebench.spec.reading import parse_json, refuse_pipe
from placebench.spec.shapes import ModelShape, is_folder, model_shape, score_count, too_long
from placebench.spec.workload import Workload

MODELS = ("model", "critic_model", "reward_model")
"""The keys of a workload that name models."""
_INDEX = "model.safetensors.index.json"
_EMBEDDING = "embed_tokens.weight"
_LENGTHS = frozenset(("batch.max_prompt_length", "batch.max_response_length"))
# Files that hold a tokenizer's words, of every kind that transformers reads.
_WORDS = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken", "tekken.json")


# A model that is not known is refused by each check that asks for its shape, in the same words, which are said once.


def unknown_model(key: str, workload: Workload) -> None:
    """Refuse a model that is neither a preset, a folder with a config nor on the hub."""
    if (model := getattr(workload, key)) is not None:
        model_shape(model)


def _unusable_folder(key: str, workload: Workload, facts: Facts) -> Iterator[str]:
    """A model's folder without what the job needs of it; of two models that are one, the first is looked at."""
    model = getattr(workload, key)
    first = next(one for one in MODELS if one not in facts.unknown and getattr(workload, one) == model)
    if model is not None and key == first and is_folder(model):
        yield from _unusable_weights(model, "--model" if key == "model" else key, model_shape(model))
        # From a folder without the words of a tokenizer, transformers makes one that knows none.
        if key == "model" and not any(next(Path(model).glob(words), None) for words in _WORDS):
            yield f"--model {model}: no tokenizer there, such as tokenizer.json; save the model's tokenizer there"


def _unusable_weights(model: str, option: str, shape: ModelShape) -> Iterator[str]:
    """Files of a folder's weights that are not there or cannot be read, or that hold what the job would refuse.

    Their headers alone are read.
    """
    read = Reasons()
    files = sorted(Path(model).glob("*.safetensors"))
    for path in (*files, Path(model) / _INDEX):
        read.attempt(partial(refuse_pipe, path))
    if read.lines:
        yield from (f"{option} {line}" for line in read.lines)
        return
    if not files and not any(Path(model).glob("pytorch_model*.bin")):
        yield (
            f"{option} {model}: no weights there, such as model.safetensors; copy them there, or save the model again"
        )
    missing = sorted(_shards(Path(model)) - {file.name for file in files})
    if missing:
        yield (
            f"{option} {model}: {_INDEX} names {missing[0]}"
            f"{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}, not found there; copy what is missing, or"
            " save the model again"
        )
    if find_spec("safetensors"):
        for file in files:
            yield from (f"{option} {model}: {line}" for line in _wrong_tensors(file, option, shape))


def _shards(folder: Path) -> set[str]:
    """Files that the index of a model's weights names; none where there is no index that is used and can be read."""
    if (folder / "model.safetensors").exists():
        return set()
    try:
        content = parse_json((folder / _INDEX).read_text(encoding="utf-8"))
        return set(map(str, content["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()


def _wrong_tensors(file: Path, option: str, shape: ModelShape) -> Iterator[str]:
    """What the header of a file of weights says that the job would refuse."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as weights:
            names = weights.keys()
            embeddings = [weights.get_slice(name).get_shape() for name in names if name.endswith(_EMBEDDING)]
    except (OSError, SafetensorError) as error:
        yield f"cannot read {file.name}: {error}; save the model again"
        return
    if "lm_head.bias" in names and option != "reward_model":
        yield "its output head has a bias, which is not supported; choose another model"
    wanted = [shape.vocab_size, shape.hidden_size]
    if other := next((found for found in embeddings if found != wanted), None):
        yield (
            f"the embedding in {file.name} is {' x '.join(map(str, other))}, but config.json has vocab_size"
            f" {shape.vocab_size} and hidden_size {shape.hidden_size}; save the model again"
        )


def _unusable_critic(workload: Workload) -> Iterator[str]:
    """A critic that does not know all of the actor's tokens; more of them than it needs do no harm."""
    model, actor = workload.critic_model, workload.model
    if model is not None and (words := model_shape(model).vocab_size) < (needed := model_shape(actor).vocab_size):
        yield (
            f"critic_model {model}: its vocabulary has {words} words, fewer than the {needed} of {actor}; name one of"
            " the actor's family"
        )


def _unusable_reward_model(workload: Workload) -> Iterator[str]:
    """A reward model that is a language model without a score, or that cannot read the actor's tokens."""
    model, actor = workload.reward_model, workload.model
    if model is None:
        return
    words, needed, scores = model_shape(model).vocab_size, model_shape(actor).vocab_size, score_count(model)
    if scores not in (1, None):
        yield f"reward_model {model}: gives {scores} scores; name a sequence classifier with a single one"
    if words != needed:
        yield (
            f"reward_model {model}: its vocabulary has {words} words and that of {actor} {needed}; name one of the"
            " actor's family"
        )


MODEL_CHECKS = (
    *(
        check
        for key in MODELS
        for check in (
            Check(partial(unknown_model, key), {key}),
            Check(partial(too_long, key), {key, *_LENGTHS}),
            Check(partial(_unusable_folder, key), {key}),
        )
    ),
    Check(_unusable_critic, {"model"}),
    Check(_unusable_reward_model, {"model"}),
)
"""Of the models of a `workload`."""
