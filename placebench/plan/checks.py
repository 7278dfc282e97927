"""Reasons why a run cannot be, each one line with what to do: packages, folders, workload."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Set
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from placebench.errors import MissingExtraError, Reasons, UsageError
from placebench.spec.launchers import TORCHRUN
from placebench.spec.reading import parse_json, refuse_pipe
from placebench.spec.shapes import PRESETS, ModelShape, is_folder, model_shape, score_count
from placebench.spec.text import format_bytes
from placebench.spec.workload import Data, Workload

JOB_PACKAGES = ("torch", "ray", "transformers")
# What a small run writes and a Ray session needs; a full disk in the middle costs more than this asks for.
LEAST_FREE_BYTES = 200 << 20
_INDEX = "model.safetensors.index.json"
_EMBEDDING = "embed_tokens.weight"
_LENGTH_KEYS = ("batch.max_prompt_length", "batch.max_response_length")
# What decides where prompts come from, what of them is needed, and how long they are.
_PROMPT_KEYS = frozenset(
    ("model", "reward_model", "seed", "batch.max_prompt_length", *(f"data.{key}" for key in Data.model_fields))
)
# Files that hold a tokenizer's words, of every kind that transformers reads.
_WORDS = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken", "tekken.json")
_IMPORT_TIMEOUT_S = 60
_IMPORTED = "the reward is imported"
_IMPORT_REWARD = """
import sys
from placebench.errors import UsageError
from placebench.tasks.rewards import load_reward
try:
    load_reward(sys.argv[1])
    print(sys.argv[2])
except UsageError as error:
    sys.exit(str(error))
"""


def missing_packages(launcher: str) -> Iterator[str]:
    """The extra that the training job needs, when a package of it is not installed; without Ray, its is not needed."""
    missing = [name for name in JOB_PACKAGES if find_spec(name) is None and (name, launcher) != ("ray", TORCHRUN)]
    if missing:
        yield str(MissingExtraError("placebench run", "run", ", ".join(missing)))


def wrong_name(name: str) -> Iterator[str]:
    """A name that cannot be part of a folder's name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9+=._@-]{0,99}", name):
        yield f"--name {name!r}: use up to 100 letters, digits and + = . _ @ -, beginning with a letter or digit"


def unusable_folder(folder: Path) -> Iterator[str]:
    """A run folder that exists, cannot be made, or lies on a full disk; likewise the temporary folder."""
    above = (folder.parent, *folder.parent.absolute().parents)
    try:
        if folder.exists():
            yield f"{folder} is there already: choose another --name or --out"
        parent = next(path for path in above if path.exists())
    except OSError as error:  # a name that is too long, a folder that may not be looked into
        yield f"--out {folder.parent}: {folder}: {error.strerror}; name another folder"
        return
    if link := next((path for path in above if path.is_symlink() and not path.exists()), None):
        yield f"--out {folder.parent}: {link} is a link to nothing; name a folder"
    elif not parent.is_dir():
        yield f"--out {folder.parent}: {parent} is a file; name a folder"
    elif not os.access(parent, os.W_OK | os.X_OK):
        yield f"--out {folder.parent}: no permission to write in {parent}; name another folder"
    else:
        yield from full_disks(parent)


def no_checkpoints(every: int, steps: int) -> Iterator[str]:
    """Checkpoints that lie further apart than a launch is long."""
    if every > steps:
        yield (
            f"--checkpoint-every {every}: a launch ends with step {steps} and would save nothing; give {steps} at the"
            " most, or leave it out"
        )


def no_room_for_checkpoints(folder: Path, each: int, launches: int, at_once: int) -> Iterator[str]:
    """A disk that cannot hold the checkpoints of a run.

    Args:
        folder: of the run, which need not be there yet.
        each: bytes of a checkpoint.
        launches: that leave one.
        at_once: checkpoints of a launch while it saves: a new one is whole before the older one goes.
    """
    parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    need, free = each * (launches - 1 + at_once), shutil.disk_usage(parent).free
    if need > free:
        yield (
            f"--checkpoint-every: checkpoints of {launches} launch{'es' * (launches > 1)}, {format_bytes(each)} each,"
            f" need {format_bytes(need)} in {parent}, where {format_bytes(free)} are free: free some, choose another"
            " --out, or take fewer rounds or placements"
        )


def full_disks(folder: Path) -> Iterator[str]:
    """Too little space left for the run's files, or for Ray's."""
    for path, option in ((folder, "choose another --out"), (Path(tempfile.gettempdir()), "set TMPDIR")):
        free = shutil.disk_usage(path).free
        if free < LEAST_FREE_BYTES:
            yield (
                f"no space left in {path}: {free >> 20} MiB are free, {LEAST_FREE_BYTES >> 20} MiB are needed;"
                f" free some or {option}"
            )


