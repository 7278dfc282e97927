"""Runs generated code where it can do no harm: a process of its own that can compute, and little else.

The process limits itself before it reads the code (`guard`): Landlock lets it read Python's own files alone, a seccomp
filter lets it call what computing needs and nothing that opens files for writing, sockets, processes or signals, and
resource limits bound its CPU time and memory. Its environment is empty. None of this takes a privilege, so that it
works in containers; where the kernel does not offer it, code is not run at all.
"""

import json
import os
import selectors
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from placebench.errors import LaunchError
from placebench.tasks.sandbox.guard import READY

_GUARD = Path(__file__).with_name("guard.py")
# -P keeps the script's folder out, -S and -s installed packages; the hash seed lets sets come in one order.
_PYTHON = (sys.executable, "-P", "-s", "-S", "-B")
_ENVIRONMENT = {"PYTHONHASHSEED": "0"}
# Where the shared libraries are that modules of the standard library load.
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
# What is installed beside the standard library: placebench itself, with the problems' solutions, may be in there.
_INSTALLED = ("site-packages", "dist-packages")


class End(StrEnum):
    """How a sandboxed process ended."""

    EXITED = "exited"
    CUT_OFF = "cut off"
    """It wrote more than it may."""
    TIMEOUT = "timeout"
    """It took longer than it may by the clock."""


@dataclass(frozen=True)
class Limits:
    """What sandboxed code may use."""

    cpu_s: int = 2
    """Seconds of CPU time, whole ones."""
    wall_s: float = 20.0
    """Seconds by the clock, starting included; well above `cpu_s`, so that a busy host changes no result."""
    memory_bytes: int = 512 << 20
    """Bytes of address space."""
    output_bytes: int = 64 << 10
    """Bytes that are read of what it writes."""


@dataclass(frozen=True)
class Evaluation:
    """What became of sandboxed code."""

    end: End
    """How its process ended."""
    values: tuple[Any, ...]
    """Values of the expressions, in order, as JSON values; those after the first that ended the process are missing. An
    expression that raised, or whose value JSON does not know, has none: its entry is a `Failure`."""


class Failure:
    """In place of the value of an expression that has none."""


def evaluate(code: str, expressions: Sequence[str], limits: Limits | None = None) -> Evaluation:
    """Run code and evaluate expressions behind it, isolated.

    Args:
        code: Python statements.
        expressions: evaluated in the code's namespace, one after the other.
        limits: what it may use.

    Raises:
        LaunchError: this host cannot isolate it; nothing has been run.
    """
    limits = limits or Limits()
    with tempfile.TemporaryFile() as job:
        content = {
            "judge": os.getpid(),
            "code": code,
            "expressions": list(expressions),
            "readable": _readable(),
            "limits": asdict(limits),
        }
        job.write(json.dumps(content).encode())
        job.seek(0)
        process = subprocess.Popen(
            [*_PYTHON, str(_GUARD)],
            stdin=job,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=_ENVIRONMENT,
            start_new_session=True,
        )
    with process:
        try:
            end, written = _read(process, limits)
        finally:
            process.kill()
    if not written.startswith(READY):
        reason = written.decode(errors="replace").strip() or f"its process {end} before it was ready"
        raise LaunchError(f"generated code cannot be isolated here: {reason}")
    lines = written.removeprefix(READY).splitlines()
    return Evaluation(end, tuple(_value(line) for line in lines[: len(expressions)]))


def _readable() -> list[str]:
    """The standard library and shared libraries, and nothing that is installed beside them.

    A right to a folder is one to all in it, so that folders which hold more than that are named entry by entry.
    """
    # In a virtual environment, `platbase` is the environment, whose own folder has nothing but what is installed.
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    standard = dict.fromkeys(sysconfig.get_path(name, vars=base) for name in ("stdlib", "platstdlib"))
    entries = [entry for folder in standard for entry in Path(folder).glob("*") if entry.name not in _INSTALLED]
    for library in dict.fromkeys(os.path.realpath(folder) for folder in _LIBRARIES):
        shared = (entry for pattern in ("*.so", "*.so.[0-9]*") for entry in Path(library).glob(pattern))
        entries += (entry for entry in shared if os.path.isfile(entry))
        # Debian and its kin keep a machine's shared libraries, and nothing of Python's, in a folder of their own.
        entries += Path(library).glob("*-linux-gnu*")
    return [str(entry) for entry in (*entries, Path("/etc/ld.so.cache")) if os.path.exists(entry)]


def _read(process: "subprocess.Popen[bytes]", limits: Limits) -> tuple[End, bytes]:
    """What the process writes until it ends, or has to; it still runs when this returns early."""
    assert process.stdout is not None, "its output is a pipe"
    written, deadline = b"", time.monotonic() + limits.wall_s
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while len(written) <= limits.output_bytes:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return End.TIMEOUT, written
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                # It may have closed its output and go on.
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
                    return End.EXITED, written
                return End.TIMEOUT, written
            written += part
    return End.CUT_OFF, written[: limits.output_bytes]


def _value(line: bytes) -> Any:
    """The value that a line holds; code can write lines, too, so that nothing is expected of them."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return Failure()
    return value[0] if isinstance(value, list) and len(value) == 1 else Failure()


def why_unavailable() -> str | None:
    """Why this host cannot isolate code, in one line; None when it can."""
    try:
        evaluation = evaluate("", ["1"])
    except LaunchError as error:
        return str(error)
    return None if evaluation.values == (1,) else "generated code cannot be isolated here: Python does not run in there"
