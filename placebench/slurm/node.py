"""`python -m placebench.slurm.node PORT HEAD FOLDER GPUS`: one task of the step that holds Ray on the job's nodes.

The first node's task is Ray's head, the others join it. A task lasts until it is told to end (SIGTERM), and leaves no
process and no file of Ray behind.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from placebench.host import child
from placebench.host.network import free_port


def ray_command(port: int, head: str, folder: str, gpus: int) -> list[str]:
    """The command that starts Ray on this node of the step."""
    # Workers bind to their devices themselves: for each, Ray needs a CPU in its books, whatever it computes with.
    cpus = max(int(os.environ.get("SLURM_CPUS_ON_NODE", "1")), gpus, 1)
    where = (
        [
            "--head",
            f"--port={port}",
            f"--temp-dir={folder}",
            "--include-dashboard=false",
            f"--ray-client-server-port={free_port()}",
        ]
        if os.environ["SLURM_NODEID"] == "0"
        else [f"--address={head}:{port}"]
    )
    name = os.environ["SLURMD_NODENAME"]
    return [
        str(Path(sys.executable).with_name("ray")),
        *("start", "--block", f"--node-name={name}", f"--num-cpus={cpus}", f"--num-gpus={gpus}", *where),
    ]


def main(port: str, head: str, folder: str, gpus: str) -> int:
    """Hold Ray on this node; returns its exit code."""
    command = ray_command(int(port), head, folder, int(gpus))
    # Killed with this process, should SLURM kill that without a word.
    process = subprocess.Popen([sys.executable, "-I", "-S", child.__file__, str(os.getpid()), *command])
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        return process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
