"""What a placement says over the workload's own keys."""

from hypothesis import given
from hypothesis import strategies as st

from placebench.spec.words import parse_placement
from placebench.spec.workload import placed_workload
from placebench.spec.workload_reading import build_workload


@given(st.integers(1, 8), st.sampled_from(["replicate", "shard"]))
def test_replicas_are_whole_and_share_or_multiply_the_batch(devices: int, sharding: str) -> None:
    workload = build_workload({"sharding": sharding})
    strong, weak = (
        placed_workload(workload, parse_placement(f"ddp:{devices}/scaling={scaling}", [8]))
        for scaling in ("strong", "weak")
    )
    assert strong == workload.model_copy(update={"sharding": "replicate"})
    assert (weak.batch.size, weak.batch.mini_batch_size) == (128 * devices, 32 * devices)
    assert (weak.sharding, weak.algorithm) == ("replicate", workload.algorithm)


def test_other_placements_leave_the_workload_as_it_is() -> None:
    workload = build_workload({"sharding": "shard"})
    assert placed_workload(workload, parse_placement("split", [2])) == workload
    engines = placed_workload(workload, parse_placement("learners:1+engines:1xtp2", [4]))
    assert engines.rollout.tensor_parallel_size == 2
    assert engines.batch == workload.batch
