import resource

import pytest

from placebench.plan.limits import LIMITS, Limit, exceeded_limit, low_limits
from placebench.spec.devices import Device
from placebench.spec.launchers import RAY, TORCHRUN

CPUS = [Device("cpu:0", "cpu", 0, "here", "cpu", 8 << 30)]
GPUS = [Device("GPU-1", "gpu", 0, "here", "H200", 141 << 30)]


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """The limits that are set; no other is."""
    given: dict[int, int] = {}
    unlimited = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda number: (given.get(number, unlimited), unlimited))
    return given


@pytest.mark.parametrize(
    ("number", "value", "said"),
    [
        (resource.RLIMIT_AS, 1 << 30, "the address space of a process is limited to 1,024 MiB by ulimit -v: "),
        (resource.RLIMIT_FSIZE, 100 << 20, "the size of a file is limited to 100 MiB by ulimit -f: "),
        (resource.RLIMIT_NOFILE, 40, "the number of open files is limited to 40 by ulimit -n: "),
    ],
)
def test_a_limit_under_which_nothing_starts_is_refused(
    limits: dict[int, int], number: int, value: int, said: str
) -> None:
    assert list(low_limits(CPUS, RAY)) == []
    limits[number] = value
    (line,) = low_limits(CPUS, RAY)
    assert line.startswith(said)
    assert "run ulimit -" in line
    assert list(low_limits(CPUS, TORCHRUN)) == []
    assert list(low_limits(CPUS, RAY, cluster="10.0.0.1:6379")) == []


def test_a_gpu_is_mapped_as_a_whole(limits: dict[int, int]) -> None:
    limits[resource.RLIMIT_AS] = 64 << 30
    assert list(low_limits(CPUS, RAY)) == []
    (line,) = low_limits(GPUS, RAY)
    assert "is limited to 64.0 GiB by ulimit -v: Ray and torch need 141.0 GiB or more" in line


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.option)
def test_a_limit_is_told_by_what_was_printed_only_where_it_is_set(limits: dict[int, int], limit: Limit) -> None:
    printed = limit.signs.partition("|")[0].removeprefix(r"\b")
    assert exceeded_limit(printed) is None
    limits[limit.resource] = 1 << 33
    assert exceeded_limit(f"it printed\n{printed}") is limit
    assert exceeded_limit("torch.OutOfMemoryError: CUDA out of memory") is None
