"""`python -m placebench.sessions.ray_cluster.probe ADDRESS [SPEC]`: asks each node of a Ray cluster for its devices.

Prints one JSON object as its last line: `nodes`, or `error` when there is no cluster to ask.
"""

import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from placebench.sessions.ray_cluster.naming import live_nodes, node_names
from placebench.version import __version__

_TASK_TIMEOUT_S = 45.0


def probe(address: str, spec: str | None) -> dict[str, Any]:
    """Connect and ask."""
    # The port answers, so what Ray tries 20 times, a second apart, does not get better: a wrong token above all.
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "3")
    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except (ConnectionError, RuntimeError, ValueError) as error:
        return {"error": connection_error(error)}
    alive = live_nodes()
    named = sorted(zip(node_names(alive), alive, strict=True), key=lambda item: item[0])
    return {"nodes": _ask(named, spec)}


def connection_error(error: Exception) -> str:
    """Why a cluster cannot be joined, in one line."""
    if "InvalidAuthToken" in f"{error} {error.__cause__}":
        return (
            "the cluster asks for a token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH as where"
            " the cluster was started"
        )
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return f"cannot join the cluster: {first}; start placebench on one of its nodes"


def _ask(nodes: Sequence[tuple[str, Mapping[str, Any]]], spec: str | None) -> list[dict[str, Any]]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # Defined here, so that Ray sends its code and not the name of a module that a node may lack.
    def look(name: str, version: str, spec: str | None) -> dict[str, Any]:
        try:
            from importlib import import_module

            there = import_module("placebench").__version__  # every version of the package has it there
            from placebench.sessions.ray_cluster.node import look_here
        except ImportError as error:
            return {"error": f"placebench cannot be imported there ({error}): install placebench[run] as on this host"}
        if there != version:
            return {"error": f"placebench there is {there}, here {version}: install the same version on every node"}
        return look_here(name, spec)

    task = ray.remote(num_cpus=0, max_retries=0)(look)
    pending = [
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
            name, __version__, spec
        )
        for name, node in nodes
    ]
    done, _ = ray.wait(pending, num_returns=len(pending), timeout=_TASK_TIMEOUT_S)
    return [
        {
            "name": name,
            "ray_id": node["NodeID"],
            "address": node["NodeManagerAddress"],
            "cpus": node["Resources"].get("CPU", 0.0),
            "gpus": node["Resources"].get("GPU", 0.0),
            **(_result(reference) if reference in done else {"error": "it has not answered: look at ray status"}),
        }
        for (name, node), reference in zip(nodes, pending, strict=True)
    ]


def _result(reference: Any) -> dict[str, Any]:
    import ray

    try:
        answer: dict[str, Any] = ray.get(reference)
    except ray.exceptions.RayError as error:
        return {"error": f"it cannot be asked: {str(error).strip().splitlines()[-1]}"}
    return answer


if __name__ == "__main__":
    print(json.dumps(probe(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)))
