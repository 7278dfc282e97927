"""Reasons why a workload cannot be, each one line with what to do: its models, its data, its reward."""

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from placebench.errors import MissingExtraError, Reasons, UsageError
from placebench.spec.check import Check, Facts, collect
from placebench.spec.legible import shown
from placebench.spec.nearest import did_you_mean
from placebench.spec.reading import parse_json, refuse_pipe
from placebench.spec.shapes import PRESETS, ModelShape, is_folder, model_shape, score_count, too_long
from placebench.spec.workload import Data, Workload

if TYPE_CHECKING:
    from placebench.tasks.data import Prompt

_INDEX = "model.safetensors.index.json"
_EMBEDDING = "embed_tokens.weight"
_MODELS = ("model", "critic_model", "reward_model")
_LENGTHS = frozenset(("batch.max_prompt_length", "batch.max_response_length"))
# What decides where prompts come from, what of them is needed, and how long they are.
_PROMPT_KEYS = frozenset(
    ("model", "reward_model", "seed", "batch.max_prompt_length", *(f"data.{key}" for key in Data.model_fields))
)
# Files that hold a tokenizer's words, of every kind that transformers reads.
_WORDS = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken", "tekken.json")


def unusable_workload(workload: Workload) -> tuple[str, ...]:
    """Models, data, reward and rollout that are not on this host or do not go together."""
    return collect((*WORKLOAD_CHECKS, *WORKLOAD_CHECKS_HERE), Facts(workload=workload)).lines


# A model that is not known is refused by each check that asks for its shape, in the same words, which are said once.


def _unknown_model(key: str, workload: Workload) -> None:
    if (model := getattr(workload, key)) is not None:
        model_shape(model)


def _unusable_folder(key: str, workload: Workload, facts: Facts) -> Iterator[str]:
    """A model's folder without what the job needs of it; of two models that are one, the first is looked at."""
    model = getattr(workload, key)
    first = next(one for one in _MODELS if one not in facts.unknown and getattr(workload, one) == model)
    if model is not None and key == first and is_folder(model):
        yield from _unusable_weights(model, "--model" if key == "model" else key, model_shape(model))
        # From a folder without the words of a tokenizer, transformers makes one that knows none.
        if key == "model" and not any(next(Path(model).glob(words), None) for words in _WORDS):
            yield f"--model {model}: no tokenizer there, such as tokenizer.json; save the model's tokenizer there"


def _unusable_prompts(workload: Workload, facts: Facts) -> Iterator[str]:
    """Prompts that cannot be read; for presets, whose tokens are characters, also ones that are too long.

    Finds the first `prompt`.
    """
    from placebench.tasks.data import open_prompts
    from placebench.tasks.prompt_lengths import too_long
    from placebench.tasks.rewards import REWARDS
    from placebench.tasks.tokenizer import CharacterTokenizer

    data, longest = workload.data, workload.batch.max_prompt_length
    compares = workload.reward_model is None and data.reward in REWARDS
    try:
        source = open_prompts(data, workload.seed, longest, data.reward if compares else None)
        facts.add(prompt=source.step_prompts(1, 1)[0])
        if workload.model in PRESETS:
            yield from too_long(source, CharacterTokenizer(), data, longest)
    except UsageError as error:
        yield from error.args


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
            f"{option} {model}: {missing[0]} is missing"
            f"{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}, which {_INDEX} names; copy it there, or"
            " save the model again"
        )
    if find_spec("safetensors") is None:
        return
    from safetensors import SafetensorError, safe_open

    for file in files:
        try:
            with safe_open(file, framework="numpy") as weights:
                names = weights.keys()
                embeddings = [weights.get_slice(name).get_shape() for name in names if name.endswith(_EMBEDDING)]
        except (OSError, SafetensorError) as error:
            yield f"{option} {model}: cannot read {file.name}: {error}; save the model again"
            continue
        if "lm_head.bias" in names and option != "reward_model":
            yield f"{option} {model}: its output head has a bias, which is not supported; choose another model"
        wanted = [shape.vocab_size, shape.hidden_size]
        if other := next((found for found in embeddings if found != wanted), None):
            yield (
                f"{option} {model}: the embedding in {file.name} is {' x '.join(map(str, other))}, and config.json has"
                f" vocab_size {shape.vocab_size} and hidden_size {shape.hidden_size}; save the model again"
            )


