"""The step graph across steps: what running ahead waits for, and what may outlast its step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placebench.ppo.metrics import PhaseIntervals
from placebench.spec.intervals import length
from placebench.spec.placement import Role
from placebench.spec.stepgraph import step_graph


@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("has_critic", [True, False])
def test_generating_waits_for_weights_as_old_as_allowed(staleness: int, has_critic: bool) -> None:
    phases = step_graph(hands_over=False, has_critic=has_critic, staleness=staleness, has_engines=True)
    graph = {phase.name: phase for phase in phases}
    assert graph["gen"].across == (("update_weights", staleness + 1),)
    assert graph["update_weights"].partner is Role.ACTOR
    # The actor changes only when its last weights have gone out.
    assert graph["update_actor"].across == ((("update_weights", 1),) if staleness else ())
    assert {name for name, phase in graph.items() if phase.outlasts} == ({"update_weights"} if staleness else set())


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_a_pool_that_generates_and_trains_generates_ahead_before_it_trains(staleness: int) -> None:
    graph = {phase.name: phase for phase in step_graph(hands_over=True, has_critic=True, staleness=staleness)}
    assert graph["gen"].across == (("update_weights", staleness + 1),)
    ahead = (("gen", -staleness),) if staleness else ()
    assert graph["sleep"].across == graph["update_actor"].across == ahead
    assert not any(phase.outlasts for phase in graph.values())


def test_a_phase_counts_for_the_step_in_whose_time_it_is() -> None:
    times = PhaseIntervals()
    times.add("gen", 1.0, 4.0)
    times.add("gen", 3.0, 6.0)
    times.add("update_actor", 5.0, 5.5)
    first = times.cut(2.0, 5.25)
    assert {phase: length(found) for phase, found in first.items()} == {"gen": 3.25, "update_actor": 0.25}
    assert times.cut(5.25, 7.0) == {}


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 5)), min_size=1, max_size=10))
def test_no_phase_takes_longer_than_the_step(recorded: list[tuple[float, float]]) -> None:
    times = PhaseIntervals()
    for start, seconds in recorded:
        times.add("gen", start, start + seconds)
    assert 0 <= length(times.cut(2.0, 6.0)["gen"]) <= 4.0
