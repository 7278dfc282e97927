"""A Ray of the launch's own on this host, in which it runs its workers."""

import logging
import os
import secrets
from collections.abc import Sequence
from typing import Any

from placebench.sessions.base import OneHost

# Seconds for which a process waits for a head that does not answer before Ray ends it; by default it is a minute.
HEAD_PATIENCE = ("RAY_gcs_rpc_server_reconnect_timeout_s", "10")


class RayCalls:
    """Answers of Ray's actors and tasks."""

    @property
    def error(self) -> type[Exception]:
        """Any error of Ray's."""
        from ray.exceptions import RayError

        return RayError

    @property
    def failed(self) -> type[Exception]:
        """The call has raised an exception."""
        from ray.exceptions import RayTaskError

        return RayTaskError

    @property
    def died(self) -> type[Exception]:
        """The actor has ended."""
        from ray.exceptions import ActorDiedError

        return ActorDiedError

    def get(self, answers: Sequence[Any], timeout_s: float | None = None) -> list[Any]:
        """What was answered, in order; see `Calls.get`."""
        import ray

        return list(ray.get(list(answers), timeout=timeout_s))

    def wait(self, answers: Sequence[Any], count: int = 1, timeout_s: float | None = None) -> list[Any]:
        """The answers that are there; see `Calls.wait`."""
        import ray

        return list(ray.wait(list(answers), num_returns=count, timeout=timeout_s)[0])


class OwnRay(OneHost):
    """A Ray that lives as long as the launch and takes nobody else's work.

    Args:
        folder: where it keeps its session.
        devices: how many workers there will be.
    """

    def __init__(self, folder: str, devices: int) -> None:
        self._folder, self._devices = folder, devices
        self.calls = RayCalls()

    def open(self) -> None:
        """Start it."""
        os.environ.setdefault(*HEAD_PATIENCE)
        # Ray reads its settings when it is imported.
        os.environ |= {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
            "RAY_COLOR_PREFIX": "0",
            # A token of its own keeps others out of this Ray; without one, Ray would leave a file in the user's home.
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }
        import ray

        ray.init(
            address="local",
            num_cpus=self._devices,
            num_gpus=0,  # workers bind to their device themselves, by UUID
            include_dashboard=False,
            logging_level=logging.WARNING,
            _temp_dir=self._folder,
            object_store_memory=1 << 29,
        )

    def start_worker(self, worker: type, pool: str, device: str, *arguments: Any) -> Any:
        """Start a worker; it binds to its device itself."""
        import ray

        return ray.remote(num_cpus=1, max_restarts=0)(worker).remote(*arguments)

    def explain(self, error: Exception, doing: str) -> Exception:
        """The error says it itself."""
        return error

    def close(self) -> None:
        """Stop it."""
        import ray

        ray.shutdown()
