"""Limits of the shell (`ulimit`) that a launch runs into: those too low for any, and the one that a failure tells of.

The least values were tried: with less, Ray and torch do not start a job of the smallest model on two CPU devices.
"""

import re
import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from placebench.sessions.own_ray import OBJECT_STORE_BYTES, RAY_NOT_STARTED
from placebench.spec.devices import Device
from placebench.spec.launchers import RAY
from placebench.spec.text import format_bytes


@dataclass(frozen=True)
class Limit:
    """One limit of a process."""

    what: str
    """What it limits."""
    option: str
    """Its option of `ulimit`."""
    resource: int
    """Its number for `resource.getrlimit`."""
    signs: str
    """What is printed where it was too low, as a regular expression."""
    least: int = 0
    """Below this no launch on this host gets through; in bytes where it limits bytes."""
    in_bytes: bool = True

    @property
    def value(self) -> int | None:
        """As it stands for this process and what it starts; None where there is none."""
        soft, _ = resource.getrlimit(self.resource)
        return None if soft == resource.RLIM_INFINITY else soft

    def __str__(self) -> str:
        return f"{self.what} is limited to {self.show(self.value or 0)} by ulimit {self.option}"

    def show(self, value: int) -> str:
        """A value of it, in words."""
        return format_bytes(value) if self.in_bytes else f"{value:,}"

    @property
    def advice(self) -> str:
        """What to do where it is too low."""
        most = f"$(ulimit -H{self.option[1:]})"
        return f"run ulimit {self.option} {most} before, or raise it where a batch system or container sets it"


LIMITS = (
    Limit(
        "the address space of a process",
        "-v",
        resource.RLIMIT_AS,
        rf"\bMemoryError|bad_alloc|(?:[Cc]an't|[Cc]annot) allocate memory|failed to map segment|{RAY_NOT_STARTED}",
        2 << 30,
    ),
    Limit(
        "the size of a file",
        "-f",
        resource.RLIMIT_FSIZE,
        rf"File too large|SIGXFSZ|{RAY_NOT_STARTED}",
        OBJECT_STORE_BYTES,
    ),
    Limit("the number of open files", "-n", resource.RLIMIT_NOFILE, "Too many open files", 64, in_bytes=False),
    Limit(
        "the number of processes and threads",
        "-u",
        resource.RLIMIT_NPROC,
        "Resource temporarily unavailable|can't start new thread",
        in_bytes=False,
    ),
    Limit("the CPU time of a process", "-t", resource.RLIMIT_CPU, "SIGXCPU|SIGKILL", in_bytes=False),
)


def low_limits(devices: Sequence[Device], launcher: str, cluster: object = None) -> Iterator[str]:
    """Limits under which no launch starts on this host; on other nodes, and without Ray, others may hold."""
    if launcher != RAY or cluster is not None:
        return
    # CUDA maps the whole memory of a GPU into each process that uses one.
    mapped = max((device.memory_bytes or 0 for device in devices if device.kind == "gpu"), default=0)
    for limit in LIMITS:
        least = max(limit.least, mapped) if limit.resource == resource.RLIMIT_AS else limit.least
        if limit.value is not None and limit.value < least:
            yield f"{limit}: Ray and torch need {limit.show(least)} or more; {limit.advice}"


def exceeded_limit(printed: str) -> Limit | None:
    """The limit that a launch has run into, by what it printed; None where none is set that would explain it."""
    return next((limit for limit in LIMITS if limit.value is not None and re.search(limit.signs, printed)), None)
