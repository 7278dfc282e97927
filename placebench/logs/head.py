"""What stands before the steps of a log: model, batch, lengths, devices, software.

verl prints its whole configuration as a Python dict before the first step, and vLLM one line with model, type and
version. What a log does not say is not known.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from placebench.errors import UsageError
from placebench.logs.console import ANSI, RAY_PREFIX, clean
from placebench.logs.source import whole_lines

Facts = dict[str, str | float]

DEVICES = "devices"
# Those of them that the trainer has no part in.
ROLLOUT_DEVICES = "rollout devices"

# Blocks of 1 MiB in which configurations are looked for: they stand before the first steps.
HEAD_BLOCKS = 4
# A longer dict is no configuration, and larger numbers count no nodes and no devices.
MAX_CONFIG_CHARS = 1 << 18
MAX_DEVICES = 1 << 20
# What another process wrote behind the line.
GLUED = re.compile(r"\s*\([\w.:-]*\s?pid=[0-9]+(?:, ip=[0-9a-fA-F.:]+)?\).*$")
CONFIG_BEGINS = "{'actor_rollout_ref'"
CONFIG_FACTS: Mapping[str, tuple[str, ...]] = {
    "model": ("actor_rollout_ref", "model", "path"),
    "algorithm": ("algorithm", "adv_estimator"),
    "batch size": ("data", "train_batch_size"),
    "mini-batch size": ("actor_rollout_ref", "actor", "ppo_mini_batch_size"),
    "epochs": ("actor_rollout_ref", "actor", "ppo_epochs"),
    "responses a prompt": ("actor_rollout_ref", "rollout", "n"),
    "longest prompt": ("data", "max_prompt_length"),
    "longest response": ("data", "max_response_length"),
    "precision": ("actor_rollout_ref", "rollout", "dtype"),
    "rollout": ("actor_rollout_ref", "rollout", "name"),
    "rollout tensor parallel": ("actor_rollout_ref", "rollout", "tensor_model_parallel_size"),
    "training backend": ("actor_rollout_ref", "actor", "strategy"),
}
# Modes of verl's trainer that leave the nodes of the rollout's configuration unused.
SHARED_MODES = ("sync", "colocate_async")
KINDS = {"cpu": "CPU", "cuda": "GPU"}
ENGINE = re.compile(
    r"LLM engine \((?:v|version )(?P<vllm>[\w.+-]+)\) with config: (?:.*?\b)?model='?(?P<model>[^',]+)'?"
    r"(?:.*?dtype=torch\.(?P<precision>\w+))?"
)


def head_facts(path: Path) -> Facts:
    """What stands before the steps of one log; nothing for a pipe, which cannot be read twice."""
    if not path.is_file():
        return {}
    facts: Facts = {}
    lines = _head_lines(path)
    for process, text in lines:
        if text.startswith(CONFIG_BEGINS):
            facts |= _config_facts(_printed_dict(process, text, lines))
        elif found := ENGINE.search(text):
            said = {"vllm version": found["vllm"], "model": found["model"], "precision": found["precision"]}
            facts = {key: value for key, value in said.items() if value} | facts
    return facts


def _head_lines(path: Path) -> Iterator[tuple[bytes, str]]:
    """The first lines of a console log: who printed each, as Ray says, and what."""
    with suppress(UsageError):
        for block in islice(whole_lines(path), HEAD_BLOCKS):
            for raw in block.split(b"\n"):
                line = ANSI.sub(b"", raw)
                prefix = RAY_PREFIX.match(line)
                yield prefix[0].strip() if prefix else b"", clean(line)


def _printed_dict(process: bytes, text: str, more: Iterator[tuple[bytes, str]]) -> dict[str, Any]:
    """A dict that one process prints over several lines; empty where it does not end."""
    while text.count("{") > text.count("}") and len(text) < MAX_CONFIG_CHARS:
        other, line = next(more, (process, None))
        if line is None:
            return {}
        if other == process:
            text += "\n" + GLUED.sub("", line)
    try:
        content = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        # Another process wrote into it.
        return {}
    return content if isinstance(content, dict) else {}


def _config_facts(config: Mapping[str, Any]) -> Facts:
    facts: Facts = {}
    for fact, keys in CONFIG_FACTS.items():
        value = _at(config, keys)
        if isinstance(value, str | int | float) and value != "":
            facts[fact] = str(value)
    if trainer := _pool(config, ("trainer",)):
        rollout = _rollout_pool(config)
        facts[DEVICES] = str(trainer + rollout)
        if rollout:
            facts[ROLLOUT_DEVICES] = str(rollout)
    if isinstance(kind := _at(config, ("trainer", "device")), str):
        facts["kind of device"] = KINDS.get(kind, kind)
    return facts


def _pool(config: Mapping[str, Any], keys: tuple[str, ...]) -> int:
    """The devices of a part of the configuration; 0 where it has none of its own."""
    nodes, each = (_at(config, (*keys, key)) for key in ("nnodes", "n_gpus_per_node"))
    are_counts = all(isinstance(count, int) and 0 < count < MAX_DEVICES for count in (nodes, each))
    return nodes * each if are_counts else 0


def _rollout_pool(config: Mapping[str, Any]) -> int:
    """The devices that an asynchronous run gives its rollout; 0 where the rollout is on the trainer's."""
    if own := _pool(config, ("rollout",)):
        return own
    is_shared = _at(config, ("trainer", "v1", "trainer_mode")) in SHARED_MODES
    return 0 if is_shared else _pool(config, ("actor_rollout_ref", "rollout"))


def _at(content: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content
