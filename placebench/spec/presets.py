"""The words that everyone can name, and what each means on given nodes."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from placebench.errors import Reasons, UsageError
from placebench.spec.devices import on_nodes
from placebench.spec.legible import shown
from placebench.spec.placement import Placement, Pool, Role, Scaling
from placebench.spec.text import few, plural

Nodes = Sequence[int]
"""Devices of each node."""

_COUNT = "[1-9][0-9]{0,5}"


@dataclass(frozen=True)
class Preset:
    """A word that everyone can name."""

    name: str
    """What the word begins with."""
    form: str
    """How the word is written."""
    example: str
    """An example of it with the words that introduce it in a message."""
    reading: str
    """What it means, in one line."""
    pattern: str
    """Regular expression of the whole word, settings aside."""
    resolve: Callable[[str, re.Match[str], Nodes | None], Placement]
    """Its placement from the word, the pattern's match, and the devices of each node; None for as many as it needs,
    where pools that take what is there have no counts."""
    usual: Callable[[Nodes], Iterable[str]]
    """Its words at the counts that people try first on such nodes, also those that cannot be there."""


def _standard(word: str, match: re.Match[str], nodes: Nodes | None) -> Placement:
    return Placement(word, (Pool("global_pool", tuple(nodes or ())),), dict.fromkeys(Role, "global_pool"))


def _split(word: str, match: re.Match[str], nodes: Nodes | None) -> Placement:
    if match["actor"]:
        actor, critic = int(match["actor"]), int(match["critic"])
        nodes = nodes or (actor + critic,)
    elif nodes is None:
        return _two_pools(word, (), ())
    elif (total := sum(nodes)) < 2:
        raise UsageError(f"placement {shown(word)} needs at least 2 devices, there is {total}: raise --devices")
    else:
        actor, critic = total - total // 2, total // 2
    _require(word, {"actor_pool": actor, "critic_pool": critic}, nodes)
    counts = fill(nodes, actor)
    return _two_pools(word, counts, fill(_left(nodes, counts), critic))


def _split_nodes(word: str, match: re.Match[str], nodes: Nodes | None) -> Placement:
    if nodes is None:
        return _two_pools(word, (), ())
    if len(nodes) < 2:
        raise UsageError(
            f"placement {shown(word)} needs at least 2 nodes, there is 1: write split to halve its devices"
        )
    half = len(nodes) - len(nodes) // 2
    actor = tuple(have if node < half else 0 for node, have in enumerate(nodes))
    return _two_pools(word, actor, _left(nodes, actor))


def _two_pools(word: str, actor: tuple[int, ...], critic: tuple[int, ...]) -> Placement:
    roles = dict.fromkeys(Role, "actor_pool") | dict.fromkeys((Role.CRITIC, Role.REWARD), "critic_pool")
    return Placement(word, (Pool("actor_pool", actor), Pool("critic_pool", critic)), roles)


def without_critic(placement: Placement) -> Placement:
    """A split with what judges on the second side: reference and reward."""
    first, second = placement.pools
    second = replace(second, name="ref_pool")
    roles = dict.fromkeys((Role.ACTOR, Role.ROLLOUT), first.name)
    return replace(placement, pools=(first, second), roles={role: roles.get(role, second.name) for role in Role})


def _learners(word: str, match: re.Match[str], nodes: Nodes | None) -> Placement:
    """Learners on the nodes as given, one entry a node; engines on what is left, each whole on one node."""
    wanted = tuple(int(count) for count in match["learners"].split(","))
    engines, shared_by = int(match["engines"]), int(match["shared_by"] or 1)
    nodes = nodes or (wanted[0] + engines * shared_by, *wanted[1:])
    reasons = Reasons()
    learners = wanted + (0,) * (len(nodes) - len(wanted))
    if len(wanted) > len(nodes):
        there = f"there {_are(len(nodes))} {plural(len(nodes), 'node')}"
        reasons.add([f"placement {shown(word)} has learners on {len(wanted)} nodes, {there}: {_PER_NODE}"])
    elif len(nodes) > 1:  # on one node, the sum below says it
        reasons.add(
            f"placement {shown(word)} needs {want} learners on {where}, which has {plural(have, 'device')}: {_PER_NODE}"
            for where, (want, have) in on_nodes(zip(learners, nodes, strict=True))
            if want > have
        )
    if shared_by > max(nodes):
        reasons.add(
            [
                f"placement {shown(word)}: an engine of {shared_by} devices must lie on one node, and the largest has"
                f" {plural(max(nodes), 'device')}; lower xtp{shared_by}"
            ]
        )
    reasons.attempt(lambda: _require(word, {"learners": sum(wanted), "engines": engines * shared_by}, nodes))
    reasons.raise_any()
    left = _left(nodes, learners)
    fitting = [have // shared_by for have in left]
    if sum(fitting) < engines:
        wanted_engines = f"{plural(engines, 'engine')} of {plural(shared_by, 'device')}"
        raise UsageError(
            f"placement {shown(word)}: there is no room for {wanted_engines} on what the learners leave,"
            f" {_by_node(left)}: {sum(fitting)} would fit; an engine lies whole on one node"
        )
    pools = (Pool("learners", learners), Pool("engines", tuple(shared_by * count for count in fill(fitting, engines))))
    roles = dict.fromkeys(Role, "learners") | {Role.ROLLOUT: "engines"}
    return Placement(word, pools, roles, tensor_parallel=shared_by)


_PER_NODE = "give one count a node, such as learners:2,1+engines:5"


def _ddp(word: str, match: re.Match[str], nodes: Nodes | None) -> Placement:
    count = int(match["replicas"])
    nodes = nodes or (count,)
    _require(word, {"replicas": count}, nodes)
    pool = Pool("replicas", fill(nodes, count))
    return Placement(word, (pool,), dict.fromkeys(Role, pool.name), tensor_parallel=1, scaling=Scaling.STRONG)


def _usual_splits(nodes: Nodes) -> Iterator[str]:
    yield "split"
    total = max(sum(nodes), 4)
    yield f"split:{total - total // 4}+{total // 4}"


def _usual_learners(nodes: Nodes) -> Iterator[str]:
    learners = [max(1, have // 2) for have in nodes]
    left = [have - use for have, use in zip(nodes, learners, strict=True)]
    word = f"learners:{','.join(map(str, learners))}+engines:"
    yield f"{word}{max(1, sum(left))}"
    yield f"{word}{max(1, sum(left))}/staleness=1"
    yield f"{word}{max(1, sum(have // 2 for have in left))}xtp2"


def _usual_replicas(nodes: Nodes) -> Iterator[str]:
    total = max(sum(nodes), 2)
    yield from (f"ddp:{2**power}" for power in range(total.bit_length()))
    yield f"ddp:{total}/scaling=weak"


STANDARD = Preset(
    "standard",
    "standard",
    "without counts",
    "every role on all devices, one after the other",
    "standard",
    _standard,
    lambda nodes: ["standard", "standard/staleness=1"],
)
SPLIT = Preset(
    "split",
    "split[:A+B]",
    "such as split or split:3+1",
    "actor, rollout and ref on A devices, critic and reward on B others (without a critic: ref and reward); without"
    " counts, half of the devices each, an odd one to the actor",
    f"split(:(?P<actor>{_COUNT})\\+(?P<critic>{_COUNT}))?",
    _split,
    _usual_splits,
)
SPLIT_NODES = Preset(
    "split@nodes",
    "split@nodes",
    "without counts",
    "like split, but by whole nodes: half of the nodes each, an odd node to the actor",
    "split@nodes",
    _split_nodes,
    lambda nodes: ["split@nodes"],
)
LEARNERS = Preset(
    "learners",
    "learners:L[,L…]+engines:E[xtpT]",
    "such as learners:2+engines:2, learners:2,1+engines:5 or learners:4+engines:2xtp2",
    "actor, ref, critic and reward on L devices of each node in turn; E engines of T devices generate on what is left",
    f"learners:(?P<learners>{_COUNT}(,\\s*{_COUNT})*)\\+engines:(?P<engines>{_COUNT})(xtp(?P<shared_by>{_COUNT}))?",
    _learners,
    _usual_learners,
)
DDP = Preset(
    "ddp",
    "ddp:N",
    "such as ddp:2",
    "N devices, each with a full replica of every model and its own rollouts; gradients are averaged",
    f"ddp:(?P<replicas>{_COUNT})",
    _ddp,
    _usual_replicas,
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
    """See that there are devices enough.

    Raises:
        UsageError: how many are needed, by which pools, and where those are that there are.
    """
    need, have = sum(wanted.values()), sum(nodes)
    if need > have:
        by = ", ".join(f"{pool} {count}" for pool, count in wanted.items())
        where = f" ({_by_node(nodes)})" if len(nodes) > 1 else ""
        raise UsageError(
            f"placement {shown(word)} needs {plural(need, 'device')} ({by}), there {_are(have)} {have}{where}: lower"
            " the counts or raise --devices"
        )


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _by_node(nodes: Nodes) -> str:
    return few((f"{have} on {where}" for where, have in on_nodes(nodes)), ", ")
