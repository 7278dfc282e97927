"""Become a command that dies with the process that started it: `python -I -S child.py PARENT_PID COMMAND…`.

A script of its own rather than a `preexec_fn`: the kernel keeps the death signal across exec, and no Python code
runs between fork and exec, where another thread's lock could stop it for ever.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> bool:
    """Ask the kernel for SIGKILL at the parent's death; returns whether the parent was alive then.

    Raises:
        OSError: the kernel refuses.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    return os.getppid() == parent


def become(parent: int, command: list[str]) -> None:
    """Ask the kernel for SIGKILL at the parent's death, then exec the command.

    Raises:
        OSError: the kernel refuses, or there is no such command.
    """
    if not die_with(parent):
        sys.exit("the process that started this one is gone")
    os.execvp(command[0], command)


if __name__ == "__main__":
    become(int(sys.argv[1]), sys.argv[2:])
