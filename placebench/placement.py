"""Roles, pools and placements, and the grammar in which a user names them.

A placement is data: which role lives in which pool, how many devices of each node a pool has, and what
may overlap. Nothing here looks at the machine; `plan` binds pools to devices.

Grammar of a placement word:

    WORD      = PRESET [":" COUNT ("+" COUNT)*] ("/" KEY "=" VALUE)*   |   PATH.yaml
    PRESET    = "standard" | "split"
    KEY=VALUE = "overlap=" ("none" | "updates" | "all")
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from placebench.errors import UsageError


class Role(StrEnum):
    """A model, or a function, that takes part in the job."""

    ACTOR = "actor"
    ROLLOUT = "rollout"
    REF = "ref"
    CRITIC = "critic"
    REWARD = "reward"


class Overlap(StrEnum):
    """Which phases of different pools may run side by side."""

    NONE = "none"
    UPDATES = "updates"
    ALL = "all"


@dataclass(frozen=True)
class Pool:
    """A named set of devices, given per node: `counts=(2, 2)` is 2 devices on each of 2 nodes."""

    name: str
    counts: tuple[int, ...]

    @property
    def size(self) -> int:
        """Devices of the pool over all nodes."""
        return sum(self.counts)


@dataclass(frozen=True)
class Placement:
    """Which role lives in which pool, and what may overlap.

    Attributes:
        name: the word the user gave, or the name in the YAML file; unique in a run.
        pools: disjoint pools; together they use every device they count, in order.
        roles: the pool of each role.
        overlap: what may run side by side.
        staleness: how many updates the weights that generate may lag behind those that train; 0 is synchronous.
        inflight_updates: whether engines go on generating while they take new weights.
    """

    name: str
    pools: tuple[Pool, ...]
    roles: Mapping[Role, str] = field(hash=False)
    overlap: Overlap = Overlap.ALL
    staleness: int = 0
    inflight_updates: bool = False

    @property
    def size(self) -> int:
        """Devices of all pools together."""
        return sum(pool.size for pool in self.pools)

    def pool_of(self, role: Role) -> Pool:
        """The pool in which a role lives."""
        return next(pool for pool in self.pools if pool.name == self.roles[role])

    def roles_in(self, pool: str) -> tuple[Role, ...]:
        """The roles that live in a pool, in the order of `Role`."""
        return tuple(role for role in Role if self.roles[role] == pool)


ACTOR_SIDE = (Role.ACTOR, Role.ROLLOUT, Role.REF)
CRITIC_SIDE = (Role.CRITIC, Role.REWARD)


def parse_placements(text: str, nodes: Sequence[int]) -> tuple[Placement, ...]:
    """Read a comma-separated list of placement words; see `parse_placement`.

    Raises:
        UsageError: a word is unknown, cannot be on these nodes, or stands twice.
    """
    words = [word.strip() for word in text.split(",")]
    if "" in words:
        raise UsageError(f"--placements {text!r} has an empty entry: write for example standard,split")
    placements = tuple(parse_placement(word, nodes) for word in words)
    names = [placement.name for placement in placements]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"placement {name!r} is given twice in --placements {text!r}: name each once")
    return placements


def parse_placement(word: str, nodes: Sequence[int]) -> Placement:
    """Read one placement word for a host of `nodes` (devices per node).

    Raises:
        UsageError: with what is wrong in the word and what would be right.
    """
    if word.endswith((".yaml", ".yml")):
        return _load_placement(Path(word), nodes)
    head, *settings = word.split("/")
    preset, colon, counts_text = head.partition(":")
    counts = _parse_counts(word, counts_text) if colon else None
    if preset == "standard":
        placement = _standard(word, nodes, counts)
    elif preset == "split":
        placement = _split(word, nodes, counts)
    else:
        raise UsageError(
            f"unknown placement {word!r}: use standard, split, split:A+B (devices of the actor pool and of the"
            " critic pool), or a .yaml file; /overlap=none, updates or all may follow"
        )
    if len(settings) > 1:
        raise UsageError(f"placement {word!r}: overlap is the only setting; give it once")
    for setting in settings:
        key, _, value = setting.partition("=")
        if key != "overlap" or value not in tuple(Overlap):
            raise UsageError(
                f"placement {word!r}: unknown setting {setting!r}; use overlap=none, overlap=updates or overlap=all"
            )
        placement = replace(placement, overlap=Overlap(value))
    return placement


def _parse_counts(word: str, text: str) -> tuple[int, ...]:
    parts = text.split("+")
    if not all(re.fullmatch("[1-9][0-9]{0,5}", part) for part in parts):
        raise UsageError(f"placement {word!r}: {text!r} is not a list of device counts above 0, such as 3+1")
    return tuple(int(part) for part in parts)


def _standard(word: str, nodes: Sequence[int], counts: tuple[int, ...] | None) -> Placement:
    if counts is not None:
        raise UsageError(f"placement {word!r}: standard uses every device and takes no counts; write standard")
    return Placement(word, (Pool("global_pool", tuple(nodes)),), dict.fromkeys(Role, "global_pool"))


def _split(word: str, nodes: Sequence[int], counts: tuple[int, ...] | None) -> Placement:
    total = sum(nodes)
    if counts is None:
        if total < 2:
            raise UsageError(f"placement {word!r} needs at least 2 devices, there is {total}: try --devices cpu:2")
        counts = (total - total // 2, total // 2)
    if len(counts) != 2:
        raise UsageError(f"placement {word!r}: split takes two counts, actor pool + critic pool, such as split:3+1")
    if sum(counts) > total:
        raise UsageError(
            f"placement {word!r} needs {sum(counts)} devices, there are {total}: lower the counts or raise --devices"
        )
    actor, critic = _fill(nodes, counts[0]), counts[1]
    rest = [have - used for have, used in zip(nodes, actor, strict=True)]
    pools = (Pool("actor_pool", actor), Pool("critic_pool", _fill(rest, critic)))
    roles = dict.fromkeys(ACTOR_SIDE, "actor_pool") | dict.fromkeys(CRITIC_SIDE, "critic_pool")
    return Placement(word, pools, roles)


def _fill(nodes: Sequence[int], count: int) -> tuple[int, ...]:
    """Take `count` devices from the nodes, first node first."""
    taken: list[int] = []
    for have in nodes:
        take = min(have, count)
        taken.append(take)
        count -= take
    return tuple(taken)


def _load_placement(path: Path, nodes: Sequence[int]) -> Placement:
    from placebench.config import load_yaml

    content = load_yaml(path)

    def wrong(what: str) -> UsageError:
        return UsageError(f"{path}: {what}")

    unknown = set(content) - {"name", "pools", "roles", "overlap"}
    if unknown:
        raise wrong(f"unknown key {sorted(unknown)[0]!r}; a placement has name, pools, roles and overlap")
    pools = tuple(
        Pool(str(name), _pool_counts(path, str(name), value, nodes))
        for name, value in _mapping(path, content, "pools").items()
    )
    wanted = _mapping(path, content, "roles")
    for role, pool in wanted.items():
        if role not in tuple(Role):
            raise wrong(f"roles: unknown role {role!r}; the roles are {', '.join(Role)}")
        if pool not in [known.name for known in pools]:
            raise wrong(f"roles.{role}: there is no pool {pool!r} under pools")
    missing = [role for role in Role if role not in wanted]
    if missing:
        raise wrong(f"roles: {', '.join(missing)} has no pool")
    idle = [pool.name for pool in pools if pool.name not in wanted.values()]
    if idle:
        raise wrong(f"pools.{idle[0]}: no role lives there; give it one or leave it out")
    overlap = content.get("overlap", "all")
    if overlap not in tuple(Overlap):
        raise wrong(f"overlap: {overlap!r} is not one of none, updates, all")
    for node, have in enumerate(nodes):
        need = sum(pool.counts[node] for pool in pools)
        if need > have:
            raise wrong(f"the pools need {need} devices on node {node}, there are {have}")
    name = content.get("name", path.stem)
    if not isinstance(name, str) or not re.fullmatch(r"[\w+=.,:@/ -]{1,60}", name):
        raise wrong(f"name: {name!r} must be a short text of letters, digits, spaces and + = . , : @ / -")
    roles = {role: str(wanted[role.value]) for role in Role}
    return Placement(name, pools, roles, Overlap(overlap))


def _mapping(path: Path, content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = content.get(key)
    if not isinstance(value, Mapping) or not value:
        raise UsageError(f"{path}: {key}: must be a mapping, for example {key}: {{actor_pool: [2]}}")
    return value


def _pool_counts(path: Path, name: str, value: Any, nodes: Sequence[int]) -> tuple[int, ...]:
    counts = [value] if isinstance(value, int) else value
    if (
        not isinstance(counts, list)
        or len(counts) != len(nodes)
        or not all(type(count) is int and count >= 0 for count in counts)
        or not sum(counts)
    ):
        raise UsageError(
            f"{path}: pools.{name}: {value!r} must be a list with one device count per node ({len(nodes)} here)"
        )
    return tuple(counts)
