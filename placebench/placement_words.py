"""The grammar in which a user names placements on the command line, and what each word means on given nodes.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from placebench.errors import Reasons, UsageError
from placebench.placement import Overlap, Placement, Pool, Role, Scaling
from placebench.placement_files import load_placement

ACTOR_SIDE = (Role.ACTOR, Role.ROLLOUT, Role.REF)
CRITIC_SIDE = (Role.CRITIC, Role.REWARD)

_COUNT = "[1-9][0-9]{0,5}"
# A comma separates words unless a bare count follows, which is the next node's of the same word.
_SEPARATOR = re.compile(r",(?!\s*[0-9]+\s*(?:[,+/]|$))")
_FILE = re.compile(r"(?P<path>.*?\.ya?ml)(?P<settings>(?:/\w+=[^/]*)*)")

Nodes = Sequence[int]
"""Devices of each node."""


def split_words(text: str) -> tuple[str, ...]:
    """The words of a comma-separated list, white space around them dropped; empty ones are kept."""
    return tuple(word.strip() for word in _SEPARATOR.split(text))


def parse_placements(text: str, nodes: Nodes, *, has_critic: bool = True) -> tuple[Placement, ...]:
    """Read a comma-separated list of placement words; see `parse_placement`.

    Raises:
        UsageError: one line for every word that is unknown or cannot be on these nodes, and for names given twice.
    """
    reasons = Reasons()
    placements = readable_placements(text, nodes, reasons, has_critic=has_critic)
    reasons.raise_any()
    return placements


def readable_placements(text: str, nodes: Nodes, reasons: Reasons, *, has_critic: bool = True) -> tuple[Placement, ...]:
    """The placements of a list's words that can be read; what is wrong with the others goes to `reasons`."""
    words = split_words(text)
    if "" in words:
        reasons.add([f"--placements {text!r} has an empty entry: write for example standard,split"])
    attempts = [reasons.attempt(partial(parse_placement, word, nodes, has_critic=has_critic)) for word in words if word]
    placements = [placement for placement in attempts if placement]
    names = [placement.name for placement in placements]
    reasons.add(
        f"placement {name!r} is given twice in --placements {text!r}: name each once"
        for name in names
        if names.count(name) > 1
    )
    return tuple(placements)


def parse_placement(word: str, nodes: Nodes, *, has_critic: bool = True) -> Placement:
    """Read one placement word.

    Args:
        word: as the user writes it.
        nodes: devices of each node.
        has_critic: whether the algorithm trains a critic; without one, `split` puts the reference apart in its place.

    Raises:
        UsageError: with what is wrong in the word and what would be right.
    """
    if match := _FILE.fullmatch(word):
        placement = load_placement(Path(match["path"]), nodes)
        changes = _settings(word, match["settings"].split("/")[1:])
        return replace(placement, name=placement.name + match["settings"], **changes)
    head, *settings = word.split("/")
    preset, match = _find_preset(word, head)
    placement = preset.resolve(word, match, nodes)
    if not has_critic and preset in (SPLIT, SPLIT_NODES):
        placement = _without_critic(placement)
    changes = _settings(word, settings)
    if "scaling" in changes and preset is not DDP:
        raise UsageError(f"placement {word!r}: scaling is a setting of ddp:N; leave it out")
    return replace(placement, **changes)


def names_file(word: str) -> bool:
    """Whether a word is the path of a placement file, with settings perhaps."""
    return _FILE.fullmatch(word) is not None


def preset_of(word: str) -> "Preset | None":
    """The preset that a word is a form of, or was to be; None for a file, and for any other text."""
    if names_file(word):
        return None
    head = word.split("/")[0]
    named = [preset for preset in PRESETS if preset.name == re.split("[:@+]", head)[0]]
    return next((preset for preset in PRESETS if re.fullmatch(preset.pattern, head)), named[0] if named else None)


def _find_preset(word: str, head: str) -> tuple["Preset", re.Match[str]]:
    preset = preset_of(word)
    if preset is None:
        raise UsageError(f"unknown placement {word!r}: use {_or([one.form for one in PRESETS])}, or a .yaml file")
    if match := re.fullmatch(preset.pattern, head):
        return preset, match
    raise UsageError(
        f"placement {word!r}: {head!r} is not of the form {preset.form}, {preset.example}; counts are whole numbers"
        " above 0"
    )


