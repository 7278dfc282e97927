import gc
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from jobs import Job, run_job

# A slow machine is no finding.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A shell starts background jobs with Ctrl-C ignored, which commands under test would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


# What torch and pandas make at their import stays for good: full passes over it took an eighth of the tests' time.
gc.set_threshold(50_000, 20, 20)


@pytest.fixture
def temp(tmp_path: Path) -> Iterator[Path]:
    """A temporary folder to give to a command: Ray's sockets need a short path, and pytest has made its own before."""
    folder = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def alone() -> Iterator[None]:
    """This process as the only rank of a pool."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def shared_job(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Job]:
    """Runs a launch as `run_job` does, but once for all tests that only look at it."""
    done: dict[tuple[object, ...], Job] = {}

    def run(placement: str, devices: int, *settings: str) -> Job:
        known = (placement, devices, *settings)
        if known not in done:
            done[known] = run_job(tmp_path_factory.mktemp("job") / "job", placement, devices, *settings)
        return done[known]

    return run


@pytest.fixture
def own_temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Runs that another test has killed are none of the commands' business here.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture
def off_github(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
