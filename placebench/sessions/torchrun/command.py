"""The command that starts torchrun on a node, its environment, and its end."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from placebench.host import child
from placebench.record.writing import append_to

RANK = "placebench.sessions.torchrun.rank"


def torchrun_command(folder: str, ranks: int, rendezvous: Sequence[str]) -> list[str]:
    """The command for the ranks of one node.

    Args:
        folder: where torchrun keeps what it writes; it removes nothing of that itself.
        ranks: processes to start here.
        rendezvous: options that say where the nodes' torchruns meet.
    """
    return [
        *(sys.executable, "-m", "torch.distributed.run", *rendezvous),
        *(f"--nproc-per-node={ranks}", "--max-restarts=0", f"--log-dir={folder}", "-m", RANK),
    ]


def rank_environment(given: Mapping[str, str]) -> dict[str, str]:
    """The environment of torchrun and its ranks.

    With several ranks torchrun sets the threads of each to 1, and with one it does not: a difference between arms that
    is not the placement's. Ray sets 1 in any case.
    """
    return {"OMP_NUM_THREADS": "1", **given}


def start_bound(
    words: Sequence[str], environment: Mapping[str, str], *, cwd: str | None = None, log: Path | None = None
) -> "subprocess.Popen[bytes]":
    """Start a command that the kernel kills with this process, should that be killed.

    Args:
        words: program and arguments.
        environment: all of it.
        cwd: folder in which it starts; None for this process's.
        log: takes what it prints, and it is in a session of its own; None to print where this process does.
    """
    with append_to(log) if log else nullcontext() as output:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", child.__file__, str(os.getpid()), *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if log else None,
            start_new_session=log is not None,
            cwd=cwd,
            env=dict(environment),
        )


def end_process(process: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """See to it that a process ends: by itself, or else when it is asked (SIGTERM), or killed."""
    for demand in (process.poll, process.terminate, process.kill):
        demand()
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
            return
