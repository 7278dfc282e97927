"""Steps of a SLURM job: one task on each of some nodes, beside whatever else runs there."""

import os
import subprocess
from collections.abc import Mapping, Sequence

_ASK_TIMEOUT_S = 60.0


def step_command(name: str, nodes: Sequence[str]) -> list[str]:
    """The words before the command of a step.

    Args:
        name: of the step.
        nodes: names of its nodes.
    """
    return [
        "srun",
        f"--job-name={name}",
        "--overlap",
        # Both, for the environment of the job says how many tasks it has on all of its nodes.
        "--ntasks-per-node=1",
        f"--ntasks={len(nodes)}",
        f"--nodes={len(nodes)}",
        f"--nodelist={','.join(nodes)}",
        "--cpu-bind=none",
        "--no-kill",
    ]


def host_names(listed: str) -> tuple[str, ...]:
    """The names in a list of SLURM's, such as `n[1-3]`.

    Raises:
        OSError, subprocess.SubprocessError: SLURM does not answer.
    """
    done = subprocess.run(
        ["scontrol", "show", "hostnames", listed], capture_output=True, text=True, check=True, timeout=_ASK_TIMEOUT_S
    )
    return tuple(done.stdout.split())


def several_nodes(environment: Mapping[str, str] = os.environ) -> str | None:
    """The list of nodes of the SLURM job that this process is in; None outside of one, and in one of a single node."""
    count = environment.get("SLURM_JOB_NUM_NODES", "1")
    return environment.get("SLURM_JOB_NODELIST") if count.isdigit() and int(count) > 1 else None
