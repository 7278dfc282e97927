"""What a step would take under a placement that was not run, from the phases of those that were.

A phase's time on n devices is the measured one where a placement of the run had it on n. On other numbers it is
a + b/n, Amdahl's law (1967), fitted to the measured ones by least squares with a and b not below 0; with one number
measured, b/n, as if the work were divided perfectly. The step graph is then walked as the controller walks it, with
these times, and the measured gaps between phases are added. Phases that slow each other down side by side do so in the
forecast only as far as they did where they were measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from placebench.spec.phases import GEN, UPDATE_WEIGHTS, Phase
from placebench.spec.placement import Overlap, Placement
from placebench.spec.stepgraph import graph_among, ready_phases

# Steps until engines that run ahead have settled, beyond the staleness.
SETTLING = 4


PhaseTimes = Mapping[int, float]
"""Number of a phase's devices → its seconds, as measured; 0 devices for the controller's own phases."""


def seconds_on(devices: int, times: PhaseTimes) -> float:
    """Seconds of a phase on so many devices."""
    if devices in times or 0 in times:
        return times.get(devices, times.get(0, 0.0))
    if len(times) == 1:
        ((count, seconds),) = times.items()
        return seconds * count / devices
    from scipy.optimize import nnls

    counts = np.array(list(times), dtype=np.float64)
    (fixed, divided), _ = nnls(np.column_stack([np.ones_like(counts), 1 / counts]), list(times.values()))
    return float(fixed + divided / devices)


@dataclass(frozen=True)
class Forecaster:
    """What is known of other placements from those of a run."""

    phases: Mapping[str, PhaseTimes]
    """Times of every phase."""
    gaps: Mapping[int, float]
    """Seconds of a step in which no phase on its path runs, by the number of the placement's pools."""

    @property
    def has_sizes(self) -> bool:
        """Whether any phase was measured on more than one number of devices, without which all scaling is assumed."""
        return any(len(times) > 1 for times in self.phases.values())

    def covers(self, placement: Placement) -> bool:
        """Whether no pool of a placement is smaller or larger than those on which its phases were measured."""
        return all(
            min(self.phases[phase.name]) <= placement.pool_of(phase.role).size <= max(self.phases[phase.name])
            for phase in graph_among(list(self.phases))
            if phase.role
        )

    def step_seconds(self, placement: Placement) -> float:
        """Seconds of a step."""
        graph = graph_among(list(self.phases), placement.staleness, has_engines=placement.has_engines)
        pools = {phase.name: placement.pool_of(phase.role) if phase.role else None for phase in graph}
        seconds = {name: seconds_on(pool.size if pool else 0, self.phases[name]) for name, pool in pools.items()}
        busy = {name: pool.name if pool else "" for name, pool in pools.items()}
        gaps = self.gaps.get(len(placement.pools), fmean(self.gaps.values()))
        if placement.staleness and placement.has_engines:
            return _steady_seconds(seconds, busy, placement.staleness) + gaps
        if placement.staleness:
            graph = _generated_before(graph)
        return max(end for _, end in walk(graph, seconds, busy, placement.overlap).values()) + gaps


def walk(
    graph: Sequence[Phase], seconds: Mapping[str, float], pools: Mapping[str, str], overlap: Overlap
) -> dict[str, tuple[float, float]]:
    """Start and end of every phase of a step, each submitted as soon as its inputs are there and its pool is free.

    The seconds and pools are those of each phase by its name.
    """
    now, times = 0.0, dict[str, tuple[float, float]]()
    running: dict[str, float] = {}
    while len(times) - len(running) < len(graph):
        done = frozenset(times.keys() - running.keys())
        for phase in ready_phases(graph, done, frozenset(running), overlap):
            if pools[phase.name] not in {pools[name] for name in running}:
                running[phase.name] = now + seconds[phase.name]
                times[phase.name] = (now, running[phase.name])
        now = min(running.values())
        running = {name: end for name, end in running.items() if end > now}
    return times


def _generated_before(graph: Sequence[Phase]) -> tuple[Phase, ...]:
    """A step that has its sequences already, and generates those of a later one before its actor changes."""
    names = {phase.name for phase in graph}
    return tuple(
        replace(
            phase,
            after=(
                *(name for name in phase.after if name != GEN),
                *(name for name, back in phase.across if back < 0 and name in names),
            ),
        )
        for phase in graph
    )


def _steady_seconds(seconds: Mapping[str, float], pools: Mapping[str, str], staleness: int) -> float:
    """Seconds of a step once engines that generate ahead of it have settled.

    Generation waits for its engines and for weights old by `staleness` updates; training for its sequences and for the
    step before.
    """
    rest = graph_among([name for name in seconds if name not in (GEN, UPDATE_WEIGHTS)])
    times = walk(rest, seconds, pools, Overlap.ALL)
    training = max((end for _, end in times.values()), default=0.0)
    gen, update = seconds.get(GEN, 0.0), seconds.get(UPDATE_WEIGHTS, 0.0)
    generated, trained, sent = [0.0], [0.0], [0.0]
    for step in range(1, 2 * staleness + 2 * SETTLING):
        generated.append(max(generated[-1], sent[max(0, step - 1 - staleness)]) + gen)
        trained.append(max(generated[-1], trained[-1]) + training)
        sent.append(trained[-1] + update)
    settled = len(trained) // 2
    return (trained[-1] - trained[settled]) / (len(trained) - 1 - settled)
