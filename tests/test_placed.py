from hypothesis import given
from hypothesis import strategies as st

from placebench.placed import placed_workload
from placebench.placement_words import parse_placement
from placebench.workload import Workload, build_workload

SHARDED = build_workload({"sharding": "shard", "rollout": {"backend": "vllm", "tensor_parallel_size": 4}})


def test_a_plain_placement_changes_nothing() -> None:
    assert placed_workload(SHARDED, parse_placement("split/overlap=none", [4])) == SHARDED


def test_engines_take_the_placements_size() -> None:
    placed = placed_workload(SHARDED, parse_placement("learners:2+engines:1xtp2", [4]))
    assert placed == SHARDED.model_copy(
        update={"rollout": SHARDED.rollout.model_copy(update={"tensor_parallel_size": 2})}
    )


@given(st.integers(1, 8))
def test_replicas_hold_whole_models_and_scale_the_batch_as_asked(count: int) -> None:
    strong, weak = (
        placed_workload(SHARDED, parse_placement(f"ddp:{count}/scaling={scaling}", [8]))
        for scaling in ("strong", "weak")
    )
    for placed in (strong, weak):
        assert (placed.sharding, placed.rollout.tensor_parallel_size) == ("replicate", 1)
        # It travels to the job as JSON, which validates it again.
        assert Workload.model_validate(placed.model_dump(mode="json")) == placed
    assert strong.batch == SHARDED.batch
    assert weak.batch.size == count * SHARDED.batch.size
    assert weak.batch.size // weak.batch.mini_batch_size == SHARDED.batch.size // SHARDED.batch.mini_batch_size
