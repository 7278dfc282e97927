"""The phases of a training step: a row for each, with all that the program knows of it.

The step graph runs and draws them by these rows; step data, memory, operations, forecasts and colors follow from them.
What a phase does is the method `_run_<name>` of `ppo.worker.Worker`, or of one without a role `_compute_<name>` of
`ppo.step_data.StepData`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from placebench.spec.placement import Role


class Activity(StrEnum):
    """What a phase does; its operations, its memory, and whether its ranks need sequences follow from it."""

    GENERATE = "generate"
    """A pass over every sequence, token by token, with the actor's weights."""
    FORWARD = "forward"
    """A pass over every sequence without gradient, with the model of the phase's role, or a function in its place."""
    UPDATE = "update"
    """In each epoch a pass over every sequence, forward and backward, with the model of the role, which changes."""
    ARITHMETIC = "arithmetic"
    """Work on numbers of the sequences, without a model."""
    SEND_WEIGHTS = "send_weights"
    """The actor's weights, on their way to what generates."""
    HAND_OVER = "hand_over"
    """Memory that the rollout's engine gives to training, or takes again."""

    @property
    def passes(self) -> int:
        """Operations of one pass over the sequences, in those of a forward pass; a backward pass has twice these."""
        return {Activity.GENERATE: 1, Activity.FORWARD: 1, Activity.UPDATE: 3}.get(self, 0)


@dataclass(frozen=True)
class Phase:
    """One timed part of a step."""

    name: str
    """Verl's name of the phase; its metric is `timing_s/<name>`."""
    role: Role | None
    """The role whose pool does the work; None when the controller does it."""
    activity: Activity
    """What the phase does."""
    color: str
    """Its color in all figures, which color-blind readers tell from that of its neighbors."""
    after: tuple[str, ...] = ()
    """Phases of the step whose results it needs."""
    reads: tuple[str, ...] = ()
    """Fields of the sequences that it needs."""
    stale_reads: tuple[str, ...] = ()
    """Fields that it needs besides where older weights than the actor's may have generated."""
    takes: tuple[str, ...] = ()
    """What else of its step it needs, as `ppo.step_data` names it."""
    writes: tuple[str, ...] = ()
    """Fields of the sequences that its result becomes."""
    per_sequence: bool = False
    """Whether what it writes has one value a sequence; otherwise one a token of the response."""
    partner: Role | None = None
    """A role whose pool takes part too, where that is another one."""
    across: tuple[tuple[str, int], ...] = ()
    """Phases of other steps that it waits for, as the step graph sets them: name, and how many steps back, below 0 for
    a later step."""
    outlasts: bool = False
    """Whether the next step may begin before it is done, as the step graph sets it."""

    @property
    def trains(self) -> bool:
        """Whether it changes weights (`overlap: updates` lets only these run side by side)."""
        return self.activity is Activity.UPDATE

    @property
    def has_sequences(self) -> bool:
        """Whether its ranks work on sequences, each on a share of them."""
        return self.activity.passes > 0


# Those that running ahead turns on: see `stepgraph`.
GEN, SLEEP, UPDATE_ACTOR, UPDATE_WEIGHTS = "gen", "sleep", "update_actor", "update_weights"

# In the order of a step: of phases that may begin, a pool takes the first. Colors are from Paul Tol's 'muted' scheme,
# told apart with every common color vision; of phases that hand over memory, which are short and beside those of the
# rollout, from his 'light' scheme.
# fmt: off
PHASES: tuple[Phase, ...] = (
    Phase(GEN, Role.ROLLOUT, Activity.GENERATE, "#332288", writes=("rollout_log_probs",)),
    # Before all other work of the pool, as `wake_up` comes after it.
    Phase(SLEEP, Role.ROLLOUT, Activity.HAND_OVER, "#bbcc33", after=(GEN,)),
    Phase("reward", Role.REWARD, Activity.FORWARD, "#ddcc77", after=(GEN,),
          takes=("prompts", "answers"), writes=("scores",), per_sequence=True),
    Phase("old_log_prob", Role.ACTOR, Activity.FORWARD, "#88ccee", after=(GEN,), writes=("old_log_probs",)),
    Phase("ref", Role.REF, Activity.FORWARD, "#44aa99", after=(GEN,), writes=("ref_log_probs",)),
    Phase("values", Role.CRITIC, Activity.FORWARD, "#aa4499", after=(GEN,), writes=("values",)),
    Phase("adv", None, Activity.ARITHMETIC, "#999933", after=("reward", "old_log_prob", "ref", "values"),
          reads=("scores", "old_log_probs", "ref_log_probs", "values"), writes=("advantages", "returns")),
    Phase("update_critic", Role.CRITIC, Activity.UPDATE, "#882255", after=("adv",),
          reads=("values", "returns"), takes=("mini_batch_tokens",)),
    Phase(UPDATE_ACTOR, Role.ACTOR, Activity.UPDATE, "#117733", after=("adv",),
          reads=("old_log_probs", "ref_log_probs", "advantages"), stale_reads=("rollout_log_probs",),
          takes=("mini_batch_tokens", "kl_coef")),
    Phase("wake_up", Role.ROLLOUT, Activity.HAND_OVER, "#ffaabb", after=(SLEEP, UPDATE_ACTOR)),
    Phase(UPDATE_WEIGHTS, Role.ROLLOUT, Activity.SEND_WEIGHTS, "#cc6677", after=(UPDATE_ACTOR, "wake_up"),
          takes=("version",), partner=Role.ACTOR),
)
# fmt: on
PHASE: Mapping[str, Phase] = {phase.name: phase for phase in PHASES}
PHASE_ORDER: tuple[str, ...] = tuple(PHASE)
# What stands beside the phases: the whole step, and of it the time that none of them explains.
STEP, UNATTRIBUTED = "step", "unattributed"
HAND_OVER: tuple[str, ...] = tuple(phase.name for phase in PHASES if phase.activity is Activity.HAND_OVER)
"""Phases in which the rollout's engine hands its memory to training and takes it again."""
SEQUENCE_FIELDS = frozenset(field for phase in PHASES if phase.per_sequence for field in phase.writes)
"""Fields with one value a sequence, which every rank has of its share."""


def phase_order(phases: Iterable[str]) -> list[str]:
    """Phases in the order in which every table and figure shows them: the step graph's, others by name, the whole."""
    known = {phase: rank for rank, phase in enumerate(PHASE_ORDER)}
    last = {UNATTRIBUTED: len(known) + 1, STEP: len(known) + 2}
    return sorted(set(phases), key=lambda phase: (known.get(phase, last.get(phase, len(known))), phase))