def _settings(word: str, settings: Sequence[str]) -> dict[str, Any]:
    """Fields of a placement that the settings behind a word change."""
    changes: dict[str, Any] = {}
    for setting in settings:
        key, _, text = setting.partition("=")
        read = SETTINGS.get(key)
        value = read.values(text) if read else None
        if read is None or value is None:
            usual = ", ".join(f"{name}={one.form}" for name, one in SETTINGS.items())
            raise UsageError(f"placement {word!r}: unknown setting {setting!r}; use {usual}")
        if key in changes:
            raise UsageError(f"placement {word!r}: {key} is set twice; give it once")
        changes[key] = value
    return changes


@dataclass(frozen=True)
class Setting:
    """What may follow a word.

    Attributes:
        form: of its value.
        reading: what it means, in one line.
        values: the value of a text; None for a text that is none.
    """

    form: str
    reading: str
    values: Callable[[str], Any]


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
        "updates by which the weights that generate may lag behind; 0 (the default) is strictly synchronous",
        lambda text: int(text) if re.fullmatch("[0-9]{1,4}", text) else None,
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


@dataclass(frozen=True)
class Preset:
    """A word that everyone can name.

    Attributes:
        name: what the word begins with.
        form: how it is written.
        example: one, introduced.
        reading: what it means, in one line.
        pattern: regular expression of the whole word, settings aside.
        resolve: its placement from the word, the pattern's match, and the devices of each node.
    """

    name: str
    form: str
    example: str
    reading: str
    pattern: str
    resolve: Callable[[str, re.Match[str], Nodes], Placement]


def _standard(word: str, match: re.Match[str], nodes: Nodes) -> Placement:
    return Placement(word, (Pool("global_pool", tuple(nodes)),), dict.fromkeys(Role, "global_pool"))


def _split(word: str, match: re.Match[str], nodes: Nodes) -> Placement:
    total = sum(nodes)
    if match["actor"]:
        actor, critic = int(match["actor"]), int(match["critic"])
    elif total < 2:
        raise UsageError(f"placement {word!r} needs at least 2 devices, there is {total}: try --devices cpu:2")
    else:
        actor, critic = total - total // 2, total // 2
    _require(word, {"actor_pool": actor, "critic_pool": critic}, nodes)
    counts = fill(nodes, actor)
    return _two_pools(word, counts, fill(_left(nodes, counts), critic))


def _split_nodes(word: str, match: re.Match[str], nodes: Nodes) -> Placement:
    if len(nodes) < 2:
        raise UsageError(f"placement {word!r} needs at least 2 nodes, there is 1: write split to halve its devices")
    half = len(nodes) - len(nodes) // 2
    actor = tuple(have if node < half else 0 for node, have in enumerate(nodes))
    return _two_pools(word, actor, _left(nodes, actor))


def _two_pools(word: str, actor: tuple[int, ...], critic: tuple[int, ...]) -> Placement:
    roles = dict.fromkeys(ACTOR_SIDE, "actor_pool") | dict.fromkeys(CRITIC_SIDE, "critic_pool")
    return Placement(word, (Pool("actor_pool", actor), Pool("critic_pool", critic)), roles)


def _without_critic(placement: Placement) -> Placement:
    """The same split with what judges on the second side: reference and reward."""
    first, second = placement.pools
    second = replace(second, name="ref_pool")
    roles = dict.fromkeys((Role.ACTOR, Role.ROLLOUT), first.name)
    return replace(placement, pools=(first, second), roles={role: roles.get(role, second.name) for role in Role})


