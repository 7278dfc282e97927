"""`python -m placebench.sessions.torchrun.rank`: a process of torchrun becomes the worker asked for.

Only the standard library is imported here: the worker binds itself to its device before it imports torch.
"""

import os

from placebench.sessions.torchrun.serving import NODE_VARIABLE, connect, serve

# What torchrun sets for the process group of a script that it starts. A worker's is that of its pool, and libraries,
# vLLM above all, would take these for theirs.
_OF_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PREFIXES = ("LOCAL_", "GROUP_", "ROLE_", "TORCHELASTIC_")


def main() -> None:
    """Serve the controller."""
    greeting = {"node": os.environ[NODE_VARIABLE], "local_rank": int(os.environ["LOCAL_RANK"])}
    for name in tuple(os.environ):
        if name in _OF_TORCHRUN or name.startswith(_PREFIXES):
            del os.environ[name]
    serve(connect(greeting))


if __name__ == "__main__":
    main()
