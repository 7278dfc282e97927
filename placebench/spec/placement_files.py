"""Placements from YAML: any pools, given per node, and which role lives where."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from placebench.errors import Reasons
from placebench.spec.config import load_yaml
from placebench.spec.devices import on_nodes
from placebench.spec.legible import shown
from placebench.spec.nearest import did_you_mean
from placebench.spec.placement import Overlap, Placement, Pool, Role, Scaling
from placebench.spec.text import few, plural
from placebench.spec.workload import MOST

KEYS: Mapping[str, str] = {
    "name": "name of the placement; by default the file's",
    "pools": "devices of each pool, a number for each node: `{main: [3], apart: [1]}`",
    "roles": "the pool of each role; without one, the reward is in the critic's pool, under GRPO in the reference's",
    "overlap": "`all` (the default), `updates` or `none`: what may run side by side in different pools",
    "staleness": "how many updates the weights that generate may lag behind those that train; by default 0",
    "inflight_updates": "whether engines go on generating while they take new weights; by default false",
    "tensor_parallel": "devices that share one engine; by default the workload's",
    "scaling": "where one pool's devices each hold a full replica: `strong` or `weak`",
}
"""The keys of a file, with what they mean."""


def load_placement(path: Path, nodes: Sequence[int] | None, *, has_critic: bool = True) -> Placement:
    """Read a placement file.

    Args:
        path: of the file.
        nodes: devices of each node; None sees to the file alone, whatever the nodes.
        has_critic: whether the algorithm trains a critic; without one, the file names none.

    Raises:
        UsageError: one line for every reason why it is none, or cannot be on these nodes.
    """
    return _PlacementFile(path, load_yaml(path), has_critic, Reasons()).placement(nodes)


def placement_text(placement: Placement, *, has_critic: bool = True) -> str:
    """A file that `load_placement` reads as this placement, but for its name, which is the file's."""
    roles = {role.value: pool for role, pool in placement.roles.items() if has_critic or role is not Role.CRITIC}
    settings = {
        "overlap": placement.overlap.value,
        "staleness": placement.staleness,
        "inflight_updates": placement.inflight_updates or None,
        "tensor_parallel": placement.tensor_parallel,
        "scaling": placement.scaling and placement.scaling.value,
    }
    content = {
        "pools": {pool.name: list(pool.counts) for pool in placement.pools},
        "roles": roles,
        **{key: value for key, value in settings.items() if value is not None},
    }
    return yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=120)


