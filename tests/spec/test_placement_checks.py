"""Batches that pools cannot share, and the sizes proposed for them."""

import math

from hypothesis import given
from hypothesis import strategies as st

from placebench.spec.placement_checks import impossible_placements
from placebench.spec.words import parse_placement
from placebench.spec.workload_reading import build_workload


@given(*(st.integers(1, most) for most in (300, 40, 7, 7, 7)), st.sampled_from([1, 2, 6]))
def test_the_sizes_proposed_for_a_batch_work(
    minis: int, mini_batch: int, actor: int, critic: int, engines: int, group: int
) -> None:
    placements = (
        parse_placement(f"split:{actor}+{critic}", [14]),
        parse_placement("standard", [actor + critic]),
        parse_placement(f"learners:{actor}+engines:{engines}/staleness=1", [14]),
        parse_placement(f"ddp:{critic}/scaling=weak", [14]),
    )

    def refusals(size: int, mini_batch_size: int) -> list[str]:
        batch = {"size": size, "mini_batch_size": mini_batch_size, "group_size": group}
        return list(impossible_placements(placements, build_workload({"batch": batch})))

    for line in refusals(minis * mini_batch * group, mini_batch):
        words = line.split()
        assert refusals(int(words[words.index("--batch-size") + 1]), int(words[-1])) == []


@given(*(st.integers(1, most) for most in (8, 30, 6, 3)), st.sampled_from([1, 2, 6]))
def test_no_sizes_that_work_are_nearer_than_those_proposed(
    minis: int, mini_batch: int, learners: int, engines: int, group: int
) -> None:
    placement = parse_placement(f"learners:{learners}+engines:{engines}", [9])

    def refusals(size: int, mini_batch_size: int) -> list[str]:
        batch = {"size": size, "mini_batch_size": mini_batch_size, "group_size": group}
        return list(impossible_placements([placement], build_workload({"batch": batch})))

    def distance(size: int, mini_batch_size: int) -> float:
        return abs(math.log(size / asked[0])) + abs(math.log(mini_batch_size / asked[1]))

    asked = (minis * mini_batch * group, mini_batch)
    for line in refusals(*asked):
        words = line.split()
        proposed = distance(int(words[words.index("--batch-size") + 1]), int(words[-1]))
        reach = math.exp(proposed)
        nearer = (
            (size, each)
            for each in range(1, math.ceil(asked[1] * reach))
            for size in range(each, math.ceil(asked[0] * reach), each)
            if size % group == 0 and distance(size, each) < proposed - 1e-9
        )
        assert all(refusals(*sizes) for sizes in nearer)
