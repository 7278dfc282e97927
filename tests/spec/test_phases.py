"""The table of phases agrees with itself."""

import pytest

from placebench.spec.phases import HAND_OVER, PHASE, PHASES, SEQUENCE_FIELDS, Activity, Phase
from placebench.spec.placement import Role
from placebench.spec.stepgraph import step_graph
from placebench.spec.workload import Algorithm


def before(phase: Phase) -> set[str]:
    """Names of all phases that are done when one begins."""
    return {name for needed in phase.after for name in (needed, *before(PHASE[needed]))}


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.name)
def test_a_phase_comes_behind_those_that_it_waits_for_and_reads_what_they_write(phase: Phase) -> None:
    assert before(phase) <= {other.name for other in PHASES[: PHASES.index(phase)]}
    written = {field for name in before(phase) for field in PHASE[name].writes}
    assert {*phase.reads, *phase.stale_reads} <= written


def test_a_field_has_one_phase_that_writes_it() -> None:
    written = [field for phase in PHASES for field in phase.writes]
    assert len(written) == len(set(written))
    assert {"scores"} == SEQUENCE_FIELDS


def test_what_follows_from_what_a_phase_does() -> None:
    assert HAND_OVER == ("sleep", "wake_up")
    assert (
        {phase.role for phase in PHASES if phase.trains} == set(Algorithm().trained_roles) == {Role.ACTOR, Role.CRITIC}
    )
    assert [phase.name for phase in PHASES if not phase.has_sequences] == ["sleep", "adv", "wake_up", "update_weights"]
    assert [phase.name for phase in PHASES if phase.activity is Activity.ARITHMETIC] == [
        phase.name for phase in PHASES if phase.role is None
    ]


def test_engines_in_a_pool_of_their_own_keep_their_memory() -> None:
    names = [phase.name for phase in step_graph(hands_over=True, has_critic=True, has_engines=True)]
    assert names == [phase.name for phase in PHASES if phase.name not in HAND_OVER]
