"""A launch in somebody else's Ray: joined, used on the nodes of the plan, and left as it was."""

import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from placebench.errors import NodeLostError, PlacebenchError, PlacementTimeoutError, UsageError
from placebench.record.folder import Trial
from placebench.sessions.own_ray import HEAD_PATIENCE, RayCalls, name_dead_worker
from placebench.sessions.ray_cluster.discovery import Cluster, refuse_unreachable
from placebench.sessions.ray_cluster.follower import Follower
from placebench.sessions.ray_cluster.node import NodeAgent, allotted_gpus
from placebench.sessions.ray_cluster.pools import ReservedPool, refuse_lost_nodes, wait_until_reserved
from placebench.sessions.ray_cluster.probe import connection_error
from placebench.telemetry.spans import CONTROLLER, SpanClock

# How long agents have to answer when the launch has failed or ends: the runner gives the whole job three seconds.
_ANSWER_S = 1.0
_PATIENCE_S = 0.5
# What fails first when a node dies is a connection between workers; its agent may answer for a moment longer.
_WATCH_S = 3.0
_POLL_S = 0.5
_SILENT_AFTER_S = 5.0


class SharedRay:
    """An existing cluster, as one launch uses it.

    Args:
        cluster: its address and nodes.
        devices: objects of `launch.json` by the device's id.
        trial: the launch's folder.
        hz: device samples a second; 0 for none.
        clock: the controller's clock.
    """

    def __init__(
        self,
        cluster: Cluster,
        devices: Mapping[str, Mapping[str, Any]],
        trial: Trial,
        hz: float,
        clock: SpanClock,
    ) -> None:
        self.calls = RayCalls()
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

    def host_of(self, device: str) -> str:
        """The address of the device's node."""
        return self._nodes[self._devices[device]["node"]].address

    def register(self, pid: int, device: str) -> None:
        """Tell the agent of the process's node; the controller's is told by `open`."""
        if device == CONTROLLER:
            return
        self._agents[self._devices[device]["node"]].register.remote(pid, device)

    def confirm_devices(self) -> None:
        """Check that Ray has given this launch the very GPUs of the plan; CPU devices are not told apart by Ray.

        Raises:
            PlacementTimeoutError: other work of the cluster holds one of them.
        """
        import ray

        given: set[str] = set()
        for uuids in ray.get([worker.__ray_call__.remote(allotted_gpus) for worker in self._workers.values()]):
            given.update(uuids)
        for name in self._nodes:
            planned = [device for device in self._devices.values() if device["node"] == name]
            held = [str(device["index"]) for device in planned if device["kind"] == "gpu" and device["id"] not in given]
            if held:
                raise PlacementTimeoutError(
                    f"node {name}: other work of the cluster holds GPU {', '.join(held)}: wait for it, or hide these"
                    " GPUs with CUDA_VISIBLE_DEVICES where Ray is started there"
                )

    def on_one_clock(self, spans: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Spans of any device, with their times on the controller's clock."""
        assert self._follower is not None, "spans come from workers, which start after it"
        return self._follower.table.shift_spans(spans, self._devices)

    def explain(self, error: Exception, doing: str) -> Exception:
        """A node that is gone, where one is: whatever failed, failed for that."""
        name_dead_worker(error, self._workers)
        if isinstance(error, PlacebenchError) or not self._agents:
            return error
        deadline = time.monotonic() + _WATCH_S
        while not (silent := self._silent_nodes()):
            if time.monotonic() > deadline:
                return error
            time.sleep(_POLL_S)
        devices = [device for device, content in self._devices.items() if content["node"] in silent]
        return NodeLostError(
            f"node {' and '.join(silent)} was lost during {doing}, and with it {', '.join(devices)}: see ray status"
        )

    def _silent_nodes(self) -> list[str]:
        """Nodes whose agents do not answer."""
        import ray

        asked = {agent.now.remote(): name for name, agent in self._agents.items()}
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_SILENT_AFTER_S)
        return [name for reference, name in asked.items() if reference not in answered or not _succeeded(reference)]

    def close(self) -> None:
        """End the launch's workers, agents and placement groups; the cluster goes on."""
        import ray
        from ray.util.placement_group import remove_placement_group

        processes = self._ask("workers")
        for worker in self._workers.values():
            ray.kill(worker)
        last = self._ask("finish", processes)
        if self._follower is not None:
            self._follower.stop(last)
        for agent in self._agents.values():
            ray.kill(agent)
        for pool in self._pools.values():
            remove_placement_group(pool.group)
        ray.shutdown()

    def _ask(self, method: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What the agents that still answer say, by node."""
        import ray

        pending = {
            (
                getattr(agent, method).remote()
                if arguments is None
                else getattr(agent, method).remote(arguments[name], _PATIENCE_S)
            ): name
            for name, agent in self._agents.items()
            if arguments is None or name in arguments
        }
        if not pending:
            return {}
        done, _ = ray.wait(list(pending), num_returns=len(pending), timeout=_ANSWER_S + 2 * _PATIENCE_S)
        return {pending[reference]: ray.get(reference) for reference in done if _succeeded(reference)}


def _succeeded(reference: Any) -> bool:
    """Whether a call that has ended has a result; without one, its actor is gone."""
    import ray

    try:
        ray.get(reference)
    except ray.exceptions.RayError:
        return False
    return True
