"""The spans of this process, in `$PLACEBENCH_SPANS/<host>-<pid>.jsonl`: one object a line, told apart by `kind`.

- `process`, the first line: `pid`, `ppid`, `host`, `argv` (its first words), `python`, `cores` (that it may run on),
  `wall_offset` (add it to a time for seconds since the epoch), `ray_node` (id of its node in Ray, if it has one),
  `ray_gpus` and `ray_actor` (of a worker of Ray's: the GPUs that Ray has allotted to it, and its name if it has one),
  and `environment`: the variables that say what it is.
  A process whose number is used again begins anew in the same file.
- `device`: `device`, the UUID of the GPU that torch has a context on here, as soon as there is one.
- `span`: `name`, `source` (see below), `start` and `end` in seconds of the host's monotonic clock.
- `note`: `text`, what the user should know, such as a framework whose timers are not as expected.

Sources are `timer`, what the framework itself times and logs; `worker`, a method that a worker was called by;
`engine`, an inference engine at work.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import sys
import threading
import time
from typing import Any

TIMER, WORKER, ENGINE = "timer", "worker", "engine"

_SAYING = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "RAY_LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "WG_PREFIX",
    "ACTOR_NAME", "SLURMD_NODENAME",
)  # fmt: skip
_LONGEST_NAME = 200


class SpanFile:
    """The file of this process, or of whichever process a fork has made of it.

    Args:
        folder: where it lies; None writes nothing.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._descriptor = -1
        self._identity: Any = None
        self._has_device = False
        os.register_at_fork(after_in_child=self._begin_anew)

    def write(self, line: str | None = None) -> None:
        """Append a line, an object of JSON, after those that say what the process is.

        Whatever is in the way ends the writing, not the job.

        Args:
            line: None for those alone.
        """
        if self._folder is None:
            return
        try:
            descriptor = self._open()
            if not self._has_device:
                self._write_device(descriptor)
            if line is not None:
                _append(descriptor, line)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not break the job that is watched
            self._folder = None
            sys.stderr.write(f"placebench: no more spans from process {os.getpid()}: {error!r}\n")

    def _open(self) -> int:
        """The file's descriptor: opened first here, and again where the job has closed what it did not know."""
        with self._lock:
            if self._descriptor < 0 or _identity(self._descriptor) != self._identity:
                path = os.path.join(str(self._folder), f"{socket.gethostname()}-{os.getpid()}.jsonl")
                self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
                self._identity = _identity(self._descriptor)
                self._has_device = False
                _append(self._descriptor, json.dumps(_process()))
        return self._descriptor

    def _write_device(self, descriptor: int) -> None:
        torch = sys.modules.get("torch")
        # torch is asked of its GPU only where it uses one: to ask earlier would make a context that the job has not.
        if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
            return
        try:
            index = torch.cuda.current_device()
            # A controller that has but seeded torch or counted GPUs would name the first of all it sees: nothing public
            # says whether it has a context.
            if not torch._C._cuda_hasPrimaryContext(index):
                return
            device = f"GPU-{torch.cuda.get_device_properties(index).uuid}"
            line = json.dumps({"kind": "device", "device": device})
        except (AttributeError, RuntimeError) as error:  # an older torch, or a GPU that is lost
            line = _note(f"torch does not say which GPU it uses: {error}")
        self._has_device = True
        _append(descriptor, line)

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._descriptor = -1


def _append(descriptor: int, line: str) -> None:
    os.write(descriptor, f"{line}\n".encode())


def _identity(descriptor: int) -> Any:
    """Which file a descriptor is of; None for a closed one."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _process() -> dict[str, Any]:
    return {
        "kind": "process",
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "host": socket.gethostname(),
        "argv": [str(word)[:_LONGEST_NAME] for word in getattr(sys, "argv", [])[:2]],
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "cores": sorted(os.sched_getaffinity(0)),
        "wall_offset": time.time() - time.monotonic(),
        **_in_ray(),
        "environment": {name: os.environ[name] for name in _SAYING if name in os.environ},
    }


def _in_ray() -> dict[str, Any]:
    """Where the process is in Ray, if it is in one: nobody else knows it of workers of a cluster."""
    ray: Any = sys.modules.get("ray")
    found: dict[str, Any] = {}
    try:
        if ray is not None and ray.is_initialized():
            context = ray.get_runtime_context()
            found["ray_node"] = context.get_node_id()
            if context.worker.mode == ray.WORKER_MODE:
                found["ray_gpus"] = context.get_accelerator_ids().get("GPU", [])
                found["ray_actor"] = context.get_actor_name() or None
    except Exception:  # noqa: BLE001 - an older Ray, or one that is ending: the rest is not known then
        return found
    return found


FILE = SpanFile(os.environ.get("PLACEBENCH_SPANS"))


@functools.lru_cache(maxsize=1024)
def _quoted(name: str) -> str:
    return json.dumps(name[:_LONGEST_NAME])


def emit(name: object, source: str, start: float, end: float) -> None:
    """Write a span, its ends in seconds of `time.monotonic()`."""
    ends = f'"start": {start:.6f}, "end": {end:.6f}'
    FILE.write(f'{{"kind": "span", "name": {_quoted(str(name))}, "source": "{source}", {ends}}}')


def introduce() -> None:
    """Write what this process is, and the GPU that it uses."""
    FILE.write()


def note(text: str) -> None:
    """Write what the user should know of this process's spans."""
    FILE.write(_note(text))


def _note(text: str) -> str:
    return json.dumps({"kind": "note", "text": text})


_STEP = "step"


class _OpenSteps(threading.local):
    """How many spans of whole steps are open in a thread."""

    count = 0


_OPEN = _OpenSteps()


class SpanOfBody:
    """A context manager whose body becomes a span; one that raises, too.

    Of steps within each other the outermost is one.
    """

    __slots__ = ("_name", "_source", "_start")

    def __init__(self, name: object, source: str = TIMER) -> None:
        self._name, self._source, self._start = name, source, 0.0

    def __enter__(self) -> SpanOfBody:
        if self._name == _STEP:
            _OPEN.count += 1
        self._start = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        end = time.monotonic()
        if self._name == _STEP:
            _OPEN.count -= 1
            if _OPEN.count:
                note("steps are marked within steps: only the outermost ones count")
                return
        emit(self._name, self._source, self._start, end)
