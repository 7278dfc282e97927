"""Pools on the nodes of a shared cluster: a placement group each, its bundles bound to the nodes of the plan."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from placebench.errors import NodeLostError, PlacementTimeoutError
from placebench.sessions.ray_cluster.naming import live_nodes

_POLL_S = 1.0
_NODE_ID = "ray.io/node-id"  # Ray's own label of every node


class ReservedPool:
    """The devices of a pool, held for the launch.

    Args:
        name: the pool's.
        devices: how many devices it has on each node, by the node's name.
        on_gpus: whether the devices are GPUs.
        ray_ids: Ray's id of each node.
    """

    def __init__(self, name: str, devices: Mapping[str, int], on_gpus: bool, ray_ids: Mapping[str, str]) -> None:
        from ray.util.placement_group import placement_group

        self.name, self._devices, self._on_gpus = name, devices, on_gpus
        # One bundle a node, so that several nodes are several bundles, each on a node of its own.
        self.group = placement_group(
            [bundle(count, on_gpus) for count in devices.values()],
            strategy="STRICT_SPREAD" if len(devices) > 1 else "STRICT_PACK",
            bundle_label_selector=[{_NODE_ID: ray_ids[node]} for node in devices],
        )

    def describe(self) -> str:
        """What it asks for, in words."""
        unit = "GPU" if self._on_gpus else "CPU device"
        asked = [f"{count} {unit}{'s' * (count > 1)} on {node}" for node, count in self._devices.items()]
        return f"{self.name} ({' and '.join(asked)})"

    def worker_options(self, node: str) -> dict[str, Any]:
        """Ray's options for a worker of the pool on a node."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return {
            "num_cpus": 1,
            "num_gpus": int(self._on_gpus),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self.group, list(self._devices).index(node)),
        }


def bundle(count: int, on_gpus: bool) -> dict[str, float]:
    """What Ray has to hold free on a node for so many devices."""
    return {"CPU": float(count)} | ({"GPU": float(count)} if on_gpus else {})


def wait_until_reserved(pools: Sequence[ReservedPool], ray_ids: Mapping[str, str], timeout_s: float) -> None:
    """Wait for the devices of all pools.

    Args:
        pools: as they were asked for.
        ray_ids: Ray's id of each node that has a pool.
        timeout_s: seconds to wait at most.

    Raises:
        NodeLostError: a node has left the cluster.
        PlacementTimeoutError: the devices are not free in time.
    """
    import ray

    deadline = time.monotonic() + timeout_s
    pending = {pool.group.ready(): pool for pool in pools}
    while pending:
        refuse_lost_nodes(ray_ids)
        left = deadline - time.monotonic()
        if left <= 0:
            raise PlacementTimeoutError(
                f"{', '.join(pool.describe() for pool in pending.values())}: not free within {timeout_s:g} s: other"
                " work holds them (see ray status); wait for it, or raise --placement-timeout"
            )
        ready, _ = ray.wait(list(pending), timeout=min(left, _POLL_S))
        for reference in ready:
            pending.pop(reference)


def refuse_lost_nodes(ray_ids: Mapping[str, str]) -> None:
    """Check that the nodes of the plan are there.

    Raises:
        NodeLostError: one has left the cluster since the run was checked.
    """
    there = {node["NodeID"] for node in live_nodes()}
    gone = [name for name, ray_id in ray_ids.items() if ray_id not in there]
    if gone:
        raise NodeLostError(
            f"node {' and '.join(gone)} has left the Ray cluster since the run was checked: bring it back, or start a"
            " run on the other nodes"
        )
