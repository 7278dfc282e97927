"""The processes of one launch: started, marked, and gone once it is left."""

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import psutil

from placebench.host import child
from placebench.host.ownership import RunRecord
from placebench.host.processes import (
    TOKEN_VARIABLE,
    LaunchMark,
    ProcessId,
    kill_processes,
    launch_processes,
    ray_temp_dir,
    remove_ray_temp_dir,
)
from placebench.record.writing import append_to

# What the user has set for programs of his own, and under which Ray ends at its start: warnings that are errors, and
# functions without the docstrings that it adds to.
_NOT_FOR_RAY = frozenset({"PYTHONWARNINGS", "PYTHONOPTIMIZE"})


def own_environment() -> dict[str, str]:
    """The variables of placebench's own job and what works for it."""
    return {name: value for name, value in os.environ.items() if name not in _NOT_FOR_RAY}


class LaunchProcesses:
    """Starts the processes of one launch; once it is left, nothing of the launch is there any more.

    Args:
        record: keeps by what the processes are known, before and after each is started.

    Attributes:
        mark: by what they are known.
        left: after leaving: processes that even SIGKILL has not ended, as a rule none.
    """

    def __init__(self, record: RunRecord) -> None:
        token = secrets.token_hex(16)
        self.mark = LaunchMark(token, ray_temp_dir(token))
        self.left: list[psutil.Process] = []
        self._record = record
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._record.write(self.mark)
        self.mark.ray_temp_dir.mkdir(mode=0o700)
        return self

    def __exit__(self, *_: object) -> None:
        killed: set[int] = set()

        def find() -> list[psutil.Process]:
            found = launch_processes(self.mark)
            killed.update(process.pid for process in found)
            return found

        self.left = kill_processes(find)
        for process in self._started:
            process.poll()
        # In a container whose first process this is, those that have lost their parents are its own.
        for pid in killed - {process.pid for process in self._started}:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        remove_ray_temp_dir(self.mark.ray_temp_dir)
        self._record.write(None)

    def start(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] = os.environ
    ) -> subprocess.Popen[bytes]:
        """Start a command in a session of its own, to be killed by the kernel when this process dies.

        Args:
            command: program and arguments.
            log: file for its stdout and stderr.
            environment: its variables, beside the launch's own.
        """
        with append_to(log) as output:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", child.__file__, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**environment, TOKEN_VARIABLE: self.mark.token},
            )
        self._started.append(process)
        if known := ProcessId.of(process.pid):
            self.mark = replace(self.mark, recorded=(*self.mark.recorded, known))
            self._record.write(self.mark)
        return process
