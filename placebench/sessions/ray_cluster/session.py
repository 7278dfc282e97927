"""A launch in somebody else's Ray: joined, used on the nodes of the plan, and left as it was."""

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from placebench.errors import NodeLostError, PlacementTimeoutError, UsageError
from placebench.record.folder import Trial
from placebench.sessions.own_ray import HEAD_PATIENCE, RayCalls, name_dead_worker
from placebench.sessions.ray_cluster.discovery import Cluster, refuse_unreachable
from placebench.sessions.ray_cluster.follower import Follower
from placebench.sessions.ray_cluster.node import NodeAgent, allotted_gpus
from placebench.sessions.ray_cluster.on_nodes import OnNodes
from placebench.sessions.ray_cluster.pools import ReservedPool, refuse_lost_nodes, wait_until_reserved
from placebench.sessions.ray_cluster.probe import connection_error
from placebench.telemetry.spans import CONTROLLER, SpanClock


class SharedRay(OnNodes):
    """An existing cluster, as one launch uses it.

    Args:
        cluster: its address and nodes.
        devices: objects of `launch.json` by the device's id.
        trial: the launch's folder.
        hz: device samples a second; 0 for none.
        clock: the controller's clock.
    """

    # The runner gives the whole job three seconds to end.
    answer_s, patience_s, poll_s = 1.0, 0.5, 0.5
    look_at = "ray status"

    def __init__(
        self,
        cluster: Cluster,
        devices: Mapping[str, Mapping[str, Any]],
        trial: Trial,
        hz: float,
        clock: SpanClock,
    ) -> None:
        self._cluster, self._devices, self._trial, self._hz, self._clock = cluster, devices, trial, hz, clock
        used = {str(device["node"]) for device in devices.values()}
        self._nodes = {node.name: node for node in cluster.nodes if node.name in used}
        self._ray_ids = {name: node.ray_id for name, node in self._nodes.items()}
        self._agents: dict[str, Any] = {}
        self._pools: dict[str, ReservedPool] = {}
        self._workers: dict[str, Any] = {}
        self._follower: Follower | None = None
        self._home: str | None = None

    def open(self) -> None:
        """Join the cluster and start an agent on each node of the launch.

        Raises:
            NodeLostError: the cluster cannot be joined any more, or a node of the plan has left it.
        """
        # Without the last, a late call of a thread would start a Ray of its own.
        os.environ |= {"RAY_DEDUP_LOGS": "0", "RAY_COLOR_PREFIX": "0", "RAY_ENABLE_AUTO_CONNECT": "0"}
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "3")
        os.environ.setdefault(*HEAD_PATIENCE)
        import ray

        self.calls = RayCalls()
        try:
            refuse_unreachable(self._cluster.address)
            ray.init(address=self._cluster.address, logging_level=logging.WARNING)
        except UsageError as error:
            raise NodeLostError(str(error)) from None  # it answered when the run was checked
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise NodeLostError(f"--ray-address {self._cluster.address}: {connection_error(error)}") from error
        refuse_lost_nodes(self._ray_ids)
        own_id = ray.get_runtime_context().get_node_id()
        self._home = next((name for name, ray_id in self._ray_ids.items() if ray_id == own_id), None)
        self._agents = {name: self._start_agent(name) for name in self._nodes}
        if self._home is not None:
            self._agents[self._home].register.remote(os.getpid(), CONTROLLER)
        self._follower = Follower(self._trial, self._agents, self._home, self._clock, self.calls)
        self._follower.start()

    def _start_agent(self, node: str) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        devices = [device for device in self._devices.values() if device["node"] == node]
        affinity = NodeAffinitySchedulingStrategy(self._ray_ids[node], soft=False)
        options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "scheduling_strategy": affinity}
        return ray.remote(**options)(NodeAgent).remote(devices, self._hz)

    def reserve(self, pools: Mapping[str, Sequence[str]]) -> None:
        """Hold the devices of every pool on their nodes.

        Raises:
            NodeLostError: a node has left the cluster.
            PlacementTimeoutError: the devices are not free in time.
        """
        for pool, devices in pools.items():
            counts = Counter(str(self._devices[device]["node"]) for device in devices)
            on_gpus = self._devices[devices[0]]["kind"] == "gpu"
            self._pools[pool] = ReservedPool(pool, counts, on_gpus, self._ray_ids)
        wait_until_reserved(tuple(self._pools.values()), self._ray_ids, self._cluster.placement_timeout_s)

    def start_worker(self, worker: type, pool: str, device: str, *arguments: Any) -> Any:
        """Start a worker on the node of its device."""
        import ray

        options = self._pools[pool].worker_options(self._devices[device]["node"])
        self._workers[device] = ray.remote(max_restarts=0, **options)(worker).remote(*arguments)
        return self._workers[device]

    def confirm_devices(self) -> None:
        """Check that Ray has given this launch the very GPUs of the plan; Ray knows no CPU devices apart.

        Raises:
            PlacementTimeoutError: other work of the cluster holds one of them.
        """
        import ray

        allotted = ray.get([worker.__ray_call__.remote(allotted_gpus) for worker in self._workers.values()])
        given = {uuid for uuids in allotted for uuid in uuids}
        for name in self._nodes:
            planned = [device for device in self._devices.values() if device["node"] == name]
            held = [
                f"gpu:{device['index']} ({device['id']})"
                for device in planned
                if device["kind"] == "gpu" and device["id"] not in given
            ]
            if held:
                raise PlacementTimeoutError(
                    f"node {name}: other work of the cluster holds {', '.join(held)}: wait for it, or hide these"
                    " GPUs with CUDA_VISIBLE_DEVICES where Ray is started there"
                )

    def explain(self, error: Exception, doing: str) -> Exception:
        """A node that is gone, where one is: whatever failed, failed for that."""
        name_dead_worker(error, self._workers)
        return super().explain(error, doing)

    def close(self) -> None:
        """End the launch's workers, agents and placement groups; the cluster goes on."""
        import ray
        from ray.util.placement_group import remove_placement_group

        self._end_all(self._workers.values(), ray.kill)
        for pool in self._pools.values():
            remove_placement_group(pool.group)
        ray.shutdown()
