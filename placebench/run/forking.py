"""The fork server of a round: imports once what every worker of its launches needs."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from placebench.host import child, fork_client
from placebench.host.fork_server import listen
from placebench.host.processes import TOKEN_VARIABLE
from placebench.plan.plan import Plan
from placebench.ppo.rank import WORKER_IMPORTS
from placebench.record.writing import append_to
from placebench.run.processes import own_environment
from placebench.spec.devices import Device
from placebench.spec.launchers import RAY
from placebench.spec.workload import Workload

# One thread, since a fork copies no other; a worker sets its number itself, once it is bound to its device.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# Else torch opens a GPU to learn whether there is one, its compiler starts processes as it is imported, and Arrow a
# thread.
_NOTHING_BEGUN = {
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "TORCH_WARM_POOL": "0",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}


def forks_workers(plan: Plan) -> bool:
    """Whether a plan's workers can be forked: those of the own job in a Ray of the launch's own, on like devices.

    On GPUs of several kinds they start as new interpreters, since an engine asks the first one what it can do.
    """
    is_own_ray = isinstance(plan.work, Workload) and plan.cluster is None and plan.launcher == RAY
    return is_own_ray and len({device.name for device in plan.devices if device.kind == "gpu"}) < 2


def worker_imports(workload: Workload) -> tuple[str, ...]:
    """What every worker of a workload imports before its first step is over."""
    compiler = ("torch._inductor.compile_fx",) if workload.torch_compile else ()
    engine = ("placebench.ppo.rollout.vllm_imports",) if workload.rollout.backend == "vllm" else ()
    return (*WORKER_IMPORTS, *compiler, *engine)


@dataclass(frozen=True)
class _Server:
    """A fork server that has been started."""

    word: str
    process: "subprocess.Popen[bytes]"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class RoundServer:
    """The fork server of the round that is run; every round has a new one.

    What an interpreter has by chance (where its libraries lie, the seed of its hashes) all workers forked from it have
    alike. The launches of a round share it; between rounds, over which the intervals are, it varies as ever.

    Args:
        log: file for what the servers say, removed at the end where each has lasted as long as it was to.
        workload: what the workers are to run.
        devices: where they are.
    """

    def __init__(self, log: Path, workload: Workload, devices: Sequence[Device]) -> None:
        self._log, self._imports = log, worker_imports(workload)
        gpus = [device.id for device in devices if device.kind == "gpu"]
        # On CPU devices its imports would take the time of the launch that starts meanwhile.
        self._is_early = bool(gpus)
        self._settings = _ONE_THREAD | _NOTHING_BEGUN | ({"CUDA_VISIBLE_DEVICES": gpus[0]} if gpus else {})
        self._servers: dict[int, _Server] = {}
        self._round = 0
        self._lasted = True

    def of(self, number: int) -> str:
        """The word of a round's server, started if need be; see `fork_client.connect`."""
        if self._round != number:
            self._end_all(but=number)
            self._round = number
            self._server(number).process.send_signal(signal.SIGCONT)  # the launch before may have ended within a step
        return self._server(number).word

    def prepare(self, number: int) -> None:
        """Let the server of the next round import on GPUs while a launch starts."""
        if self._is_early:
            self._server(number)

    def hold(self, *, stopped: bool) -> None:
        """Stop what is prepared while steps are measured, or let it go on."""
        for number, server in self._servers.items():
            if number != self._round:
                server.process.send_signal(signal.SIGSTOP if stopped else signal.SIGCONT)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know once a launch is over, one line each."""
        if self._round not in self._servers or self._servers[self._round].process.poll() is None:
            return ()
        return (
            f"the fork server has ended, so workers start as new interpreters, which takes longer: see {self._log}",
        )

    def close(self) -> None:
        """End all servers; what they have forked ends with them."""
        self._end_all()
        if self._lasted:
            self._log.unlink(missing_ok=True)

    def _server(self, number: int) -> _Server:
        if number not in self._servers:
            self._servers[number] = self._start()
        return self._servers[number]

    def _start(self) -> _Server:
        word = secrets.token_hex(16)
        with append_to(self._log) as output, listen(word) as listener:
            command = [sys.executable, "-I", "-S", child.__file__, str(os.getpid())]
            process = subprocess.Popen(
                [*command, sys.executable, "-m", fork_client.SERVER, str(listener.fileno()), *self._imports],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[listener.fileno()],
                start_new_session=True,
                env={**own_environment(), **self._settings, TOKEN_VARIABLE: word},
            )
        return _Server(word, process)

    def _end_all(self, but: int | None = None) -> None:
        for number in [number for number in self._servers if number != but]:
            server = self._servers.pop(number)
            self._lasted &= server.process.poll() is None
            server.end()
