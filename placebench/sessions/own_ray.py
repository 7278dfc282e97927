"""A Ray of the launch's own on this host, in which it runs its workers."""

import logging
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from placebench.errors import LaunchError, WorkerFault, mark_fault
from placebench.host import fork_client
from placebench.host.processes import LaunchMark, frozen, kill_processes, launch_processes
from placebench.sessions.base import OneHost

# Seconds for which a process waits for a head that does not answer before Ray ends it; by default it is a minute.
HEAD_PATIENCE = ("RAY_gcs_rpc_server_reconnect_timeout_s", "10")
OBJECT_STORE_BYTES = 1 << 29
_SETUP_NAME = "SETUP_WORKER_FILENAME"
RAY_NOT_STARTED = "Ray did not start"
# What Ray's processes write into their logs when they give up: in C++, in Python, and when they have waited for others.
_LAST_WORDS = (
    re.compile(r"what\(\): (.+?)(?: /\S+\(\+0x\w+\).*)?$", re.MULTILINE),
    # An agent whose port another process has goes on without it, and writes this all the same.
    re.compile(
        r"^Traceback \(most recent call last\):\n(?:\s.*\n)+(?!.*address already in use)(\S.+)$",
        re.MULTILINE | re.IGNORECASE,
    ),
    re.compile(r"Check failed: (?:\S+\(\) )?(.+?)(?: /\S+\(\+0x\w+\).*)?$", re.MULTILINE),
)


class RayCalls:
    """Answers of Ray's actors and tasks; made once Ray may be imported.

    Attributes:
        error, failed, died: see `placebench.sessions.base.Calls`.
    """

    def __init__(self) -> None:
        from ray.exceptions import ActorDiedError, RayError, RayTaskError

        self.error: type[Exception] = RayError
        self.failed: type[Exception] = RayTaskError
        self.died: type[Exception] = ActorDiedError

    def get(self, answers: Sequence[Any], timeout_s: float | None = None) -> list[Any]:
        """What was answered, in order; see `Calls.get`."""
        import ray

        return list(ray.get(list(answers), timeout=timeout_s))

    def wait(self, answers: Sequence[Any], count: int = 1, timeout_s: float | None = None) -> list[Any]:
        """The answers that are there; see `Calls.wait`."""
        import ray

        return list(ray.wait(list(answers), num_returns=count, timeout=timeout_s)[0])


def name_dead_worker(error: BaseException, workers: Mapping[str, Any]) -> None:
    """Let an error that says that an actor's process is gone carry the device whose worker it was.

    Args:
        error: what ended the launch.
        workers: the actors by device.
    """
    gone = None if getattr(error, "actor_init_failed", False) else getattr(error, "actor_id", None)
    for device, worker in workers.items():
        if worker._actor_id.hex() == gone:
            mark_fault(error, WorkerFault(device, has_died=True))


def _last_words(folder: Path) -> str | None:
    """Why a process of a Ray that did not start gave up, by its logs; None where they do not say it."""
    logs = [path.read_text(errors="replace") for path in sorted(folder.glob("session_latest/logs/*.*"))]
    return next((found[1] for words in _LAST_WORDS for text in logs if (found := words.search(text))), None)


@contextmanager
def _nothing_unused() -> Iterator[None]:
    """Keep the Ray started inside from starting what nobody asks: its autoscaler and the head of its dashboard.

    Ray has no setting for it. The head is started without a dashboard too, and waited for. Each is a Python that
    imports Ray. A version of Ray that starts them in another way starts them.
    """
    from ray._private.node import Node

    starts = {name: getattr(Node, name) for name in ("start_monitor", "start_api_server") if hasattr(Node, name)}
    try:
        for name in starts:
            setattr(Node, name, lambda *_, **__: None)
        yield
    finally:
        for name, start in starts.items():
            setattr(Node, name, start)


@contextmanager
def _forked_workers(server: str | None) -> Iterator[None]:
    """Let the Ray started inside have its workers forked by a server.

    Ray has no setting for the script that its workers start with. It is told by the name of the script, which may be a
    path. In a version of Ray that names it otherwise, workers start as new interpreters.

    Args:
        server: its word, see `placebench.host.fork_client`; None for Ray's own way.
    """
    from ray._private import ray_constants

    name = getattr(ray_constants, _SETUP_NAME, None)
    script = Path(ray_constants.__file__).parent / "workers" / str(name)
    if server is None or not script.is_file():
        if server:
            print(f"{script}: no such file, so workers start as new interpreters instead of being forked", flush=True)
        yield
        return
    os.environ |= {fork_client.ADDRESS_VARIABLE: server, fork_client.INSTEAD_VARIABLE: str(script)}
    setattr(ray_constants, _SETUP_NAME, fork_client.__file__)
    try:
        yield
    finally:
        setattr(ray_constants, _SETUP_NAME, name)


class OwnRay(OneHost):
    """A Ray that lives as long as the launch and takes nobody else's work.

    Args:
        folder: where it keeps its session.
        devices: how many workers there will be.
        fork_server: the word of the server that they are forked from, see `placebench.host.fork_client`; None for new
            interpreters.
    """

    ends_all_at_once = True

    def __init__(self, folder: str, devices: int, fork_server: str | None = None) -> None:
        self._folder, self._devices, self._fork_server = folder, devices, fork_server
        self._workers: dict[str, Any] = {}
        self._is_in_order = True

    def open(self) -> None:
        """Start it.

        Raises:
            LaunchError: it does not start.
        """
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

        try:
            with _nothing_unused(), _forked_workers(self._fork_server):
                ray.init(
                    address="local",
                    num_cpus=self._devices,
                    num_gpus=0,  # workers bind to their device themselves, by UUID
                    include_dashboard=False,
                    logging_level=logging.WARNING,
                    _temp_dir=self._folder,
                    object_store_memory=OBJECT_STORE_BYTES,
                )
        except Exception as error:  # a plain one where it has waited in vain for a process of its own
            said = _last_words(Path(self._folder)) or str(error).partition("\n")[0]
            raise LaunchError(f"{RAY_NOT_STARTED}: {said}") from error
        self.calls = RayCalls()

    def start_worker(self, worker: type, pool: str, device: str, *arguments: Any) -> Any:
        """Start a worker; it binds to its device itself."""
        import ray

        self._workers[device] = ray.remote(num_cpus=1, max_restarts=0)(worker).remote(*arguments)
        return self._workers[device]

    def register(self, pid: int, device: str) -> None:
        """Say in the log which worker should have been forked and was not."""
        if self._fork_server and pid != os.getpid() and not fork_client.is_forked(pid):
            print(f"the worker of {device} was not forked: it has started as a new interpreter", flush=True)

    def explain(self, error: Exception, doing: str) -> Exception:
        """The error says it itself, but for the device."""
        self._is_in_order = False
        name_dead_worker(error, self._workers)
        return error

    def close(self) -> None:
        """End it; this process can use no Ray any more and ends by `os._exit`.

        Ray takes one to two seconds to stop what nobody needs any more. After an error it gets them, since that is how
        the last words of its workers come into the log.
        """
        import ray

        if not self._is_in_order:
            ray.shutdown()
        mark = LaunchMark(secrets.token_hex(16), Path(self._folder))  # known by its folder alone
        with frozen(lambda: launch_processes(mark)):  # else those killed last would complain of those killed first
            kill_processes(lambda: launch_processes(mark))