def _learners(word: str, match: re.Match[str], nodes: Nodes) -> Placement:
    """Learners on the nodes as given, one entry a node; engines on what is left, each whole on one node."""
    wanted = tuple(int(count) for count in match["learners"].split(","))
    engines, shared_by = int(match["engines"]), int(match["shared_by"] or 1)
    reasons = Reasons()
    learners = wanted + (0,) * (len(nodes) - len(wanted))
    if len(wanted) > len(nodes):
        reasons.add(
            [f"placement {word!r} has learners on {len(wanted)} nodes, there {_are(len(nodes), 'node')}: {_PER_NODE}"]
        )
    else:
        reasons.add(
            f"placement {word!r} needs {want} learners on node {node}, which has {_devices(have)}: {_PER_NODE}"
            for node, (want, have) in enumerate(zip(learners, nodes, strict=True))
            if want > have
        )
    if shared_by > max(nodes):
        reasons.add(
            [
                f"placement {word!r}: an engine of {shared_by} devices must lie on one node, and the largest has"
                f" {_devices(max(nodes))}; lower xtp{shared_by}"
            ]
        )
    _check_total(reasons, word, {"learners": sum(wanted), "engines": engines * shared_by}, nodes)
    reasons.raise_any()
    left = _left(nodes, learners)
    fitting = [have // shared_by for have in left]
    if sum(fitting) < engines:
        raise UsageError(
            f"placement {word!r}: {engines} engines of {_devices(shared_by)} each do not fit on what the learners"
            f" leave, {_by_node(left)}: {sum(fitting)} would; an engine lies whole on one node"
        )
    pools = (Pool("learners", learners), Pool("engines", tuple(shared_by * count for count in fill(fitting, engines))))
    roles = dict.fromkeys(Role, "learners") | {Role.ROLLOUT: "engines"}
    return Placement(word, pools, roles, tensor_parallel=shared_by)


_PER_NODE = "give one count a node, such as learners:2,1+engines:5"


def _ddp(word: str, match: re.Match[str], nodes: Nodes) -> Placement:
    count = int(match["replicas"])
    _require(word, {"replicas": count}, nodes)
    pool = Pool("replicas", fill(nodes, count))
    return Placement(word, (pool,), dict.fromkeys(Role, pool.name), tensor_parallel=1, scaling=Scaling.STRONG)


STANDARD = Preset(
    "standard", "standard", "without counts", "every role on all devices, one after the other", "standard", _standard
)
SPLIT = Preset(
    "split",
    "split[:A+B]",
    "such as split or split:3+1",
    "actor, rollout and ref on A devices, critic and reward on B others (without a critic: ref and reward); without"
    " counts half each, the odd one to the actor",
    f"split(:(?P<actor>{_COUNT})\\+(?P<critic>{_COUNT}))?",
    _split,
)
SPLIT_NODES = Preset(
    "split@nodes",
    "split@nodes",
    "without counts",
    "as split, but whole nodes: half of the nodes each with all their devices, the odd node to the actor",
    "split@nodes",
    _split_nodes,
)
LEARNERS = Preset(
    "learners",
    "learners:L[,L…]+engines:E[xtpT]",
    "such as learners:2+engines:2, learners:2,1+engines:5 or learners:4+engines:2xtp2",
    "actor, ref, critic and reward on L devices of each node in turn; E engines of T devices generate on what is left",
    f"learners:(?P<learners>{_COUNT}(,\\s*{_COUNT})*)\\+engines:(?P<engines>{_COUNT})(xtp(?P<shared_by>{_COUNT}))?",
    _learners,
)
DDP = Preset(
    "ddp",
    "ddp:N",
    "such as ddp:2",
    "N devices, each with a full replica of every model and its own rollouts; gradients are averaged",
    f"ddp:(?P<replicas>{_COUNT})",
    _ddp,
)
PRESETS = (STANDARD, SPLIT, SPLIT_NODES, LEARNERS, DDP)


def fill(nodes: Nodes, count: int) -> tuple[int, ...]:
    """Take `count` from the nodes, first node first."""
    taken: list[int] = []
    for have in nodes:
        take = min(have, count)
        taken.append(take)
        count -= take
    return tuple(taken)


def _left(nodes: Nodes, used: Sequence[int]) -> tuple[int, ...]:
    return tuple(have - use for have, use in zip(nodes, used, strict=True))


def _require(word: str, wanted: Mapping[str, int], nodes: Nodes) -> None:
    reasons = Reasons()
    _check_total(reasons, word, wanted, nodes)
    reasons.raise_any()


def _check_total(reasons: Reasons, word: str, wanted: Mapping[str, int], nodes: Nodes) -> None:
    """Too few devices: how many are needed, by which pools, and where those are that there are."""
    need, have = sum(wanted.values()), sum(nodes)
    if need > have:
        by = ", ".join(f"{pool} {count}" for pool, count in wanted.items())
        where = f" ({_by_node(nodes)})" if len(nodes) > 1 else ""
        reasons.add(
            [
                f"placement {word!r} needs {_devices(need)} ({by}), there {_are(have)}{where}: lower the counts or"
                " raise --devices"
            ]
        )


def _devices(count: int) -> str:
    return f"{count} device{'' if count == 1 else 's'}"


def _are(count: int, what: str = "") -> str:
    return f"{'is' if count == 1 else 'are'} {count}" + (f" {what}{'' if count == 1 else 's'}" if what else "")


def _by_node(nodes: Nodes) -> str:
    return ", ".join(f"{have} on node {node}" for node, have in enumerate(nodes))


def _or(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
