"""Which placements can be on given devices, each with its devices, and why others cannot."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from placebench.errors import Reasons
from placebench.plan.plan import too_large
from placebench.predict.possible import lay_out
from placebench.spec.bound import RunPlacement
from placebench.spec.devices import Device
from placebench.spec.presets import PRESETS, Nodes, Preset
from placebench.spec.words import preset_of
from placebench.spec.workload import Workload


@dataclass(frozen=True)
class Entry:
    """A placement word on given devices.

    Attributes:
        word: as the user would write it.
        preset: what it is a form of; None for a YAML file, and for what is no word at all.
        bound: the placement with its devices; None where there are too few or the word is wrong.
        reasons: why it cannot be; none when it can.
    """

    word: str
    preset: Preset | None
    bound: RunPlacement | None
    reasons: tuple[str, ...]


def look_up(words: Sequence[str], devices: Sequence[Device], workload: Workload) -> tuple[Entry, ...]:
    """Every word, checked by itself as a plan would check it."""
    return tuple(_entry(word, devices, workload) for word in words)


def _entry(word: str, devices: Sequence[Device], workload: Workload) -> Entry:
    bound, layout = lay_out(word, devices, workload)
    reasons = Reasons()
    reasons.add(layout)
    if bound:
        reasons.attempt(lambda: reasons.add(too_large(workload, [bound], devices)))
    return Entry(word, preset_of(word), bound, reasons.lines)


def usual_words(nodes: Nodes) -> tuple[str, ...]:
    """Every preset at the counts that people try first on such nodes, also those that cannot be there."""
    return tuple(dict.fromkeys(word for preset in PRESETS for word in _WORDS[preset.name](nodes)))


def _splits(nodes: Nodes) -> Iterator[str]:
    yield "split"
    total = max(sum(nodes), 4)
    yield f"split:{total - total // 4}+{total // 4}"


def _learners(nodes: Nodes) -> Iterator[str]:
    learners = [max(1, have // 2) for have in nodes]
    left = [have - use for have, use in zip(nodes, learners, strict=True)]
    word = f"learners:{','.join(map(str, learners))}+engines:"
    yield f"{word}{max(1, sum(left))}"
    yield f"{word}{max(1, sum(left))}/staleness=1"
    yield f"{word}{max(1, sum(have // 2 for have in left))}xtp2"


def _replicas(nodes: Nodes) -> Iterator[str]:
    total = max(sum(nodes), 2)
    yield from (f"ddp:{2**power}" for power in range(total.bit_length()))
    yield f"ddp:{total}/scaling=weak"


_WORDS = {
    "standard": lambda nodes: ["standard", "standard/staleness=1"],
    "split": _splits,
    "split@nodes": lambda nodes: ["split@nodes"],
    "learners": _learners,
    "ddp": _replicas,
}
