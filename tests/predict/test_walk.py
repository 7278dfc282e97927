"""The length of a step of engines that generate ahead, beside the steps themselves, one after the other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placebench.predict.walk import step_times
from placebench.spec.phases import GEN, UPDATE_WEIGHTS
from placebench.spec.placement import Overlap

SECONDS = st.floats(0.1, 10)


@given(st.integers(1, 4), SECONDS, SECONDS, SECONDS, st.booleans())
def test_a_step_of_engines_that_run_ahead_is_as_long_as_many_are_on_average(
    staleness: int, gen: float, training: float, update: float, inflight: bool
) -> None:
    cycles = 100
    steps = 2 * cycles * (staleness + 1)
    generated, trained, sent = [0.0], [0.0], [0.0]
    for step in range(1, steps + 1):
        free = generated[-1] + (0.0 if inflight or step == 1 else update)
        generated.append(max(free, sent[max(0, step - 1 - staleness)]) + gen)
        trained.append(max(generated[-1], sent[-1]) + training)
        sent.append(trained[-1] + update)
    settled = (trained[-1] - trained[steps // 2]) / (steps // 2)
    names = (GEN, "update_actor", UPDATE_WEIGHTS)
    seconds = dict(zip(names, (gen, training, update), strict=True))
    pools = {GEN: "engines", "update_actor": "learners", UPDATE_WEIGHTS: "learners"}
    _, found = step_times(
        names, seconds, pools, Overlap.ALL, staleness=staleness, has_engines=True, inflight_updates=inflight
    )
    assert found == pytest.approx(settled, rel=1e-6)
