"""Phases of timers that enclose each other."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placebench.jobs.nested import Timing, crossing, exclusive

# As a trainer of TRL's times a step: what is made ready is no part of the update, generation is a phase within it.
PHASES = {
    "training_step": "update",
    "prepare": "",
    "generate": "gen",
    "prepare > log_probs": "old_log_prob",
}


def test_the_innermost_timer_says_the_phase() -> None:
    timings = [
        Timing("training_step", 0, 10),
        Timing("prepare", 1, 6),
        Timing("generate", 2, 4),
        Timing("log_probs", 4, 5),
        Timing("compute_loss", 6, 9),
        Timing("log_probs", 7, 8),  # of the update, as compute_loss around it is
        Timing("generate", 12, 13),
    ]
    assert exclusive(timings[::-1], PHASES) == [
        Timing("update", 0, 1),
        Timing("gen", 2, 4),
        Timing("old_log_prob", 4, 5),
        Timing("update", 6, 10),
        Timing("gen", 12, 13),
    ]


def test_the_way_to_a_timer_within_is_no_work() -> None:
    """Else the update would seem to begin before generation and to last as long as it."""
    timings = [Timing("training_step", 0, 10), Timing("prepare", 0.008, 6), Timing("generate", 2, 4)]
    assert exclusive(timings[::-1], PHASES) == [Timing("gen", 2, 4), Timing("update", 6, 10)]
    short = [Timing("generate", 0, 0.0005), Timing("training_step", 1, 1.0006), Timing("other", 1.0002, 1.0004)]
    assert exclusive(short, PHASES) == [Timing("gen", 0, 0.0005), Timing("update", 1, 1.0006)]


@pytest.mark.parametrize("name", ["unknown", "log_probs"])
def test_a_name_that_says_no_phase_and_is_within_nothing_is_left_out(name: str) -> None:
    assert exclusive([Timing(name, 0, 1)], PHASES) == []


def test_timers_of_two_threads_that_overlap_count_once() -> None:
    timings = [Timing("generate", 0, 4), Timing("training_step", 2, 6)]
    assert exclusive(timings, PHASES) == [Timing("gen", 0, 2), Timing("update", 2, 6)]


times = st.integers(0, 30)
timings = st.builds(
    lambda name, start, length: Timing(name, start, start + length),
    st.sampled_from(["training_step", "generate", "other"]), times, times,
)  # fmt: skip


@given(st.lists(timings, max_size=12))
def test_no_moment_counts_twice_and_none_that_has_a_phase_is_lost(found: list[Timing]) -> None:
    phases = exclusive(found, {"training_step": "update", "generate": "gen", "other": "other"})
    assert all(before.end <= after.start for before, after in pairwise(phases))
    covered = {moment for one in phases for moment in range(int(one.start), int(one.end))}
    assert covered == {moment for one in found for moment in range(int(one.start), int(one.end))}


def test_of_two_with_the_same_ends_the_one_that_was_written_first_is_within() -> None:
    assert exclusive([Timing("generate", 0, 1), Timing("training_step", 0, 1)], PHASES) == [Timing("gen", 0, 1)]


def test_timers_of_threads_cross() -> None:
    step = Timing("step", 0, 10)
    assert crossing([Timing("gen", 1, 3), Timing("update", 3, 5), Timing("adv", 4, 5), step]) is None
    assert crossing([Timing("update", 1, 4), Timing("gen", 2, 6), step]) == ("update", "gen")
