"""What is given of a workload, laid over the preset of its model: a workload, or every reason why it is none.

A YAML file goes over the preset, options and `--set key=value` over the file.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import gcd
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from placebench.errors import Reasons
from placebench.spec.check import Check, Facts, collect
from placebench.spec.legible import shown
from placebench.spec.nearest import did_you_mean, nearest
from placebench.spec.nested import merge
from placebench.spec.shapes import PRESETS
from placebench.spec.value_errors import what_must_be, with_place
from placebench.spec.workload import EACH_ALONE, SECTIONS, SMALL_MODEL, Batch, Workload, keys_below, workload_keys

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_Location = tuple[int | str, ...]
# Each is looked up among all keys; who has so many wrong has named the wrong file.
_MOST_TOLD = 50
# Parts of a dotted key that are told.
_DEEPEST = 4

RUN_KEYS: Mapping[str, str] = {
    "placements": "words of placebench placements, or files",
    "rounds": "launches of each placement, or auto: until the intervals are narrow enough",
    "devices": "cpu:N or gpu:N of this host; gpu:NxM@GGiB describes nodes, for a plan",
    "name": "of the run; by default from the placements",
    "out": "folder of the runs",
    "launcher": "what starts the workers: ray, or torchrun for placements of ddp",
}
"""Keys of the file that are of the run, and no workload's, each in a line."""
JOB_RUN_KEYS = ("rounds", "devices", "name", "out")
"""Those of them that may stand in a job file, whose other keys are the job's."""

# What a model of real size starts from: verl's learning rates, one epoch, 512 + 512 tokens, bf16, vLLM.
REAL_MODEL: Mapping[str, Any] = {
    "precision": "bfloat16",
    "sharding": "shard",
    "torch_compile": True,
    "rollout": {"backend": "vllm"},
    "batch": {
        "size": 256,
        "mini_batch_size": 128,
        "micro_batch_tokens": 16_384,
        "max_prompt_length": 512,
        "max_response_length": 512,
    },
    "algorithm": {"epochs": 1, "entropy_coeff": 0.0},
    "optimizer": {"actor_lr": 1e-6, "critic_lr": 1e-5},
}
# The KL to the reference is a loss, and advantages are used as they are (Shao et al. 2024, arXiv:2402.03300).
GRPO: Mapping[str, Any] = {
    "batch": {"group_size": 8},
    "algorithm": {"kl_in_reward": False, "kl_loss": True, "kl_estimator": "k3", "whiten_advantages": False},
}
# Programming problems, judged by running what was written; the lengths suit a model whose tokens are characters.
CODE: Mapping[str, Any] = {
    "data": {"reward": "code_tests"},
    "batch": {"max_prompt_length": 128, "max_response_length": 64},
}
# With random weights nothing is learned, and lengths would be noise: prompts and responses are as long as can be.
RANDOM_WEIGHTS: Mapping[str, Any] = {"data": {"fill_prompts": True}, "rollout": {"ignore_eos": True}}


def build_workload(content: Mapping[str, Any], origin: str | Callable[[str], str] = "workload") -> Workload:
    """Lay a nested mapping on the preset of its model and validate the result.

    Args:
        content: sections and values as in the YAML file.
        origin: what to call the source in an error message, or what says it for a dotted key.

    Raises:
        UsageError: one line for every reason, with the wrong key, what is wrong and the value found.
    """
    facts = Facts(content=content, origin=origin)
    collect([Check(read_workload)], facts).raise_any()
    workload: Workload = facts["workload"]
    return workload


def read_workload(content: Mapping[str, Any], origin: str | Callable[[str], str], facts: Facts) -> tuple[str, ...]:
    """Find the workload as far as it can be read, with defaults in place of all else; its values need not go together.

    Args:
        content: sections and values as in the YAML file.
        origin: what to call the source in an error message, or what says it for a dotted key.
        facts: which keys are set to what nobody could read; the workload is added, with which others are not known and
            which values do not go together.

    Returns:
        One line for every wrong value, and for all that do not go together.
    """
    reasons, unknown, given = Reasons(), facts.unknown, content
    source = (lambda _: origin) if isinstance(origin, str) else origin
    content = _over_presets(content)
    try:
        workload = Workload.model_validate(content, context=EACH_ALONE)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        reasons.add(_wrong_keys(errors, source))
        for one in errors[:_MOST_TOLD]:
            unknown |= _left_unknown(one, given)
        workload = Workload.model_validate(_without(content, [one["loc"] for one in errors]), context=EACH_ALONE)
    if "model" in unknown:  # whose presets would say the rest
        unknown |= {key for key in workload_keys() if not gives(given, key)}
    parts = {name: getattr(workload, name) for name in SECTIONS} | {"workload": workload}
    conflicts = [(place, conflict) for place, part in parts.items() for conflict in part.conflicts()]
    reasons.add(
        f"{source(place)}: {place}: {conflict.reason}"
        for place, conflict in conflicts
        if unknown.isdisjoint(conflict.keys)
    )
    facts.conflicting |= {key for _, conflict in conflicts for key in conflict.keys}
    facts.add(workload=workload)
    return reasons.lines


