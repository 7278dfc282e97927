"""`python -m placebench.sessions.torchrun.look [SPEC]`: a task on each node of a SLURM job, which prints what is there.

Prints one JSON object as its last line: version, name of the node, its address, that of the node where srun was called,
and devices and host, or `error`.
"""

import json
import os
import socket
import sys
from typing import Any

from placebench.sessions.ray_cluster.node import devices_here
from placebench.version import __version__


def look(spec: str | None) -> dict[str, Any]:
    """What is here."""
    name, caller = os.environ["SLURMD_NODENAME"], os.environ["SLURM_LAUNCH_NODE_IPADDR"]
    place = {"version": __version__, "name": name, "address": _address_towards(caller), "caller": caller}
    return place | devices_here(name, spec)


def _address_towards(host: str) -> str:
    """The address of this node by which a host reaches it: that of the interface on the way there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # nothing is sent
        return str(probe.getsockname()[0])


if __name__ == "__main__":
    print(json.dumps(look(sys.argv[1] if len(sys.argv) > 1 else None)))
