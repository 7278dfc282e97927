"""The fork servers of a run's rounds, for real; what they fork is in `tests/host/test_fork_server.py`."""

from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from launching import wait_for

from placebench.host import fork_client
from placebench.run.forking import RoundServer, worker_imports
from placebench.spec.devices import Device, Kind
from placebench.spec.workload import Workload

Started = Callable[[], list[psutil.Process]]


def device(kind: Kind) -> Device:
    return Device("GPU-0" if kind == "gpu" else "cpu:0", kind, 0, "here", "test", 1 << 30)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "fork_server.log"


@pytest.fixture
def on_gpus(log: Path) -> Iterator[RoundServer]:
    servers = RoundServer(log, Workload(), [device("gpu")])
    yield servers
    servers.close()


def servers_here() -> set[psutil.Process]:
    children = set(psutil.Process().children())
    # One that is becoming its command has no words at all for a moment.
    wait_for(lambda: all(child.cmdline() for child in children))
    return {child for child in children if fork_client.SERVER in child.cmdline()}


@pytest.fixture
def started() -> Started:
    """The servers that a test has started, in that order; launches that tests share have one, too."""
    before = servers_here()
    return lambda: sorted(servers_here() - before, key=lambda child: child.pid)


def test_a_round_has_one_server_and_the_next_one_another(on_gpus: RoundServer, log: Path, started: Started) -> None:
    first = on_gpus.of(1)
    assert on_gpus.of(1) == first
    (server,) = started()
    assert on_gpus.of(2) != first
    assert not server.is_running()
    assert len(started()) == 1
    on_gpus.close()
    assert started() == []
    assert not log.exists()


def test_the_next_server_is_prepared_and_stops_while_steps_are_measured(on_gpus: RoundServer, started: Started) -> None:
    on_gpus.of(1)
    on_gpus.prepare(2)
    on_gpus.prepare(2)
    on_gpus.prepare(1)
    now, later = started()
    assert later.environ()["CUDA_VISIBLE_DEVICES"] == "GPU-0"
    on_gpus.hold(stopped=True)
    wait_for(lambda: later.status() == psutil.STATUS_STOPPED)
    assert now.status() != psutil.STATUS_STOPPED
    on_gpus.hold(stopped=False)
    wait_for(lambda: later.status() != psutil.STATUS_STOPPED)
    on_gpus.hold(stopped=True)
    on_gpus.of(2)
    assert started() == [later]
    wait_for(lambda: later.status() != psutil.STATUS_STOPPED)
    on_gpus.close()
    assert started() == []


def test_on_cpu_devices_nothing_takes_the_time_of_a_launch_that_starts(log: Path, started: Started) -> None:
    servers = RoundServer(log, Workload(), [device("cpu")])
    try:
        servers.of(1)
        servers.prepare(2)
        assert len(started()) == 1
    finally:
        servers.close()


def test_of_a_server_that_has_not_lasted_the_log_stays(on_gpus: RoundServer, log: Path, started: Started) -> None:
    on_gpus.of(1)
    assert not on_gpus.notes
    (server,) = started()
    server.kill()
    server.wait()
    (note,) = on_gpus.notes
    assert note.endswith(f"see {log}")
    on_gpus.close()
    assert log.exists()


def test_workers_find_what_their_backend_and_compiler_import() -> None:
    plain = worker_imports(Workload())
    assert "placebench.ppo.rollout.vllm_imports" not in plain
    compiled = Workload.model_validate({"torch_compile": True, "rollout": {"backend": "vllm"}})
    assert set(worker_imports(compiled)) - set(plain) == {
        "torch._inductor.compile_fx",
        "placebench.ppo.rollout.vllm_imports",
    }
