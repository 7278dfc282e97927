from collections.abc import Iterable, Mapping
from itertools import pairwise

import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from layouts import ROLES, SPLIT, STANDARD, Layout
from placed import run_placement

from placebench.compare.measure.critical_path import SpanGraph, path_shares
from placebench.compare.metrics import END
from placebench.spec.bound import RunPlacement

ROLE_NAMES = ("actor", "rollout", "ref", "critic", "reward")
Row = tuple[int, str, str, float, float]


def placed(pools: Mapping[str, tuple[str, ...]], overlap: str = "all", staleness: int = 0) -> RunPlacement:
    """The first pool has every role but the critic's, which lives in the last."""
    first, *_, last = *pools, *pools
    return run_placement("tested", pools, dict.fromkeys(ROLE_NAMES, first) | {"critic": last}, overlap, staleness)


ONE = placed({"pool": ("a", "b")})
TWO = placed({"actor_pool": ("a",), "critic_pool": ("b",)})


def frame(rows: Iterable[Row]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["step", "phase", "device", "start", "end"])


def whole(step: int, start: float, end: float) -> Row:
    return (step, "step", "controller", start, end)


def path(rows: Iterable[Row], placement: RunPlacement, step: int = 1) -> list[tuple[str, float, float]]:
    """The path as (phase, start, end), gaps with a minus before the phase that they precede."""
    found = SpanGraph(frame(rows), placement).critical_path(step)
    return [
        (f"{'-' if segment.is_gap else ''}{segment.phase}", round(segment.start, 9), round(segment.end, 9))
        for segment in found
    ]


def test_weights_of_a_job_wait_for_every_update_that_is_joined_before_them() -> None:
    rows = [
        whole(1, 0.0, 10.0),
        (1, "adv", "controller", 0.0, 1.0),
        (1, "update_actor", "a", 1.0, 5.0),
        (1, "update_critic", "b", 1.5, 8.0),
        (1, "update_weights", "a", 8.5, 10.0),
    ]
    assert [one[0] for one in path(rows, TWO)] == ["adv", "update_actor", "-update_weights", "update_weights"]
    found = SpanGraph(frame(rows), TWO, joins_updates=True).critical_path(1)
    names = [(segment.phase, segment.is_gap) for segment in found]
    assert names == [
        ("adv", False), ("update_critic", True), ("update_critic", False), ("update_weights", True),
        ("update_weights", False),
    ]  # fmt: skip


def of_layout(layout: Layout) -> list[Row]:
    """A layout's spans, on its devices and in the controller."""
    rows = [whole(1, 0.0, layout.step_s)]
    for phase, (start, end) in layout.times.items():
        pool = layout.roles.get(ROLES[phase] or "")
        rows += [(1, phase, device, start, end) for device in ("controller", *layout.pools.get(pool or "", ()))]
    return rows


def test_a_serial_step_is_all_path() -> None:
    found = path(of_layout(STANDARD), run_placement("standard", STANDARD.pools, STANDARD.roles, "all"))
    assert found == [
        ("-gen", 0.0, 0.01),
        *((phase, *times) for phase, times in STANDARD.times.items()),
        (f"-{END}", 1.28, 1.30),
    ]


def test_an_overlapped_step_leads_through_what_ended_last() -> None:
    found = path(of_layout(SPLIT), run_placement("split", SPLIT.pools, SPLIT.roles, "all"))
    assert found == [
        ("-gen", 0.0, 0.01),
        ("gen", 0.01, 0.91),
        ("old_log_prob", 0.91, 1.11),
        ("ref", 1.11, 1.31),
        ("adv", 1.31, 1.32),
        ("update_actor", 1.32, 1.80),
        ("update_weights", 1.80, 1.81),
        (f"-{END}", 1.81, 1.83),
    ]