@dataclass(frozen=True)
class _PlacementFile:
    """A placement file that collects what is wrong with it.

    Not a model of pydantic's: only five of the keys can be checked by themselves, in as many lines as here, since each
    has its own words for what it takes. Pools and roles are held against each other, the nodes and the algorithm, and
    still are where another key is wrong, when pydantic has no object.
    """

    path: Path
    content: Mapping[str, Any]
    has_critic: bool
    reasons: Reasons

    def placement(self, nodes: Sequence[int] | None) -> Placement:
        for key in sorted(set(self.content) - set(KEYS), key=str):
            self._wrong(f"unknown key {shown(key)}; a placement has {', '.join(KEYS)}{did_you_mean(key, KEYS)}")
        pools = self._pools(nodes)
        name, roles = self._name(), self._roles()
        overlap = self._value("overlap", "one of none, updates, all", lambda word: word in tuple(Overlap), Overlap.ALL)
        staleness = self._value("staleness", "a number of updates, 0 or more", _is_staleness, 0)
        inflight = self._value("inflight_updates", "true or false", lambda value: type(value) is bool, False)
        shared_by = self._value(
            "tensor_parallel", f"a number of devices, 1 to {MOST}", lambda value: _is_whole(value, 1)
        )
        scaling = self._value("scaling", "strong or weak", lambda word: word in tuple(Scaling))
        if scaling and len(pools) > 1:
            self._wrong("scaling: is for a placement of one pool, and this one has several; leave it out")
        self.reasons.raise_any()
        replicas = Scaling(scaling) if scaling else None
        return Placement(name, pools, roles, Overlap(overlap), staleness, inflight, shared_by, replicas)

    def _wrong(self, what: str) -> None:
        self.reasons.add([f"{self.path}: {what}"])

    def _value(self, key: str, what: str, is_right: Callable[[Any], bool], default: Any = None) -> Any:
        value = self.content.get(key, default)
        if key not in self.content or is_right(value):
            return value
        self._wrong(f"{key}: {shown(value)} is not {what}")
        return default

    def _name(self) -> str:
        name = self.content.get("name", self.path.stem)
        if not _is_name(name):
            self._wrong(f"name: {shown(name)} {_NO_NAME}")
        return str(name)

    def _pools(self, nodes: Sequence[int] | None) -> tuple[Pool, ...]:
        given = self._mapping("pools")
        for name in given:
            if not _is_name(name):
                self._wrong(f"pools: {shown(name)} {_NO_NAME}")
        of_pools = {name: self._counts(name, value, nodes) for name, value in given.items() if _is_name(name)}
        pools = tuple(Pool(name, counts) for name, counts in of_pools.items() if counts)
        needs = [
            {pool.name: pool.counts[node] for pool in pools if pool.counts[node]} for node in range(len(nodes or ()))
        ]
        for where, (users, have) in on_nodes(zip(needs, nodes or (), strict=True)):
            if (need := sum(users.values())) > have:
                by = few((f"{name} {count}" for name, count in users.items()), ", ")
                self._wrong(f"the pools need {need} devices on {where} ({by}), there are {have}")
        return pools

    def _counts(self, name: str, value: Any, nodes: Sequence[int] | None) -> tuple[int, ...]:
        counts = [value] if isinstance(value, int) else value
        is_list = isinstance(counts, list) and all(_is_whole(count, 0) for count in counts)
        if not is_list or not sum(counts) or (nodes is not None and len(counts) != len(nodes)):
            here = "" if nodes is None else f", and here is {plural(len(nodes), 'node')}"
            self._wrong(f"pools.{name}: {shown(value)} must be a list with one device count per node{here}")
            return ()
        return tuple(counts)

    def _roles(self) -> dict[Role, str]:
        """The pool of each role; the reward's is the critic's unless said otherwise.

        Without a critic the reference's stands for the critic's, as in the words: nothing is done for it there.
        """
        given, pools = self._mapping("roles"), self._mapping("pools")
        known = self._known_roles(given, {str(pool) for pool in pools})
        judge = Role.CRITIC if self.has_critic else Role.REF
        if judge in known:
            for role in (Role.CRITIC, Role.REWARD):
                known.setdefault(role, known[judge])
        missing = [role for role in Role if role not in known and (self.has_critic or role is not Role.CRITIC)]
        if missing and given and given.keys() <= known.keys():
            self._wrong(f"roles: {', '.join(missing)} {'has' if len(missing) == 1 else 'have'} no pool")
        elif not missing:
            self._refuse_empty_pools(pools, set(known.values()))
        return {role: known[role] for role in Role if role in known}

    def _known_roles(self, given: Mapping[Any, Any], pools: Collection[str]) -> dict[str, str]:
        """The roles that are given and are roles, each with its pool, which may be none of the file's."""
        known = {key: str(pool) for key, pool in given.items() if key in tuple(Role)}
        for role in given.keys() - known.keys():
            self._wrong(f"roles: unknown role {shown(role)}; the roles are {', '.join(Role)}{did_you_mean(role, Role)}")
        for role, pool in known.items():
            if pool not in pools:
                self._wrong(f"roles.{role}: there is no pool {shown(pool)} under pools")
        if Role.CRITIC in known and not self.has_critic:
            self._wrong("roles.critic: the algorithm trains no critic; leave it out")
        return known

    def _refuse_empty_pools(self, pools: Collection[Any], inhabited: Collection[str]) -> None:
        """Refuse pools without a role, unless a role lives in none of the pools: its pool may be misspelled."""
        if not {str(pool) for pool in pools}.issuperset(inhabited):
            return
        for name in filter(_is_name, pools):
            if name not in inhabited:
                self._wrong(f"pools.{name}: no role lives there; give it one or leave it out")

    def _mapping(self, key: str) -> Mapping[Any, Any]:
        value = self.content.get(key)
        if not isinstance(value, Mapping) or not value:
            self._wrong(f"{key}: must be a mapping, for example {_EXAMPLES[key]}")
            return {}
        return value


# Names become folders and stand in messages and tables: none of signs alone, none that ends in a space.
_NAME = re.compile(r"(?=.{1,60}\Z)\w([\w+=.,:@/ -]*[\w+=.,:@/-])?")
_NO_NAME = (
    "must be a short text of letters, digits, spaces and + = . , : @ / -, beginning with a letter or digit and not"
    " ending with a space"
)
_EXAMPLES = {"pools": "pools: {actor_pool: [2], critic_pool: [2]}", "roles": "roles: {actor: actor_pool, …}"}


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_staleness(value: Any) -> bool:
    # Any number, so that one that is too large is refused for that, with the most that a launch can reach.
    return type(value) is int and value >= 0


def _is_whole(value: Any, least: int) -> bool:
    return type(value) is int and least <= value <= MOST
