"""The command that starts torchrun on a node, its environment, and its end."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from placebench.host import child

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


def start_bound(words: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Start a command that the kernel kills with this process, should that be killed."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", child.__file__, str(os.getpid()), *words],
        stdin=subprocess.DEVNULL,
        env=dict(environment),
    )


def end_process(process: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """See to it that a process ends: by itself, or else when it is asked (SIGTERM), or killed."""
    for demand in (process.poll, process.terminate, process.kill):
        demand()
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
            return
