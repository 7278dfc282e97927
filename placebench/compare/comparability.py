"""What else differs between sides, and what makes a comparison of them mean nothing."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from placebench.compare.side import Side
from placebench.spec.text import listing, number

# Facts without which nothing else can be put down to the sides: a comparison over them is refused.
DECISIVE = ("model", "algorithm", "kind of device")
# Two algorithms of one family are one here: placebench says `ppo`, verl names the advantage estimator.
ALGORITHMS = {"gae": "ppo"}
# Endings that say how a model was trained and leave its shape as it is.
SAME_SHAPE = ("-instruct", "-chat", "-base", "-it")
# A folder of a local copy of the Hugging Face hub: `models--Qwen--Qwen2.5-0.5B/snapshots/<commit>`.
HUB_COPY = re.compile(r"(?:^|/)models--(?:[^/]+--)?([^/]+?)/snapshots/[^/]+$")
# Last folders that say nothing of the model, as in `llama-70b/actor/hf`: the one above tells.
ANY_MODEL = re.compile(
    r"hf|huggingface|final|last|latest|best|models?|actor|policy|weights|(?:global_?step|checkpoints?|ckpts?|iter)[-_]?\d*"
)
# Relative difference of a measured number, such as tokens a step, that is worth a word.
DIFFERENCE = 0.01
# From this difference of the tokens a step on, the step time says nothing of speed.
OTHER_WORK = 0.05


@dataclass(frozen=True)
class Fact:
    """One thing that is known of the sides' runs besides the numbers."""

    name: str
    """What it is."""
    values: tuple[str | None, ...]
    """One a side, None where it is not known."""
    differs: bool
    """Whether sides that say it disagree."""


def known_facts(sides: Sequence[Side]) -> tuple[Fact, ...]:
    """What is known of the runs, in the order of the sides that say it; what differs comes first."""
    names = dict.fromkeys(name for side in sides for name in side.background.facts)
    facts = []
    for name in names:
        values = [side.background.facts.get(name) for side in sides]
        texts = tuple(None if value is None else fact_text(value) for value in values)
        facts.append(Fact(name, texts, _differs(name, [value for value in values if value is not None])))
    return tuple(sorted(facts, key=lambda fact: (not fact.differs, fact.name not in DECISIVE)))


def _differs(name: str, values: Sequence[str | float]) -> bool:
    numbers = [value for value in values if isinstance(value, float)]
    if len(numbers) == len(values):
        return bool(numbers) and max(numbers) > (1 + DIFFERENCE) * min(numbers)
    return len({_same(name, str(value)) for value in values}) > 1


def _same(name: str, text: str) -> str:
    """What two texts that mean the same have in common."""
    if name == "algorithm":
        return ALGORITHMS.get(text, text)
    return _model(text) if name == "model" else text


def _model(text: str) -> str:
    """What two names or paths of models of one shape have in common: the last part that tells of a model."""
    copy = HUB_COPY.search(text.rstrip("/"))
    parts = [copy[1]] if copy else text.split("/")
    model = next((part for part in reversed(parts) if part and not ANY_MODEL.fullmatch(part.lower())), text).lower()
    for ending in SAME_SHAPE:
        model = model.removesuffix(ending)
    return model


def doubts_of(sides: Sequence[Side], facts: Sequence[Fact]) -> tuple[str, ...]:
    """Why a comparison means nothing, one phrase each; empty where it may mean something."""
    return tuple(
        f"the {fact.name} differs: {_values(sides, fact)}" for fact in facts if fact.differs and fact.name in DECISIVE
    )


def has_other_work(first: Side, other: Side) -> bool:
    """Whether a step of one side is clearly more work than of the other, so that their times say nothing of speed."""
    return _is_other("tokens a step", first, other)


def has_unknown_work(first: Side, other: Side) -> bool:
    """Whether nothing tells that a step of both is the same work: a side does not count its tokens."""
    return not all(isinstance(side.background.facts.get("tokens a step"), float) for side in (first, other))


def has_other_lengths(first: Side, other: Side) -> bool:
    """Whether the responses of one side are clearly longer."""
    return _is_other("mean response length", first, other)


def _is_other(fact: str, first: Side, other: Side) -> bool:
    values = [side.background.facts.get(fact) for side in (first, other)]
    numbers = [value for value in values if isinstance(value, float) and value > 0]
    return len(numbers) == 2 and max(numbers) > (1 + OTHER_WORK) * min(numbers)


def fact_text(value: str | float) -> str:
    """A fact as people read it."""
    return number(value) if isinstance(value, float) else value


def _values(sides: Sequence[Side], fact: Fact) -> str:
    return listing(
        f"{value} ({side.name})" for side, value in zip(sides, fact.values, strict=True) if value is not None
    )
