"""Reasons why a workload cannot be, each one line with what to do: its models, its data, its reward."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from placebench.errors import MissingExtraError, UsageError
from placebench.spec.check import Check, Facts, collect
from placebench.spec.legible import shown
from placebench.spec.model_checks import MODEL_CHECKS, MODELS, unknown_model
from placebench.spec.nearest import did_you_mean
from placebench.spec.shapes import PRESETS
from placebench.spec.workload import Data, Workload

if TYPE_CHECKING:
    from placebench.tasks.data import Prompt

# What decides where prompts come from, what of them is needed, and how long they are.
_PROMPT_KEYS = frozenset(
    ("model", "reward_model", "seed", "batch.max_prompt_length", *(f"data.{key}" for key in Data.model_fields))
)


def unusable_workload(workload: Workload) -> tuple[str, ...]:
    """Models, data, reward and rollout that are not on this host or do not go together."""
    return collect((*WORKLOAD_CHECKS, *WORKLOAD_CHECKS_HERE), Facts(workload=workload)).lines


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
    for key in MODELS:
        if key not in facts.unknown:
            unknown_model(key, workload)
    if workload.rollout.backend == "vllm" and find_spec("vllm") is None:
        yield str(MissingExtraError("rollout.backend vllm", "vllm", "vllm"))


WORKLOAD_CHECKS = (
    *MODEL_CHECKS,
    Check(_unusable_prompts, _PROMPT_KEYS),
    Check(_unknown_reward, {"reward_model", "data.reward"}),
)
"""Of a `workload` that may run on other hosts."""
WORKLOAD_CHECKS_HERE = (
    Check(_broken_reward, {"reward_model", "data.reward"}),
    Check(_missing_vllm, {"model", "rollout.backend", "host"}),
)
"""Of a `workload` that is to run on this host, behind those above."""