def _wrong_keys(errors: Sequence["ErrorDetails"], source: Callable[[str], str]) -> Iterator[str]:
    """What is wrong with keys and values, a line each, as far as it is told."""
    for one in errors[:_MOST_TOLD]:
        location = one["loc"]
        # A value of a list is set by the list's key.
        key = _dotted(location[:-1] if len(location) > 2 and isinstance(location[-1], int) else location)
        yield with_place(source(key), key, _in_words(one))
    if len(errors) > _MOST_TOLD:
        yield f"{source('')}: {len(errors) - _MOST_TOLD:,} more keys are not known, or have wrong values"


def _left_unknown(error: "ErrorDetails", given: Mapping[str, Any]) -> set[str]:
    """Keys whose values nobody knows for an error: those at or below a wrong value, and one that was misspelled."""
    if error["type"] != "extra_forbidden":
        return keys_below(_dotted(error["loc"][:2]))
    return {key for key in (_near(_leaf(error)),) if key and not gives(given, key)}


def wrong_values(content: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with values of keys that this version knows; what others knew, or also refuse together, may be."""
    try:
        Workload.model_validate(_over_presets(content), context=EACH_ALONE)
    except ValidationError as error:
        yield from (_in_words(one) for one in error.errors() if one["type"] != "extra_forbidden")


def _over_presets(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The content over what its model, algorithm and prompts start from."""
    model = content.get("model", SMALL_MODEL)
    if (following := mini_batch_that_follows(content)) is not None:
        content = merge(content, {"batch": {"mini_batch_size": following}})
    if model != SMALL_MODEL:
        is_preset = isinstance(model, str) and model in PRESETS
        content = merge(merge(REAL_MODEL, RANDOM_WEIGHTS if is_preset else {}), content)
    if not asks_for_critic(content):
        content = merge(GRPO, content)
    data = content.get("data")
    if isinstance(data, Mapping) and data.get("source") == "code":
        content = merge(CODE, content)
    return content


def usual_mini_batch(content: Mapping[str, Any]) -> int:
    """The mini-batch that a content's model starts from."""
    is_small = content.get("model", SMALL_MODEL) == SMALL_MODEL
    return int(Batch().mini_batch_size if is_small else REAL_MODEL["batch"]["mini_batch_size"])


def mini_batch_that_follows(content: Mapping[str, Any]) -> int | None:
    """The mini-batch of a content that gives the batch alone, where the usual one does not divide it.

    A smaller batch is one mini-batch. Of a larger one it is what divides both, so that devices which share both sizes
    share it too. None where that would be less than half of the usual one, which changes what is trained; the batch is
    refused then.
    """
    batch, usual = content.get("batch"), usual_mini_batch(content)
    size = batch.get("size") if isinstance(batch, Mapping) and "mini_batch_size" not in batch else None
    if type(size) is not int or size < 1 or size % usual == 0:
        return None
    shared = size if size < usual else gcd(size, usual)
    return shared if size < usual or 2 * shared >= usual else None


def _in_words(error: "ErrorDetails") -> str:
    """What is wrong with one value, in words."""
    key = _dotted(error["loc"])
    if error["type"] == "extra_forbidden":
        return f"unknown key {shown(key)}{_suggestion(_leaf(error))}"
    choices = re.findall("'([^']+)'", error["msg"]) if error["type"] == "literal_error" else ()
    return f"{key}: {what_must_be(error)}{did_you_mean(error['input'], choices)}"


def _leaf(error: "ErrorDetails") -> _Location:
    """Where a wrong value stands; of a section that there is not, its first key."""
    location, value = error["loc"], error["input"]
    while isinstance(value, Mapping) and value and len(location) < _DEEPEST:
        key, value = next(iter(value.items()))
        location = (*location, str(key))
    return location


def _dotted(location: _Location) -> str:
    return ".".join(map(str, location))


def gives(content: Mapping[str, Any], key: str) -> bool:
    """Whether a content sets a dotted key."""
    section, _, name = key.rpartition(".")
    below = content.get(section, {}) if section else content
    return isinstance(below, Mapping) and name in below


def _without(content: Mapping[str, Any], locations: Iterable[_Location]) -> dict[str, Any]:
    """A content without its wrong values; locations below a value leave all of it out.

    Keys that are no text are left out too: a location has their text alone.
    """
    left: dict[str, Any] = {
        name: {key: below for key, below in value.items() if isinstance(key, str)}
        if isinstance(value, Mapping)
        else value
        for name, value in content.items()
        if isinstance(name, str)
    }
    for name, *below in locations:
        if below and isinstance(section := left.get(str(name)), dict):
            section.pop(below[0], None)
        else:
            left.pop(str(name), None)
    return left


def asks_for_critic(content: Mapping[str, Any]) -> bool:
    """Whether a workload's content, right or wrong, is of an algorithm that trains a critic."""
    algorithm = content.get("algorithm")
    return not (isinstance(algorithm, Mapping) and algorithm.get("name") == "grpo")


def _suggestion(location: _Location) -> str:
    best = _near(location)
    if best is None:
        return "; --dry-run --verbose prints every key"
    if best in RUN_KEYS:
        return f"; did you mean {shown(best)} of the file, or --{best}?"
    if "." in best and "." in str(location[-1]):
        section, _, key = best.partition(".")
        return f"; write it as a section, {section}: {{{key}: ...}}"
    return f"; did you mean {shown(best)}?"


def _near(location: _Location) -> str | None:
    """The key that an unknown one may have been meant to be."""
    # A dotted key of the file says all of where it belongs, in a section too.
    wanted = str(location[-1]) if "." in str(location[-1]) else _dotted(location)
    return nearest(wanted, (*workload_keys(), *RUN_KEYS))
