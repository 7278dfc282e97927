"""The walk of the step graph: when each phase of a step runs, given what it takes.

The controller walks the same graph: a phase is submitted as soon as its inputs are there and its pool is free.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from placebench.spec.phases import GEN, UPDATE_ACTOR, UPDATE_WEIGHTS, Phase
from placebench.spec.placement import Overlap
from placebench.spec.stepgraph import graph_among, ready_phases

Times = dict[str, tuple[float, float]]
"""Start and end of each phase by its name, in seconds."""


def step_times(
    names: Sequence[str],
    seconds: Mapping[str, float],
    pools: Mapping[str, str],
    overlap: Overlap,
    *,
    staleness: int = 0,
    has_engines: bool = False,
    inflight_updates: bool = False,
) -> tuple[Times, float]:
    """When each phase of a step runs, and how long a step is: of one that runs ahead, once it has settled.

    Args:
        names: of the phases.
        seconds: of each.
        pools: where each runs; empty for the controller.
        overlap: what may run side by side.
        staleness: as in `stepgraph.step_graph`.
        has_engines: likewise.
        inflight_updates: whether engines that run ahead go on while they take new weights.
    """
    if staleness and has_engines:
        return _steady_times(seconds, pools, staleness, inflight_updates=inflight_updates)
    graph = walked_graph(names, staleness=staleness, has_engines=has_engines)
    times = walk(graph, seconds, pools, overlap)
    return times, max((end for _, end in times.values()), default=0.0)


def walked_graph(names: Sequence[str], *, staleness: int = 0, has_engines: bool = False) -> tuple[Phase, ...]:
    """The phases of a step with what they wait for in its own time; arguments as of `step_times`.

    With engines that run ahead generation and training wait for each other across steps, see `_steady_times`.
    """
    return _walked_graph(tuple(names), staleness, has_engines)


@cache
def _walked_graph(names: tuple[str, ...], staleness: int, has_engines: bool) -> tuple[Phase, ...]:
    graph = graph_among(names, staleness, has_engines=has_engines)
    return _generated_before(graph) if staleness and not has_engines else graph


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


def _steady_times(
    seconds: Mapping[str, float], pools: Mapping[str, str], staleness: int, *, inflight_updates: bool
) -> tuple[Times, float]:
    """A step once engines that generate ahead of it have settled, and its seconds.

    Generation waits for its engines, which take new weights between two steps unless these go in meanwhile, and for
    weights old by `staleness` updates; training for its sequences, and for the step before, whose weights the actor's
    devices send. So each step of either waits for the one before, and the two, with the update between them, for each
    other across `staleness` + 1 steps; in the long run a step takes what the slowest of these cycles takes for one (the
    maximum cycle mean: Baccelli et al., Synchronization and Linearity, 1992, chapter 3). The times are those of the
    work that is done in the step's time, generation for a later one among it.
    """
    rest = walked_graph([name for name in seconds if name not in (GEN, UPDATE_WEIGHTS)])
    times = walk(rest, seconds, pools, Overlap.ALL)
    training = max((end for _, end in times.values()), default=0.0)
    gen, update = seconds.get(GEN, 0.0), seconds.get(UPDATE_WEIGHTS, 0.0)
    _, sends_from = times.get(UPDATE_ACTOR, (0.0, training))
    engines, learners = gen + (0.0 if inflight_updates else update), max(training, sends_from + update)
    step_s = max(engines, learners, (gen + training + update) / (staleness + 1))
    ahead = {GEN: (0.0, gen), UPDATE_WEIGHTS: (training, training + update)}
    return times | {name: ahead[name] for name in ahead if name in seconds}, step_s
