"""What the phases of a training step wait for: edges of `phases`, as a placement and an algorithm change them.

One graph serves everything: the controller executes it, the timeline draws it, device samples are
attributed by it. A placement decides only in which pool a phase runs.

Steps follow each other: a step begins when the one before it is over. Edges reach across. `gen` waits for weights that
are new enough, which with a staleness above 0 are older than those that the step begins with, so that it runs ahead of
its step. With engines in a pool of their own the weights' way to them may then go on when its step is over, until the
actor changes. Without, the actor changes only when it has generated for the step that is `staleness` ahead.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from placebench.spec.phases import GEN, HAND_OVER, PHASES, SLEEP, UPDATE_ACTOR, UPDATE_WEIGHTS, Phase
from placebench.spec.placement import Overlap, Role


def step_graph(
    *, hands_over: bool, has_critic: bool, staleness: int = 0, has_engines: bool = False
) -> tuple[Phase, ...]:
    """The phases of one step.

    Args:
        hands_over: whether the rollout's engine gives its memory back while its pool trains, if that is the actor's.
        has_critic: whether a critic is trained, as in PPO; GRPO's step goes without its phases.
        staleness: how many updates the weights that generate may lag behind those that the step begins with.
        has_engines: whether responses are generated in a pool apart from the actor's.
    """
    left_out = set[str]()
    if not has_critic:
        left_out |= {phase.name for phase in PHASES if phase.role is Role.CRITIC}
    if not hands_over or has_engines:
        left_out |= {*HAND_OVER}
    across = {GEN: ((UPDATE_WEIGHTS, staleness + 1),)}
    outlasts = set[str]()
    if staleness and has_engines:
        outlasts = {UPDATE_WEIGHTS}
        across[UPDATE_ACTOR] = ((UPDATE_WEIGHTS, 1),)
    elif staleness:
        across |= dict.fromkeys((SLEEP, UPDATE_ACTOR), ((GEN, -staleness),))
    return tuple(
        replace(
            phase,
            after=tuple(name for name in phase.after if name not in left_out),
            across=across.get(phase.name, ()),
            outlasts=phase.name in outlasts,
        )
        for phase in PHASES
        if phase.name not in left_out
    )


def ready_phases(
    graph: Iterable[Phase], done: frozenset[str], running: frozenset[str], overlap: Overlap
) -> tuple[Phase, ...]:
    """Phases that may be submitted now, in the graph's order.

    Args:
        graph: the step's phases.
        done: names of finished phases.
        running: names of phases submitted and not finished.
        overlap: what may run side by side; phases of one pool queue up in their workers anyway.
    """
    phases = tuple(graph)
    busy = [phase for phase in phases if phase.name in running]
    chosen: list[Phase] = []
    for phase in phases:
        if phase.name in done or phase.name in running or not done.issuperset(phase.after):
            continue
        if (
            overlap is Overlap.ALL
            or not busy
            or (overlap is Overlap.UPDATES and phase.trains and all(other.trains for other in busy))
        ):
            chosen.append(phase)
            busy.append(phase)
    return tuple(chosen)


def graph_among(names: Collection[str], staleness: int = 0, *, has_engines: bool = False) -> tuple[Phase, ...]:
    """The phases of these names, as a run shows which it had; names that are none of the graph's are left out.

    In place of an input that is not there stand the phases that it would have waited for.

    Args:
        names: of phases.
        staleness: as in `step_graph`.
        has_engines: likewise.
    """
    inputs: dict[str, tuple[str, ...]] = {}
    phases = step_graph(hands_over=True, has_critic=True, staleness=staleness, has_engines=has_engines)
    for phase in phases:
        needed = (wanted for name in phase.after for wanted in ((name,) if name in names else inputs[name]))
        inputs[phase.name] = tuple(dict.fromkeys(needed))
    return tuple(replace(phase, after=inputs[phase.name]) for phase in phases if phase.name in names)
