"""The fork server of a round: imports once what every worker of its launches needs."""

import contextlib
import os
import secrets
import subprocess
import sys
from pathlib import Path

from placebench.host import child, fork_client
from placebench.host.fork_server import listen
from placebench.host.processes import TOKEN_VARIABLE
from placebench.plan.plan import Plan
from placebench.ppo.rank import WORKER_IMPORTS
from placebench.record.folder import append_to
from placebench.spec.launchers import RAY
from placebench.spec.workload import Workload

# One thread, since a fork copies no other; a worker sets its number itself, once it is bound to its device.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def forks_workers(plan: Plan) -> bool:
    """Whether a plan's workers can be forked: those of the own job in a Ray of the launch's own on CPU devices.

    On GPUs, and with vLLM, they start as new interpreters: what a driver and an engine keep in a process from their
    import on is not known to survive a fork.
    """
    is_own_ray = isinstance(plan.work, Workload) and plan.cluster is None and plan.launcher == RAY
    on_cpu = all(device.kind == "cpu" for device in plan.devices)
    return is_own_ray and on_cpu and plan.workload.rollout.backend == "torch"


class RoundServer:
    """The fork server of the round that is run; every round has a new one.

    What an interpreter has by chance (where its libraries lie, the seed of its hashes) all workers forked from it have
    alike. The launches of a round share it; between rounds, over which the intervals are, it varies as ever.

    Args:
        log: file for what the servers say, removed at the end where they have said nothing.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._round = 0
        self._word = ""
        self._process: subprocess.Popen[bytes] | None = None

    def of(self, number: int) -> str:
        """The word of a round's server, started if need be; see `fork_client.connect`."""
        if self._round != number:
            self._end()
            self._round, self._word = number, secrets.token_hex(16)
            with append_to(self._log) as output, listen(self._word) as listener:
                command = [sys.executable, "-I", "-S", child.__file__, str(os.getpid())]
                self._process = subprocess.Popen(
                    [*command, sys.executable, "-m", fork_client.SERVER, str(listener.fileno()), *WORKER_IMPORTS],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=[listener.fileno()],
                    start_new_session=True,
                    env={**os.environ, **_ONE_THREAD, TOKEN_VARIABLE: self._word},
                )
        return self._word

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know once a launch is over, one line each."""
        if self._process is None or self._process.poll() is None:
            return ()
        return (
            f"the fork server has ended, so workers start as new interpreters, which takes longer: see {self._log}",
        )

    def close(self) -> None:
        """End the last server; all that it has forked ends with it."""
        self._end()
        with contextlib.suppress(FileNotFoundError):
            if not self._log.stat().st_size:
                self._log.unlink()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
