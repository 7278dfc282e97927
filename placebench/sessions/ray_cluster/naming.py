"""The live nodes of a Ray cluster and what a person calls them."""

from collections.abc import Mapping, Sequence
from typing import Any


def live_nodes() -> list[dict[str, Any]]:
    """The nodes that Ray holds for alive, as it describes them; a connection to the cluster is there."""
    import ray

    nodes: list[dict[str, Any]] = ray.nodes()
    return [node for node in nodes if node["Alive"]]


def node_names(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each node: that of `ray start --node-name`, else the host's name, else the address.

    Where several nodes would share it, as on one machine, the beginning of Ray's id follows.

    Args:
        nodes: live nodes as Ray describes them.
    """
    # Ray's default for a name given at the start is the address.
    given = [str(node.get("NodeName") or node["NodeManagerAddress"]) for node in nodes]
    names = [
        str(node["NodeManagerHostname"]) if name == node["NodeManagerAddress"] else name
        for name, node in zip(given, nodes, strict=True)
    ]
    names = [
        str(node["NodeManagerAddress"]) if names.count(name) > 1 else name
        for name, node in zip(names, nodes, strict=True)
    ]
    return [
        f"{name}-{node['NodeID'][:8]}" if names.count(name) > 1 else name
        for name, node in zip(names, nodes, strict=True)
    ]
