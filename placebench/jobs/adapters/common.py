"""What adapters have in common: how many devices of which node, and what none of the frameworks can be told."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from placebench.errors import Reasons
from placebench.jobs.adapter import AskedPlacement
from placebench.jobs.scripts import Given
from placebench.spec.placement import Overlap, Placement, Pool, Role
from placebench.spec.text import plural

RAY_LINES: Mapping[str, str] = {"RAY_DEDUP_LOGS": "0", "RAY_COLOR_PREFIX": "0"}
"""Variables that have Ray print lines of workers as they come, each once and without colors."""


def word(is_so: bool) -> str:
    """A truth as YAML and Hydra read it."""
    return str(is_so).lower()


def is_on(value: str) -> bool:
    """Whether a value is a truth, as Python, YAML and Hydra write it."""
    return value.lower() in ("true", "1", "yes")


def is_off(value: str) -> bool:
    """Whether a value is an untruth, or none at all, as they write it."""
    return value.lower() in ("false", "0", "no", "null", "none")


def unknown_critic(key: str) -> Callable[[Given], tuple[str, ...]]:
    """The remark on a command of which the advantage estimator, which stands under a key, is not known."""

    def remarks(given: Given) -> tuple[str, ...]:
        value = given.said.get(key, "")
        line = (
            f"{key} is {value}, which is known only when the job runs, and is taken to be gae: with an estimator that"
            " trains no critic, such as grpo, a critic's own pool stays idle."
        )
        return (line,) if "$" in value else ()

    return remarks


def per_node(pool: Pool) -> int:
    """Devices of a pool on each of its nodes, of which all have as many."""
    return max(pool.counts)


def node_count(pool: Pool) -> int:
    """Nodes on which a pool has devices."""
    return len(pool.nodes)


def apart(placement: Placement) -> frozenset[Role]:
    """Roles in other pools than the actor's, but for the rollout."""
    roles = placement.roles
    return frozenset(role for role in Role if role is not Role.ROLLOUT and roles[role] != roles[Role.ACTOR])


def by_node(placement: Placement) -> tuple[int, ...]:
    """Devices of each node that has some, those of all pools together."""
    nodes = zip(*(pool.counts for pool in placement.pools), strict=True)
    return tuple(count for count in map(sum, nodes) if count)


def shared_by(asked: AskedPlacement, *keys: str) -> int:
    """Devices that share an engine: as the placement says, else the command under one of these keys, else one."""
    return asked.placement.tensor_parallel or asked.given.number(*keys) or 1


def refuse(asked: AskedPlacement, framework: str, own: Iterable[str], nearest: str = "standard") -> None:
    """Refuse a placement that a framework cannot be told, for one that trains on GPUs and shards models itself.

    Args:
        asked: the placement, and what the command says.
        framework: its name in messages.
        own: the framework's own reasons.
        nearest: the word to use instead of replicas.

    Raises:
        UsageError: it cannot be told; a line for every reason.
    """
    reasons = Reasons()
    reasons.add(_impossible(asked, framework, nearest))
    if asked.placement.scaling is None:
        reasons.add(own)
    reasons.raise_any()


def _impossible(asked: AskedPlacement, framework: str, nearest: str) -> Iterator[str]:
    placement = asked.placement
    if asked.kind == "cpu":
        yield f"{framework} trains only on GPUs; name some with --devices"
    if placement.scaling is not None:
        yield f"{framework}'s own configuration decides how a model is sharded or replicated; nearest: {nearest}"
    if placement.overlap is not Overlap.ALL:
        yield f"{framework} has no setting for overlap={placement.overlap}; leave it out"
    engines = placement.roles[Role.ROLLOUT]
    if placement.has_engines and placement.roles_in(engines) != (Role.ROLLOUT,):
        yield f"{framework} puts nothing but engines on the engines' devices; leave only rollout in {engines}"


def uneven(placement: Placement, framework: str) -> Iterator[str]:
    """Pools that have other numbers of devices from node to node."""
    for pool in placement.pools:
        if len({count for count in pool.counts if count}) > 1:
            counts = ", ".join(map(str, pool.counts))
            yield f"{pool.name} has {counts} devices on its nodes, and {framework} needs the same number on every node"


def undivided(pool: Pool, size: int, setting: str) -> Iterator[str]:
    """Engines that do not divide the devices of their pool."""
    if pool.size % size:
        devices = plural(pool.size, "device")
        yield f"engines of {size} devices ({setting}) do not divide the {devices} of {pool.name}"


def not_taken_back(flags: Iterable[str]) -> Iterator[str]:
    """Switches without an opposite in the command, which a placement must not have."""
    if named := ", ".join(f"--{flag}" for flag in flags):
        yield f"the command gives {named}, which no argument can undo: take it out; placements that need it get it"
