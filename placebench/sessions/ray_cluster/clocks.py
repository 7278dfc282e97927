"""One time for all nodes: how far each node's monotonic clock is from the controller's, by round trips.

A node is asked for its clock several times. Its answer was given between the sending of the question and the arrival
of the answer, so the middle of the shortest round trip gives the offset, with half that round trip as the error however
long each way took: the clock filter of NTP (RFC 5905, section 10).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from placebench.record.folder import Trial
from placebench.record.writing import read_jsonl
from placebench.telemetry.spans import SpanClock

ROUND_TRIPS = 16
COARSE_S = 0.01
"""Error of a clock from which on a user is warned: a short phase is as long."""
DRIFT = 15e-6
"""Seconds a second that an undisturbed clock may drift: RFC 5905's frequency tolerance."""


@dataclass(frozen=True)
class ClockOffset:
    """One measurement of a node's clock, an object of `clocks.jsonl`."""

    node: str
    """The node's name."""
    offset_s: float
    """Seconds to add to the node's monotonic clock to get the controller's."""
    error_s: float
    """The offset is right within this, seconds."""
    round_trips: int
    """How often the node was asked."""
    mono: float
    """The time of the measurement, on the controller's clock."""

    def error_at(self, mono: float) -> float:
        """Error at another time of the controller's clock: clocks drift apart."""
        return self.error_s + DRIFT * abs(mono - self.mono)


def clock_notes(trial: Trial) -> tuple[str, ...]:
    """What a user should know of a launch whose nodes' clocks could be measured only coarsely."""
    errors: dict[str, float] = {}
    for row in read_jsonl(trial.clocks):
        errors[row["node"]] = min(row["error_s"], errors.get(row["node"], row["error_s"]))
    node = max(errors, key=errors.__getitem__, default=None)
    if node is None or errors[node] < COARSE_S:
        return ()
    return (
        f"the clock of node {node} is known only to {errors[node] * 1e3:.0f} ms: smaller differences between nodes"
        " mean nothing",
    )


def measure_offset(node: str, ask: Callable[[], float], clock: SpanClock) -> ClockOffset:
    """Measure a node's clock by the shortest of `ROUND_TRIPS` round trips.

    Args:
        node: its name.
        ask: returns the node's monotonic time, read there between call and return.
        clock: the controller's clock.
    """
    least, offset = float("inf"), 0.0
    for _ in range(ROUND_TRIPS):
        sent = clock.mono()
        read = ask()
        received = clock.mono()
        if received - sent < least:
            least, offset = received - sent, (sent + received) / 2 - read
    return ClockOffset(node, offset, least / 2, ROUND_TRIPS, clock.mono())


class ClockTable:
    """Brings times of the nodes' clocks to the controller's clock.

    Args:
        clock: the controller's clock.
    """

    def __init__(self, clock: SpanClock) -> None:
        self._clock = clock
        self._best: dict[str, ClockOffset] = {}

    def add(self, measured: ClockOffset) -> None:
        """Take a measurement; it is used when it is now more certain than the one before, which may have drifted."""
        before = self._best.get(measured.node)
        if before is None or measured.error_s <= before.error_at(measured.mono):
            self._best[measured.node] = measured

    def knows(self, node: str) -> bool:
        """Whether a node's clock has been measured."""
        return node in self._best

    def offset_s(self, node: str) -> float | None:
        """Seconds from a node's clock to the controller's; None where it has not been measured."""
        return self._best[node].offset_s if node in self._best else None

    def shift(self, node: str, row: Mapping[str, Any]) -> dict[str, Any]:
        """An object of `spans.jsonl` or `devices.jsonl` of a node, with its times on the controller's clock."""
        moved = dict(row)
        for mono, wall in (("mono", "wall"), ("start_mono", "start_wall"), ("end_mono", "end_wall")):
            if mono in row:
                moved[mono] = row[mono] + self._best[node].offset_s
                moved[wall] = self._clock.wall(moved[mono])
        return moved
