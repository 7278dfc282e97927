"""What this process may use of its host: cores and memory, container limits respected."""

import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import psutil


def usable_cores(root: Path = Path("/")) -> tuple[int, ...]:
    """Ids of the cores this process may run on, in order.

    A container's CPU quota limits how many cores of the affinity mask are listed: processes that share
    two cores' worth of time would hold each other up on more than two.

    Args:
        root: where `/proc` and `/sys` lie.
    """
    cores = sorted(os.sched_getaffinity(0))
    quota = cpu_quota(root)
    return tuple(cores if quota is None else cores[: max(1, math.ceil(quota))])


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Cores' worth of CPU time that the control groups grant, the least of them; None without a limit."""
    limits: list[tuple[str, str]] = []
    for group in _control_groups(root, ""):
        quota, _, period = (_read(group / "cpu.max") or "max").partition(" ")
        limits.append((quota, period))
    for group in _control_groups(root, "cpu"):
        limits.append((_read(group / "cpu.cfs_quota_us") or "-1", _read(group / "cpu.cfs_period_us") or ""))
    return min((int(quota) / int(period) for quota, period in limits if quota not in ("max", "-1")), default=None)


def total_memory(root: Path = Path("/")) -> int:
    """Bytes of memory this process may use: the host's, or less where a control group limits it."""
    files = [group / "memory.max" for group in _control_groups(root, "")]
    files += [group / "memory.limit_in_bytes" for group in _control_groups(root, "memory")]
    limits = [int(text) for text in map(_read, files) if text not in (None, "max")]
    return min([psutil.virtual_memory().total, *limits])


@cache
def cpu_model() -> str:
    """Name of the processor as the kernel gives it, otherwise the machine's architecture."""
    for line in (_read(Path("/proc/cpuinfo")) or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return os.uname().machine


def _control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's control group and of every group above it; a controller `""` means cgroup v2.

    Inside a container the group's own path may not exist below the mount point; the groups above it that do
    exist hold the limits that can be seen.
    """
    own = Path()
    for entry in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = entry.split(":", 2)
        if controller in controllers.split(","):
            own = Path(path.lstrip("/"))
    for group in (own, *own.parents):
        yield root / "sys/fs/cgroup" / controller / group


def _read(path: Path) -> str | None:
    """Text of a file that a kernel may or may not offer."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