def test_what_lies_beside_the_path_is_told() -> None:
    graph = SpanGraph(frame(of_layout(SPLIT)), run_placement("split", SPLIT.pools, SPLIT.roles, "all"))
    shares = {key: share * 1.83 for key, share in path_shares(graph, 1).items()}
    assert {key: round(shares[key], 9) for key in shares if key.startswith(("off_path/", "beside/"))} == {
        "off_path/gen": 0,
        "off_path/reward": 0.01,
        "beside/reward+old_log_prob": 0.01,
        "off_path/old_log_prob": 0,
        "beside/values+old_log_prob": 0.19,
        "beside/values+ref": 0.01,
        "off_path/values": 0.2,
        "off_path/ref": 0,
        "off_path/adv": 0,
        "off_path/update_actor": 0,
        "beside/update_critic+update_actor": 0.4,
        "off_path/update_critic": 0.4,
        "off_path/update_weights": 0,
    }


def test_a_pause_of_the_controller_is_a_segment_of_its_own() -> None:
    rows = [
        (1, "gen", "a", 0.0, 1.0),
        (1, "gen", "b", 0.0, 1.0),
        (1, "update_actor", "a", 1.25, 2.0),
        (1, "update_actor", "b", 1.25, 2.0),
        whole(1, 0.0, 2.0),
    ]
    assert path(rows, ONE) == [("gen", 0, 1), ("-update_actor", 1, 1.25), ("update_actor", 1.25, 2)]


def test_a_slower_rank_holds_the_path_and_its_imbalance_is_counted() -> None:
    rows = [
        (1, "gen", "a", 0.0, 1.0),
        (1, "gen", "b", 0.0, 1.4),
        (1, "update_actor", "a", 1.5, 2.0),
        (1, "update_actor", "b", 1.6, 2.0),
        whole(1, 0.0, 2.0),
    ]
    assert path(rows, ONE) == [("gen", 0, 1.4), ("-update_actor", 1.4, 1.5), ("update_actor", 1.5, 2)]
    gen, _, update = SpanGraph(frame(rows), ONE).critical_path(1)
    assert gen.device == "b"
    assert gen.imbalance == pytest.approx(0.2)
    assert update.imbalance == pytest.approx(0.05)


def test_pools_of_different_sizes_are_bound_by_the_slower_one() -> None:
    placement = placed({"actor_pool": ("a", "b", "c"), "critic_pool": ("d",)})
    rows = [
        *((1, "gen", device, 0.0, 1.0) for device in "abc"),
        *((1, "old_log_prob", device, 1.0, 1.2) for device in "abc"),
        (1, "values", "d", 1.0, 1.6),
        (1, "adv", "controller", 1.6, 1.7),
        *((1, "update_actor", device, 1.7, 2.2) for device in "abc"),
        (1, "update_critic", "d", 1.7, 3.2),
        *((1, "update_weights", device, 2.2, 2.3) for device in "abc"),
        whole(1, 0.0, 3.2),
    ]
    assert [phase for phase, *_ in path(rows, placement)] == ["gen", "values", "adv", "update_critic"]


def test_a_phase_waits_for_the_one_before_it_in_its_pool() -> None:
    # ref has its inputs at 1.0 and starts when old_log_prob frees the pool; values ends a little before that.
    rows = [
        (1, "gen", "a", 0.0, 1.0),
        (1, "values", "b", 1.0, 1.499),
        (1, "old_log_prob", "a", 1.0, 1.49),
        (1, "ref", "a", 1.5, 2.0),
        whole(1, 0.0, 2.0),
    ]
    assert path(rows, TWO) == [("gen", 0, 1), ("old_log_prob", 1, 1.49), ("-ref", 1.49, 1.5), ("ref", 1.5, 2)]


def test_without_overlap_every_phase_waits_for_the_one_before() -> None:
    rows = [
        (1, "gen", "a", 0.0, 1.0),
        (1, "old_log_prob", "a", 1.0, 1.5),
        (1, "values", "b", 1.5, 2.0),
        (1, "ref", "a", 2.0, 2.5),
        whole(1, 0.0, 2.5),
    ]
    blocking = placed({"actor_pool": ("a",), "critic_pool": ("b",)}, overlap="none")
    assert [phase for phase, *_ in path(rows, blocking)] == ["gen", "old_log_prob", "values", "ref"]