def unusable_workload(
    workload: Workload,
    *,
    elsewhere: bool = False,
    tries_reward: bool = True,
    unread: Set[str] = frozenset(),
) -> Iterator[str]:
    """Models, data, reward and rollout that are not there or do not go together.

    Args:
        workload: to be checked.
        elsewhere: whether it is planned for other hosts, so that nothing need be installed here.
        tries_reward: whether the reward must work on this host: its module imported, its sandbox there.
        unread: keys whose values are not known.
    """
    has_models = True
    length = workload.batch.max_prompt_length + workload.batch.max_response_length
    for model, option in _options(workload, unread).items():
        try:
            shape = model_shape(model)
        except UsageError as error:
            has_models = False
            yield str(error)
            continue
        if unread.isdisjoint(_LENGTH_KEYS) and length > shape.max_position_embeddings:
            yield (
                f"batch: {length} tokens of prompt and response are more than the {shape.max_position_embeddings}"
                f" that {model} takes; lower batch.max_prompt_length or batch.max_response_length"
            )
        if is_folder(model):
            yield from _unusable_weights(model, option, shape)
            if model == workload.model:
                yield from _no_tokenizer(model)
    if workload.critic_model is not None and "model" not in unread:
        yield from _unusable_critic(workload.critic_model, workload.model)
    if unread.isdisjoint(_PROMPT_KEYS):
        yield from _unusable_prompts(workload)
    if workload.reward_model is not None and "model" not in unread:
        yield from _unusable_reward_model(workload.reward_model, workload.model)
    elif workload.reward_model is None and unread.isdisjoint(("reward_model", "data.reward")):
        yield from _unusable_reward(workload.data.reward, tries=tries_reward)
    # vLLM is what models of real size begin with: of one that is not there, it may not be what is wanted.
    has_models = has_models and unread.isdisjoint(("model", "rollout.backend"))
    if has_models and workload.rollout.backend == "vllm" and not elsewhere and find_spec("vllm") is None:
        yield str(MissingExtraError("rollout.backend vllm", "vllm", "vllm"))


def _unusable_prompts(workload: Workload) -> Iterator[str]:
    """Prompts that cannot be read; for presets, whose tokens are characters, also ones that are too long."""
    from placebench.tasks.data import FilePrompts, Prompt, open_prompts
    from placebench.tasks.rewards import REWARDS
    from placebench.tasks.tokenizer import CharacterTokenizer

    data, longest = workload.data, workload.batch.max_prompt_length
    compares = workload.reward_model is None and data.reward in REWARDS
    try:
        source = open_prompts(data, workload.seed, longest, data.reward if compares else None)
        if workload.model not in PRESETS:
            return
        largest = data.operand_max
        prompts = (
            source.prompts if isinstance(source, FilePrompts) else (Prompt(f"{largest}+{largest}=", str(2 * largest)),)
        )
        lengths = {prompt.text: len(CharacterTokenizer().encode(prompt.text)) for prompt in prompts}
    except UsageError as error:
        yield str(error)
        return
    text, length = max(lengths.items(), key=lambda item: item[1])
    if length > longest:
        yield (
            f"data.source {data.source}: the prompt {text[:40]!r} has {length} tokens and batch.max_prompt_length is"
            f" {longest}; raise it"
        )


def _options(workload: Workload, unread: Set[str]) -> dict[str, str]:
    """Each model and what the user calls it; the first where two are one."""
    models = {
        "--model": workload.model,
        "critic_model": workload.critic_model,
        "reward_model": workload.reward_model,
    }
    options: dict[str, str] = {}
    for option, model in models.items():
        if model is not None and option.removeprefix("--") not in unread:
            options.setdefault(model, option)
    return options


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


def _no_tokenizer(model: str) -> Iterator[str]:
    """A folder without the words of a tokenizer, from which transformers makes one that knows none."""
    if not any(next(Path(model).glob(words), None) for words in _WORDS):
        yield f"--model {model}: no tokenizer there, such as tokenizer.json; save the model's tokenizer there"


def _unusable_critic(model: str, actor: str) -> Iterator[str]:
    """A critic that does not know all of the actor's tokens; more of them than it needs do no harm."""
    try:
        shape, actors = model_shape(model), model_shape(actor)
    except UsageError:
        return  # told for each model
    if shape.vocab_size < actors.vocab_size:
        yield (
            f"critic_model {model}: its vocabulary has {shape.vocab_size} words, fewer than the {actors.vocab_size} of"
            f" {actor}; name one of the actor's family"
        )


def _unusable_reward_model(model: str, actor: str) -> Iterator[str]:
    """A reward model that is a language model without a score, or that cannot read the actor's tokens."""
    try:
        shape, actors, scores = model_shape(model), model_shape(actor), score_count(model)
    except UsageError:
        return  # told for each model
    if scores not in (1, None):
        yield f"reward_model {model}: gives {scores} scores; name a sequence classifier with a single one"
    if shape.vocab_size != actors.vocab_size:
        yield (
            f"reward_model {model}: its vocabulary has {shape.vocab_size} words and that of {actor}"
            f" {actors.vocab_size}; name one of the actor's family"
        )


def _unusable_reward(name: str, *, tries: bool) -> Iterator[str]:
    """A reward that is neither built in nor a `module:function`, or, where it is tried, one that does not work here."""
    from placebench.tasks.rewards import REWARDS
    from placebench.tasks.sandbox import why_unavailable

    if name in REWARDS:
        if tries and name == "code_tests" and (reason := why_unavailable()):
            yield f"data.reward {name}: {reason}; take another reward or host"
        return
    module, colon, function = name.partition(":")
    if not (colon and function.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        yield f"data.reward {name!r}: use {', '.join(REWARDS)}, or module:function"
        return
    if not tries:
        return
    # In a process of its own: what the user's module starts or loads must not stay here while launches are timed.
    command = [sys.executable, "-c", _IMPORT_REWARD, name, _IMPORTED]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_IMPORT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        yield f"data.reward {name!r}: importing {module} takes more than {_IMPORT_TIMEOUT_S} s; make that quicker"
        return
    # A module may end the process with 0 too.
    if done.returncode or _IMPORTED not in done.stdout:
        told = (line for line in done.stderr.splitlines() if line.startswith("data.reward "))
        yield next(told, None) or (
            f"data.reward {name!r}: importing {module} ends the process ({done.returncode}); take out of {module} what"
            " ends it, or name another function"
        )
