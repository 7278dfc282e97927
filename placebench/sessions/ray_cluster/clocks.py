"""One time for all nodes: how far each node's monotonic clock is from the controller's, by round trips.

A node is asked for its clock several times. Its answer was given between the sending of the question and the arrival
of the answer, so the middle of the shortest round trip gives the offset, with half that round trip as the error however
long each way took: the clock filter of NTP (RFC 5905, section 10).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from placebench.record.folder import Trial, read_jsonl
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
    """Questions asked."""
    mono: float
    """When, on the controller's clock."""

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
        f"the clock of node {node} is known to {errors[node] * 1e3:.0f} ms only: what differs by less between nodes"
        " means nothing",
    )


def measure_offset(
    node: str, ask: Callable[[], float], clock: SpanClock, round_trips: int = ROUND_TRIPS
) -> ClockOffset:
    """Measure a node's clock.

    Args:
        node: its name.
        ask: returns the node's monotonic time, read there between call and return.
        clock: the controller's clock.
        round_trips: how often to ask; the shortest round trip counts.
    """
    least, offset = float("inf"), 0.0
    for _ in range(round_trips):
        sent = clock.mono()
        read = ask()
        received = clock.mono()
        if received - sent < least:
            least, offset = received - sent, (sent + received) / 2 - read
    return ClockOffset(node, offset, least / 2, round_trips, clock.mono())


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

    def shift(self, node: str, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Objects of `spans.jsonl` or `devices.jsonl` of a node, with their times on the controller's clock."""
        offset = self._best[node].offset_s
        for row in rows:
            moved = dict(row)
            for mono, wall in (("mono", "wall"), ("start_mono", "start_wall"), ("end_mono", "end_wall")):
                if mono in row:
                    moved[mono] = row[mono] + offset
                    moved[wall] = self._clock.wall(moved[mono])
            yield moved

    def shift_spans(
        self, spans: Iterable[Mapping[str, Any]], devices: Mapping[str, Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Objects of `spans.jsonl`, with their times on the controller's clock; `devices` by id, with their nodes."""
        return [
            next(self.shift(devices[span["device"]]["node"], [span])) if span["device"] in devices else dict(span)
            for span in spans
        ]
