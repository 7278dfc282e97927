"""What was measured of nearly the same work, and how it fades."""

from dataclasses import replace
from itertools import pairwise
from math import exp, inf, log

import pytest

from placebench.predict.nearby import Neighbor, correction, distance
from placebench.predict.work import phase_work
from placebench.spec.shapes import job_shapes
from placebench.spec.workload_reading import build_workload

WORKLOAD = build_workload({"model": "qwen2.5-0.5b", "batch": {"size": 64, "mini_batch_size": 32}})


def test_the_correction_fades_from_what_was_measured_to_none() -> None:
    assert correction([]) == 1
    assert correction([Neighbor(0.0, log(1.1)), Neighbor(0.0, log(1.3)), Neighbor(0.2, 5.0)]) == pytest.approx(
        exp((log(1.1) + log(1.3)) / 2)
    )
    found = [correction([Neighbor(step / 100, log(1.1))]) for step in range(1, 45)]
    assert found[0] == pytest.approx(1.1, rel=0.003)
    assert found == sorted(found, reverse=True)
    assert found[-1] == 1
    assert all(before / after < 1.004 for before, after in pairwise(found))
    # The nearer of two counts more, and their reach is that of the nearer one.
    near, far = Neighbor(0.05, log(1.1)), Neighbor(0.3, log(0.9))
    assert 1.05 < correction([near, far]) < correction([near])
    assert correction([Neighbor(log(1.5), log(2.0)), Neighbor(inf, log(2.0))]) == 1


@pytest.mark.parametrize("phase", ["gen", "old_log_prob", "update_actor", "reward", "wake_up"])
def test_work_is_as_far_off_as_its_count_that_differs_most(phase: str) -> None:
    shapes = job_shapes(WORKLOAD)
    first = phase_work(phase, WORKLOAD, shapes, 2)
    assert distance(first, first) == 0
    larger = WORKLOAD.model_copy(
        update={"batch": WORKLOAD.batch.model_copy(update={"size": 80, "mini_batch_size": 40})}
    )
    assert distance(first, phase_work(phase, larger, shapes, 2)) >= log(80 / 64) - 1e-9
    assert distance(first, replace(first, micro_batch_tokens=2 * first.micro_batch_tokens)) == pytest.approx(log(2))
    assert distance(first, phase_work(phase, WORKLOAD, shapes, 4)) == inf
    assert distance(first, replace(first, is_sharded=not first.is_sharded)) == inf