def test_a_step_without_critic_has_its_path() -> None:
    rows = [
        (1, "gen", "a", 0.0, 1.0),
        (1, "reward", "b", 1.0, 1.9),
        (1, "ref", "a", 1.0, 1.5),
        (1, "adv", "controller", 1.9, 2.0),
        (1, "update_actor", "a", 2.0, 3.0),
        whole(1, 0.0, 3.0),
    ]
    assert [phase for phase, *_ in path(rows, TWO)] == ["gen", "reward", "adv", "update_actor"]


def test_a_phase_that_the_graph_does_not_know_waits_for_all_before_it() -> None:
    rows = [
        (1, "update_actor", "a", 0.0, 1.0),
        (1, "save_checkpoint", "b", 1.0, 1.5),
        whole(1, 0.0, 1.5),
    ]
    assert path(rows, TWO) == [("update_actor", 0, 1), ("save_checkpoint", 1, 1.5)]
    # It is no part of training, so it is none of the step's numbers.
    assert path_shares(SpanGraph(frame(rows), TWO), 1) == {
        "path/update_actor": 1.0,
        "imbalance/update_actor": 0.0,
        "off_path/update_actor": 0.0,
    }


def stale(gen_s: float, train_s: float) -> list[Row]:
    """Engines on b, a learner on a, weights one update old: both sides as soon as they may, for four steps."""
    rows: list[Row] = []
    generated, trained = [0.0], [0.0]
    for step in range(1, 6):
        start = max(generated[-1], trained[max(0, step - 2)])
        generated.append(start + gen_s)
        rows.append((step, "gen", "b", start, generated[-1]))
        begin = max(generated[-1], trained[-1])
        trained.append(begin + train_s)
        rows.append((step, "update_actor", "a", begin, begin + 0.9 * train_s))
        rows.append((step, "update_weights", "a", begin + 0.9 * train_s, trained[-1]))
        rows.append(whole(step, trained[-2], trained[-1]))
    return rows


def learners(*engines: str, staleness: int) -> RunPlacement:
    """A learner on a, engines that generate on devices of their own."""
    roles = dict.fromkeys(ROLE_NAMES, "learners") | {"rollout": "engines"}
    return run_placement("learners", {"learners": ("a",), "engines": engines}, roles, "all", staleness)


LEARNERS = learners("b", staleness=1)


def test_stale_weights_with_slow_generation_put_its_end_on_the_path() -> None:
    # Generation takes 3 s and never waits; training takes 1 s and waits 2 s for it in every step.
    assert path(stale(3.0, 1.0), LEARNERS, step=4) == [
        ("gen", 10, 12),
        ("update_actor", 12, 12.9),
        ("update_weights", 12.9, 13),
    ]
    shares = path_shares(SpanGraph(frame(stale(3.0, 1.0)), LEARNERS), 4)
    # In the step's 3 s the engines generate all the time: 2 s of it training waits for, 1 s lies beside training.
    assert shares["path/gen"] == pytest.approx(2 / 3)
    assert shares["off_path/gen"] == pytest.approx(1 / 3)
    assert shares["beside/gen+update_actor"] == pytest.approx(0.9 / 3)


def test_stale_weights_with_slow_training_leave_generation_off_the_path() -> None:
    assert path(stale(1.0, 3.0), LEARNERS, step=4) == [("update_actor", 10, 12.7), ("update_weights", 12.7, 13)]
    assert path_shares(SpanGraph(frame(stale(1.0, 3.0)), LEARNERS), 4)["off_path/gen"] == pytest.approx(1 / 3)


def test_generation_that_waits_for_weights_leads_the_path_back_to_training() -> None:
    # Nothing is stale: the step is cut in the middle, so that it has the end of the step before in it.
    rows = [
        (1, "update_actor", "a", 0.0, 1.0),
        (1, "update_weights", "a", 1.0, 1.25),
        (2, "gen", "b", 1.25, 2.0),
        (2, "update_actor", "a", 2.0, 3.0),
        whole(2, 0.5, 3.0),
    ]
    assert path(rows, learners("b", staleness=0), step=2) == [
        ("update_actor", 0.5, 1),
        ("update_weights", 1, 1.25),
        ("gen", 1.25, 2),
        ("update_actor", 2, 3),
    ]


