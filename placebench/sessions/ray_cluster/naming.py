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
    names = [_given_name(node) or str(node["NodeManagerHostname"]) for node in nodes]
    names = [
        str(node["NodeManagerAddress"]) if names.count(name) > 1 else name
        for name, node in zip(names, nodes, strict=True)
    ]
    return [
        f"{name}-{node['NodeID'][:8]}" if names.count(name) > 1 else name
        for name, node in zip(names, nodes, strict=True)
    ]


def _given_name(node: Mapping[str, Any]) -> str | None:
    """The name given at the node's start; Ray's default for it is the address."""
    name = str(node.get("NodeName") or "")
    return name if name and name != node["NodeManagerAddress"] else None
