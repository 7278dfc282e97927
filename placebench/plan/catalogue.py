"""The catalogue of placements: which can be on the devices asked for, each with its devices, and why others cannot."""

from collections.abc import Sequence
from dataclasses import dataclass

from placebench.errors import Reasons
from placebench.plan.devices import DEVICES
from placebench.plan.headroom import too_large
from placebench.plan.request import OPTIONS, WORKLOAD, RunRequest, request_facts
from placebench.plan.workload_checks import WORKLOAD_CHECKS
from placebench.predict.possible import lay_out
from placebench.spec.bound import RunPlacement
from placebench.spec.check import collect
from placebench.spec.devices import Device
from placebench.spec.presets import PRESETS, Nodes
from placebench.spec.words import read_placement, split_words
from placebench.spec.workload import Workload
from placebench.spec.workload_reading import asks_for_critic


@dataclass(frozen=True)
class Entry:
    """A placement word on given devices."""

    word: str
    """As the user would write it."""
    bound: RunPlacement | None
    """The placement with its devices; None where there are too few or the word is wrong."""
    reasons: tuple[str, ...]
    """Why it cannot be; none when it can."""


@dataclass(frozen=True)
class Catalogue:
    """Placement words on the devices asked for."""

    devices: tuple[Device, ...]
    workload: Workload
    entries: tuple[Entry, ...]
    is_usual: bool
    """Whether nobody has named words."""
    no_words: Reasons
    """Why words are no placements, whatever the devices."""


def read_catalogue(request: RunRequest, words: Sequence[str]) -> Catalogue:
    """Look up what each word means and whether it can be.

    Args:
        request: devices, workload, and the placements of its file; all else is left aside.
        words: those to look up, or lists of them; none for the request's, and without these for the usual ones.

    Raises:
        UsageError: devices or workload cannot be, whatever the placement; one line for every reason, also why words
            are no placements.
    """
    if request.placements and not words:
        words = [request.placements]
    words = [word for text in words for word in split_words(text)]
    facts, no_words = request_facts(request), Reasons()
    # It may run on other hosts, which alone have its packages.
    reasons = collect((OPTIONS, DEVICES, WORKLOAD, *WORKLOAD_CHECKS), facts)
    for word in words:
        read_placement(word, None, no_words, has_critic=asks_for_critic(request.workload))
    if reasons.lines:
        reasons.add(no_words.lines)
        reasons.raise_any()
    devices, workload = facts["devices"], facts["workload"]
    entries = tuple(look_up(word, devices, workload) for word in words or usual_words(facts["nodes"]))
    return Catalogue(devices, workload, entries, not words, no_words)


def look_up(word: str, devices: Sequence[Device], workload: Workload) -> Entry:
    """A word, checked by itself as a plan would check it."""
    bound, layout = lay_out(word, devices, workload)
    reasons = Reasons()
    reasons.add(layout)
    if bound:
        reasons.attempt(lambda: reasons.add(too_large(workload, [bound], devices)))
    return Entry(word, bound, reasons.lines)


def usual_words(nodes: Nodes) -> tuple[str, ...]:
    """Every preset at the counts that people try first on such nodes, also those that cannot be there."""
    return tuple(dict.fromkeys(word for preset in PRESETS for word in preset.usual(nodes)))