def test_engines_each_generate_their_part_and_the_last_one_lets_training_start() -> None:
    rows = [
        whole(1, 0.0, 3.0),
        (2, "gen", "b", 1.0, 4.0),
        (2, "gen", "c", 2.0, 5.0),
        (3, "gen", "b", 4.0, 7.0),
        (3, "gen", "c", 5.0, 8.0),
        (2, "update_actor", "a", 5.1, 6.0),
        (2, "update_weights", "a", 6.1, 6.5),
        whole(2, 3.0, 6.05),
    ]
    placement = learners("b", "c", staleness=1)
    assert path(rows, placement, step=2) == [
        ("gen", 3, 5),
        ("-update_actor", 5, 5.1),
        ("update_actor", 5.1, 6),
        (f"-{END}", 6, 6.05),
    ]
    # Beside the path both engines generate, for the step and ahead of it; their time counts once.
    seconds = {key: share * 3.05 for key, share in path_shares(SpanGraph(frame(rows), placement), 2).items()}
    assert seconds["off_path/gen"] == pytest.approx(3.05 - 2)
    assert seconds["beside/gen+update_actor"] == pytest.approx(0.9)


def test_an_update_that_waits_for_older_weights_on_their_way_has_them_on_its_path() -> None:
    rows = [
        (1, "update_weights", "a", 2.0, 3.5),
        (1, "update_weights", "b", 2.0, 3.5),
        (2, "gen", "b", 0.0, 2.0),
        (2, "update_actor", "a", 3.5, 4.5),
        whole(2, 2.0, 4.5),
    ]
    assert path(rows, LEARNERS, step=2) == [("update_weights", 2, 3.5), ("update_actor", 3.5, 4.5)]


def test_a_step_that_is_not_on_record_has_no_path() -> None:
    graph = SpanGraph(frame([(1, "gen", "a", 0.0, 1.0)]), TWO)
    assert graph.critical_path(1) == ()
    assert path_shares(graph, 1) == {}


def test_a_step_without_phases_is_one_gap() -> None:
    assert path([whole(1, 2.0, 3.0)], TWO) == [(f"-{END}", 2, 3)]


times = st.floats(0, 10, allow_nan=False, allow_infinity=False)
rows = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from([*ROLES, "testing"]), st.sampled_from("abc"), times, times),
    max_size=24,
)


# All of it is validation but for what rounding leaves of its ends.
@example(
    [(1, "testing", "a", 0.0, 2.0), (2, "testing", "b", 2.0, 4.0), (2, "gen", "b", 0.0, 2.0)],
    1.6012221951505958,
    2.0,
    "all",
    0,
)
@given(rows, times, times, st.sampled_from(["all", "updates", "none"]), st.integers(0, 2))
def test_whatever_the_spans_the_path_is_the_step(
    spans: list[Row], start: float, seconds: float, overlap: str, staleness: int
) -> None:
    ordered = [(step, phase, device, min(ends), max(ends)) for step, phase, device, *ends in spans]
    placement = placed({"actor_pool": ("a", "b"), "critic_pool": ("c",)}, overlap, staleness)
    graph = SpanGraph(frame([*ordered, whole(2, start, start + seconds)]), placement)
    found = graph.critical_path(2)
    assert all(earlier.end == later.start for earlier, later in pairwise(found))
    assert all(segment.end > segment.start and 0 <= segment.imbalance <= segment.seconds for segment in found)
    if start + seconds > start:
        assert (found[0].start, found[-1].end) == (start, start + seconds)
        shares = path_shares(graph, 2)
        on_path = [share for key, share in shares.items() if key.startswith(("path/", "gap/"))]
        # All of the step may be validation, which is no part of it.
        assert sum(on_path) == pytest.approx(1 if shares else 0)
