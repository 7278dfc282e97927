import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A slow machine is no finding.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A shell starts background jobs with Ctrl-C ignored, which commands under test would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


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
