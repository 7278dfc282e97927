"""The grammar in which a user names placements on the command line.

Grammar:

WORDS     = WORD ("," WORD)*              a comma before a bare count belongs to the word: learners:2,1+engines:5
WORD      = (PRESET | PATH.yaml) ("/" KEY "=" VALUE)*
PRESET    = "standard"
          | "split" [":" COUNT "+" COUNT]
          | "split@nodes"
          | "learners:" COUNT ("," COUNT)* "+engines:" COUNT ["xtp" COUNT]
          | "ddp:" COUNT
KEY=VALUE = "overlap=" ("none" | "updates" | "all") | "staleness=" NUMBER | "inflight_updates=" ("true" | "false")
          | "scaling=" ("strong" | "weak")        of ddp alone
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from placebench.errors import Reasons, UsageError
from placebench.spec.legible import shown
from placebench.spec.nearest import did_you_mean
from placebench.spec.placement import Overlap, Placement, Role, Scaling
from placebench.spec.presets import PRESETS, SPLIT, SPLIT_NODES, Nodes, Preset, without_critic

# A comma separates words unless a bare count follows, which is the next node's of the same word.
_SEPARATOR = re.compile(r",(?!\s*[0-9]+\s*(?:[,+/]|$))")
_FILE = re.compile(r"(?P<path>.*?\.ya?ml)(?P<settings>(?:/\w+=[^/]*)*)")


def split_words(text: str) -> tuple[str, ...]:
    """The words of a comma-separated list, white space around them dropped; empty ones are kept."""
    return tuple(word.strip() for word in _SEPARATOR.split(text))


def parse_placements(text: str, nodes: Nodes, *, has_critic: bool = True) -> tuple[Placement, ...]:
    """Read a comma-separated list of placement words; see `parse_placement`.

    Raises:
        UsageError: one line for every word that is unknown or cannot be on these nodes, and for names given twice.
    """
    reasons = Reasons()
    placements, _ = readable_placements(text, nodes, reasons, has_critic=has_critic)
    reasons.raise_any()
    return placements


def readable_placements(
    text: str, nodes: Nodes | None, reasons: Reasons, *, has_critic: bool | None = True
) -> tuple[tuple[Placement, ...], tuple[Placement, ...]]:
    """The placements of a list's words, those that can be and the others as far as they can be read.

    Args:
        text: words set apart by commas.
        nodes: devices of each node; None for whatever nodes.
        reasons: takes what is wrong with the others.
        has_critic: whether the algorithm trains a critic; None where that is not known.
    """
    words = split_words(text)
    if "" in words:
        reasons.add([f"--placements {shown(text)} has an empty entry: write for example standard,split"])
    right: list[Placement] = []
    others: list[Placement] = []
    for word in filter(None, words):
        readings = []
        for trains_critic in (True, False) if has_critic is None else (has_critic,):
            of_word = Reasons()
            readings.append((read_placement(word, nodes, of_word, has_critic=trains_critic), of_word))
        placement, of_word = min(readings, key=lambda reading: len(reading[1].lines))
        reasons.add(of_word.lines)
        if placement:
            (others if of_word.lines else right).append(placement)
    reasons.add(given_twice((placement.name for placement in (*right, *others)), text))
    return tuple(right), tuple(others)


def given_twice(names: Iterable[str], text: str, origin: str = "--placements") -> Iterator[str]:
    """A line for every placement that a list has twice.

    Args:
        names: of the placements of its words.
        text: the list.
        origin: what to call its source.
    """
    for name, count in Counter(names).items():
        if count > 1:
            yield f"placement {shown(name)} is given twice in {origin} {shown(text)}: name each once"


def parse_placement(word: str, nodes: Nodes | None, *, has_critic: bool = True) -> Placement:
    """Read one placement word.

    Args:
        word: as the user writes it.
        nodes: devices of each node; None for whatever nodes, where pools that take what is there have no counts.
        has_critic: whether the algorithm trains a critic; without one, `split` puts the reference apart in its place.

    Raises:
        UsageError: with what is wrong in the word and what would be right, one line for every reason.
    """
    reasons = Reasons()
    placement = read_placement(word, nodes, reasons, has_critic=has_critic)
    reasons.raise_any()
    assert placement is not None
    return placement


def read_placement(word: str, nodes: Nodes | None, reasons: Reasons, *, has_critic: bool = True) -> Placement | None:
    """As `parse_placement`, but what is wrong goes to `reasons`.

    Returns:
        Where there are too few devices, the placement on as many as it needs; where settings are wrong, the placement
        without them; None for what is no placement.
    """
    parts = reasons.attempt(lambda: _parts(word))
    if parts is None:
        return None
    head, settings = parts
    changes = _settings(word, settings, reasons)
    placement = reasons.attempt(lambda: _without_settings(word, head, nodes, has_critic))
    if placement is None:
        placement = Reasons().attempt(lambda: _without_settings(word, head, None, has_critic))
    if placement is None:
        return None
    if placement.scaling is None and changes.pop("scaling", None):
        reasons.add([f"placement {shown(word)}: scaling is a setting of ddp:N; leave it out"])
    return replace(placement, name="/".join((placement.name, *settings)), **changes)


# Of counts for every node of a large cluster nobody reads or types a word.
_LONGEST = 60


def word_of(placement: Placement, nodes: Nodes, *, has_critic: bool = True, usual_engine: int = 1) -> str | None:
    """The word that says a placement on such nodes; None where there is none that people could type.

    Args:
        placement: whatever it is called.
        nodes: devices of each node.
        has_critic: whether the algorithm trains a critic.
        usual_engine: devices that share an engine where a word does not say it.
    """
    settings = [f"/overlap={placement.overlap}"] if placement.overlap is not Overlap.ALL else []
    settings += [f"/staleness={placement.staleness}"] if placement.staleness else []
    wanted = _layout(placement, usual_engine)
    for head in _heads(placement, usual_engine):
        read = read_placement(word := "".join((head, *settings)), nodes, reasons := Reasons(), has_critic=has_critic)
        if len(word) <= _LONGEST and read and not reasons.lines and _layout(read, usual_engine) == wanted:
            return word
    return None


def _heads(placement: Placement, usual_engine: int) -> tuple[str, ...]:
    """Words without settings that may say a placement with as many pools."""
    if len(placement.pools) == 1:
        return ("standard",)
    first, second = placement.pools[:2]
    if not placement.has_engines:
        return ("split", "split@nodes", f"split:{first.size}+{second.size}")
    shared_by = placement.tensor_parallel or usual_engine
    engines = placement.pool_of(Role.ROLLOUT)
    learners = next(pool for pool in placement.pools if pool is not engines)
    counts = [str(count) for count in learners.counts]
    while counts[-1:] == ["0"]:
        counts.pop()
    tail = f"xtp{shared_by}" if shared_by > 1 else ""
    return (f"learners:{','.join(counts)}+engines:{engines.size // shared_by}{tail}",)


def _layout(placement: Placement, usual_engine: int) -> tuple[object, ...]:
    """What makes a placement run as it does, whatever it and its pools are called."""
    pools = frozenset((frozenset(placement.roles_in(pool.name)), pool.counts) for pool in placement.pools)
    shared_by = placement.tensor_parallel or usual_engine
    return pools, placement.overlap, placement.staleness, placement.inflight_updates, shared_by, placement.scaling


def _parts(word: str) -> tuple[str, list[str]]:
    """A word without its settings, and these."""
    if match := _FILE.fullmatch(word):
        return match["path"], match["settings"].split("/")[1:]
    _preset(word)  # first of all: behind a slash of what is no placement there need not be settings
    head, *settings = word.split("/")
    return head, settings


def _without_settings(word: str, head: str, nodes: Nodes | None, has_critic: bool) -> Placement:
    if names_file(head):
        # pydantic and YAML are loaded only here: a shell that completes words waits for this module.
        from placebench.spec.placement_files import load_placement

        return load_placement(Path(head), nodes, has_critic=has_critic)
    preset = _preset(word)
    match = re.fullmatch(preset.pattern, head)
    if match is None:
        raise UsageError(
            f"placement {shown(word)}: {shown(head)} is not of the form {preset.form}, {preset.example}; counts are"
            " whole numbers above 0"
        )
    placement = replace(preset.resolve(word, match, nodes), name=head)
    return placement if has_critic or preset not in (SPLIT, SPLIT_NODES) else without_critic(placement)


def names_file(word: str) -> bool:
    """Whether a word is the path of a placement file, with settings perhaps."""
    return _FILE.fullmatch(word) is not None


def preset_of(word: str) -> Preset | None:
    """The preset that a word is a form of, or was to be; None for a file, and for any other text."""
    if names_file(word):
        return None
    head = word.split("/")[0]
    named = [preset for preset in PRESETS if preset.name == re.split("[:@+]", head)[0]]
    return next((preset for preset in PRESETS if re.fullmatch(preset.pattern, head)), named[0] if named else None)


def _preset(word: str) -> Preset:
    if preset := preset_of(word):
        return preset
    forms = ", ".join(one.form for one in PRESETS)
    near = did_you_mean(re.split("[:@+/]", word)[0], [one.name for one in PRESETS])
    raise UsageError(f"unknown placement {shown(word)}: use {forms}, or a file whose name ends in .yaml{near}")


def _settings(word: str, settings: Sequence[str], reasons: Reasons) -> dict[str, Any]:
    """Fields of a placement that the settings behind its word change; what is wrong with others goes to `reasons`."""
    changes: dict[str, Any] = {}
    wrong: set[str] = set()
    for setting in settings:
        key, _, text = setting.partition("=")
        read = SETTINGS.get(key)
        value = read.value(text) if read else None
        if value is None:
            usual = ", ".join(f"{name}={one.form}" for name, one in SETTINGS.items())
            near = "" if key in SETTINGS else did_you_mean(key, SETTINGS)
            reasons.add([f"placement {shown(word)}: unknown setting {shown(setting)}; use {usual}{near}"])
            wrong.add(key)
        elif key in changes:
            reasons.add([f"placement {shown(word)}: {key} is set twice; give it once"])
            wrong.add(key)
        changes[key] = value
    # Whether engines may take weights in flight depends on staleness, which is not known then.
    left_out = {*wrong, "inflight_updates"} if "staleness" in wrong else wrong
    known = {key: value for key, value in changes.items() if key not in left_out}
    # Whether the batch can be shared depends on the scaling; under weak scaling nothing has to be.
    return known | ({"scaling": Scaling.WEAK} if "scaling" in wrong else {})


@dataclass(frozen=True)
class Setting:
    """What may follow a word."""

    form: str
    """The form of its value."""
    reading: str
    """What it means, in one line."""
    value: Callable[[str], Any]
    """Reads a text; None for one that is no value."""


def _choice(values: type[StrEnum]) -> Callable[[str], Any]:
    return lambda text: values(text) if text in tuple(values) else None


SETTINGS: Mapping[str, Setting] = {
    "overlap": Setting(
        "none|updates|all",
        "what may run side by side in different pools: nothing; both updates; everything (the default)",
        _choice(Overlap),
    ),
    "staleness": Setting(
        "K",
        "how many updates the weights that generate may lag behind those that train; 0 (the default) is strictly"
        " synchronous",
        # Any number, so that one that is too large is refused for that; Python reads none of more digits.
        lambda text: int(text) if re.fullmatch("[0-9]{1,4300}", text) else None,
    ),
    "inflight_updates": Setting(
        "true|false",
        "whether engines go on generating while they take new weights; false (the default): they pause",
        {"true": True, "false": False}.get,
    ),
    "scaling": Setting(
        "strong|weak",
        "of ddp: strong (the default) keeps the batch of a step, weak keeps the batch of a device",
        _choice(Scaling),
    ),
}