def _shards(folder: Path) -> set[str]:
    """Files that the index of a model's weights names; none where there is no index that is used and can be read."""
    if (folder / "model.safetensors").exists():
        return set()
    try:
        content = parse_json((folder / _INDEX).read_text(encoding="utf-8"))
        return set(map(str, content["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()


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


def _unknown_reward(workload: Workload) -> Iterator[str]:
    """A reward that is neither built in nor a `module:function` that workers can import."""
    from placebench.tasks.rewards import REWARDS

    name = workload.data.reward
    if workload.reward_model is not None or name in REWARDS or _is_function(name):
        return
    module, _, function = name.rpartition(":")
    file, function = Path(module or name), function if module and function.isidentifier() else "score"
    if module == "__main__":
        way_out = "__main__ is another program in every worker; put the function into a file, such as rewards.py, and"
        yield f"data.reward {shown(name)}: {way_out} write rewards:{function}"
    elif file.suffix == ".ipynb":
        way_out = "workers cannot import a notebook; put the function into a file, such as rewards.py, and"
        yield f"data.reward {shown(name)}: {way_out} write rewards:{function}"
    elif file.suffix == ".py":
        start = "" if file.parent == Path() else f", and start placebench in {file.parent} or install it"
        yield f"data.reward {shown(name)}: write the module's name, {file.stem}:{function}{start}"
    else:
        near = did_you_mean(name, REWARDS)
        yield f"data.reward {shown(name)}: use {', '.join(REWARDS)}, or module:function{near}"


def _is_function(name: str) -> bool:
    """Whether a reward is written as a `module:function`."""
    module, _, function = name.partition(":")
    is_module = all(part.isidentifier() for part in module.split(".")) and module != "__main__"
    return function.isidentifier() and is_module and not module.endswith((".py", ".ipynb"))


def _broken_reward(workload: Workload, facts: Facts, prompt: "Prompt | None" = None) -> Iterator[str]:
    """A reward that does not work on this host: no sandbox for it, or a function that gives no score.

    It is called once, with a `prompt` of the workload where there is one. Where its module can be imported from the
    current folder alone, that is noted.
    """
    from placebench.tasks.reward_trial import try_reward
    from placebench.tasks.rewards import REWARDS
    from placebench.tasks.sandbox import why_unavailable

    name = workload.data.reward
    if workload.reward_model is not None:
        return
    if name == "code_tests" and (reason := why_unavailable()):
        yield f"data.reward {name}: {reason}; take another reward or host"
    if name in REWARDS or not _is_function(name):
        return
    trial = try_reward(name, (prompt.text, prompt.answer, prompt.answer) if prompt else ("1+1=", "2", "2"))
    facts.add(reward_only_from=trial.only_from)
    if trial.error:
        yield trial.error


def _missing_vllm(workload: Workload, facts: Facts) -> Iterator[str]:
    """vLLM, where responses are to be generated with it.

    It is what models of real size begin with: of one that is not there, it may not be what is wanted.
    """
    for key in _MODELS:
        if key not in facts.unknown:
            _unknown_model(key, workload)
    if workload.rollout.backend == "vllm" and find_spec("vllm") is None:
        yield str(MissingExtraError("rollout.backend vllm", "vllm", "vllm"))


WORKLOAD_CHECKS = (
    *(
        check
        for key in _MODELS
        for check in (
            Check(partial(_unknown_model, key), {key}),
            Check(partial(too_long, key), {key, *_LENGTHS}),
            Check(partial(_unusable_folder, key), {key}),
        )
    ),
    Check(_unusable_critic, {"model"}),
    Check(_unusable_prompts, _PROMPT_KEYS),
    Check(_unusable_reward_model, {"model"}),
    Check(_unknown_reward, {"reward_model", "data.reward"}),
)
"""Of a `workload` that may run on other hosts."""
WORKLOAD_CHECKS_HERE = (
    Check(_broken_reward, {"reward_model", "data.reward"}),
    Check(_missing_vllm, {"model", "rollout.backend", "host"}),
)
"""Of a `workload` that is to run on this host, behind those above."""
