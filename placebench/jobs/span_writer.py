"""One process of a job of the user's, by the file of spans that it writes."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from placebench.jobs.nested import Timing
from placebench.record.tail import JsonlTail
from placebench.spec.devices import Device

# What the hooks say of a span's source; see `attach/on-path/placebench_attach/spans.py`.
TIMER = "timer"


@dataclass
class SpanWriter:
    """A process of the job, and what it has left."""

    tail: JsonlTail
    head: Mapping[str, Any] = field(default_factory=dict)
    """Its first line."""
    node: str | None = None
    """Name of its node; None where the launch has one alone."""
    shift_s: float = 0.0
    """Added to its times they are of this host's clock."""
    gpu: str | None = None
    """UUID of the GPU that torch uses in it."""
    device: Device | None = None
    """The device that it works on, once it is known."""
    spans: dict[str, list[Timing]] = field(default_factory=dict)
    """By source, in the order in which they ended; those that are not handed out yet."""
    step_ends: list[float] = field(default_factory=list)
    """When its steps ended, where it says when whole steps ran."""
    pools: set[str] = field(default_factory=set)
    """Pools whose phases it has worked on."""

    @property
    def rank(self) -> int:
        """Its rank, 0 where it says none."""
        rank = str(self.head["environment"].get("RANK"))
        return int(rank) if rank.isascii() and rank.isdigit() else 0

    @property
    def is_first(self) -> bool:
        """Whether it is the first rank, or none of several."""
        return self.rank == 0

    @property
    def is_worker(self) -> bool:
        """Whether it has done work of a worker or an engine, or is a rank of several."""
        return "RANK" in self.head["environment"] or any(source != TIMER for source in self.spans)

    def own_step(self, timing: Timing) -> int | None:
        """The step of a rank behind the first, by its own steps, which end a moment later; None for all others."""
        if self.is_first or not self.step_ends:
            return None
        return 1 + bisect_left(self.step_ends, (timing.start + timing.end) / 2)
