"""Timers that enclose each other: which phase a process was at when, each moment counted once.

A framework's timers say what they time under names of their own, and stand within each other: a trainer's step encloses
its generation. Of those that run at a moment the innermost says the phase; one whose name says none is a part of what
is around it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

WITHIN = " > "
"""Between two names: the second one within the first."""
# Shorter than any work between two timers, and longer than what a trainer does before it makes a batch ready.
_SLIVER_S = 0.01


@dataclass(frozen=True)
class Timing:
    """What one timer has timed; times in seconds of one clock."""

    name: str
    start: float
    end: float

    def encloses(self, other: "Timing") -> bool:
        """Whether another one lies within it."""
        return self.start <= other.start and other.end <= self.end


def exclusive(timings: Sequence[Timing], phases: Mapping[str, str]) -> list[Timing]:
    """The phases of a process one after the other, none beside another, in order of time.

    Args:
        timings: in the order in which they ended, as timers write them: of two with the same ends the first is within.
        phases: the phase by a timer's name, or by two names with `WITHIN` between them, which goes before; an empty
            phase is none. A name that is not there is a part of what is around it.
    """
    latest_first = timings[::-1]
    ordered = sorted(latest_first, key=lambda one: (one.start, -one.end))
    phase_of = dict(_phases(ordered, phases))
    found: list[tuple[Timing, float]] = []  # with the end of the timer that says it last
    for start, end, innermost in _moments(ordered):
        phase, until = phase_of[innermost], ordered[innermost].end
        if phase and found and found[-1][0].name == phase and found[-1][0].end == start:
            found[-1] = Timing(phase, found[-1][0].start, end), until
        elif phase:
            found.append((Timing(phase, start, end), until))
    # The way from a timer's start, or from one within it, to the next one within it is no work of its own.
    return [one for one, until in found if one.end - one.start >= _SLIVER_S or until <= one.end]


def crossing(timings: Sequence[Timing]) -> tuple[str, str] | None:
    """Names of two timers that ran at a time without one within the other, as those of threads do; None for none."""
    around: list[Timing] = []
    for one in sorted(timings, key=lambda one: (one.start, -one.end)):
        around = [outer for outer in around if outer.end > one.start]
        if outside := next((outer for outer in around if not outer.encloses(one)), None):
            return outside.name, one.name
        around.append(one)
    return None


def _phases(ordered: Sequence[Timing], phases: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """The phase of each timing, by its place in the order; empty for none."""
    around: list[tuple[Timing, str]] = []  # those that may enclose the next one, with their phases
    for index, one in enumerate(ordered):
        around = [(outer, phase) for outer, phase in around if outer.end > one.start]
        enclosing = [(outer, phase) for outer, phase in around if outer.encloses(one)]
        known = (phases.get(f"{outer.name}{WITHIN}{one.name}") for outer, _ in reversed(enclosing))
        phase = next((phase for phase in known if phase is not None), phases.get(one.name))
        if phase is None:
            phase = enclosing[-1][1] if enclosing else ""
        around.append((one, phase))
        yield index, phase


def _moments(ordered: Sequence[Timing]) -> Iterator[tuple[float, float, int]]:
    """Stretches of time in which the same timers run, with the innermost one, which was started last."""
    marks = sorted({mark for one in ordered for mark in (one.start, one.end)})
    running: list[int] = []
    coming = 0
    for start, end in pairwise(marks):
        while coming < len(ordered) and ordered[coming].start <= start:
            running.append(coming)
            coming += 1
        running = [index for index in running if ordered[index].end > start]
        if running:
            yield start, end, running[-1]
