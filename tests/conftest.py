import gc
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings
from jobs import GRPO, PPO, Job, meeting_program, run_job

from placebench.jobs import bridge
from placebench.run.forking import RoundServer
from placebench.spec.workload import Workload

# A slow machine is no finding.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A shell starts background jobs with Ctrl-C ignored, which commands under test would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


# Most of what a test makes is gone by counting references alone.
gc.set_threshold(100_000, 20, 50)


def pytest_collection_finish() -> None:
    """What imports and the collected tests have made stays for good: passes over it took a tenth of the tests' time."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    meaning = "skip tests that would begin after this, in seconds since 1970"
    parser.addoption("--begin-before", type=float, metavar="TIME", help=meaning)


def pytest_runtest_setup(item: pytest.Item) -> None:
    before = item.config.getoption("--begin-before")
    if before is not None and time.time() > before:
        pytest.skip("left out: the time for the tests is over (--begin-before)")


@pytest.fixture
def temp(tmp_path: Path) -> Iterator[Path]:
    """A temporary folder to give to a command: Ray's sockets need a short path, and pytest has made its own before."""
    folder = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def temp_here(temp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process starts and looks for is in `temp`, apart from what others have started."""
    monkeypatch.setattr(tempfile, "tempdir", str(temp))
    monkeypatch.setenv("TMPDIR", str(temp))


@pytest.fixture
def alone() -> Iterator[None]:
    """This process as the only rank of a pool."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this session of pytest that all of its worker processes have in common."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture
def bridge_in_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The bridge is a process of its own and takes SIGTERM; here it is a function."""
    monkeypatch.setattr(bridge, "_GRACE_S", 0.1)
    monkeypatch.setattr(bridge, "_END_S", 0.3)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoundServer]:
    """Forks workers of launches: imports take most of a small launch's time. It starts when it is first asked.

    One for each process of this session, since what it has forked ends with it.
    """
    server = RoundServer(tmp_path_factory.mktemp("forking") / "fork_server.log", Workload(), ())
    yield server
    server.close()


@pytest.fixture(scope="session")
def shared_job(shared_folder: Path, fork_server: RoundServer) -> Callable[..., Job]:
    """Runs a launch as `run_job` does, but once for all tests that only look at it, in whatever process they run.

    It is known by its placement, devices and settings: those that say the same share it. `meeting` are the classes of
    its workers and engines, of those in `jobs.MEETING`; where it has none, its workers are forked if they may be.
    """

    def run(
        placement: str,
        devices: int,
        *settings: str,
        meeting: Sequence[str] = (),
        forked: bool = True,
        **options: Any,
    ) -> Job:
        known = repr((placement, devices, settings, meeting, forked, sorted(options.items())))
        folder = shared_folder / f"job-{sha256(known.encode()).hexdigest()[:16]}"
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                folder.mkdir()
                program = meeting_program(folder, *meeting) if meeting else None
                server = fork_server.of(1) if forked and not meeting else None
                job = run_job(
                    folder / "job", placement, devices, *settings, program=program, fork_server=server, **options
                )
                assert "was not forked" not in job.output
                job.keep()
        return Job.kept(folder / "job")

    return run


@pytest.fixture
def split_job(shared_job: Callable[..., Job]) -> Job:
    """A job in two pools whose phases meet where they may, see `jobs.MEETING`, with a checkpoint of its step 3."""
    return shared_job("split", 2, *PPO, meeting=["AllMeet"], checkpoint_every=3)


@pytest.fixture
def resumed_job(shared_job: Callable[..., Job], split_job: Job) -> Job:
    """Step 4 of `split_job` from its checkpoint, and nothing beside anything else in it."""
    return shared_job("split/overlap=none", 2, *PPO, resume_from=split_job.trial.checkpoints)


@pytest.fixture
def replicas_job(shared_job: Callable[..., Job]) -> Job:
    """GRPO on two replicas under Ray."""
    return shared_job("ddp:2", 2, *GRPO, "sharding=shard")


@pytest.fixture
def own_temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Runs that another test has killed are none of the commands' business here.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_temp: None) -> None:
    """The current folder is the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def off_github(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
