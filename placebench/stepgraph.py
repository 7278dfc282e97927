"""The phases of one training step and what each of them waits for.

One graph serves everything: the controller executes it, the timeline draws it, device samples are
attributed by it. A placement decides only in which pool a phase runs.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from placebench.placement import Overlap, Role


@dataclass(frozen=True)
class Phase:
    """One timed part of a step.

    Attributes:
        name: verl's name of the phase; its metric is `timing_s/<name>`.
        role: the role whose pool does the work; None when the controller does it.
        after: the phases whose results it needs.
        trains: whether it changes weights (`overlap: updates` lets only these run side by side).
    """

    name: str
    role: Role | None
    after: tuple[str, ...]
    trains: bool = False


PPO_STEP: tuple[Phase, ...] = (
    Phase("gen", Role.ROLLOUT, ()),
    Phase("reward", Role.REWARD, ("gen",)),
    Phase("old_log_prob", Role.ACTOR, ("gen",)),
    Phase("ref", Role.REF, ("gen",)),
    Phase("values", Role.CRITIC, ("gen",)),
    Phase("adv", None, ("reward", "old_log_prob", "ref", "values")),
    Phase("update_critic", Role.CRITIC, ("adv",), trains=True),
    Phase("update_actor", Role.ACTOR, ("adv",), trains=True),
    Phase("update_weights", Role.ROLLOUT, ("update_actor",)),
)

PHASE_ORDER: tuple[str, ...] = tuple(phase.name for phase in PPO_STEP)


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
    by_name = {phase.name: phase for phase in phases}
    chosen: list[Phase] = []
    for phase in phases:
        if phase.name in done or phase.name in running or not done.issuperset(phase.after):
            continue
        busy = [by_name[name] for name in running] + chosen
        if (
            overlap is Overlap.ALL
            or not busy
            or (overlap is Overlap.UPDATES and phase.trains and all(other.trains for other in busy))
        ):
            chosen.append(phase)
    return tuple(chosen)
