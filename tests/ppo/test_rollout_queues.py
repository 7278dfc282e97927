"""Queues between engines and trainer: bounded, in order, never older than allowed; levels integrated over time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placebench.ppo.rollout.gauges import Gauges, Levels
from placebench.ppo.rollout.queues import Part, RolloutQueues, lag


def test_a_step_is_taken_in_the_order_of_its_parts() -> None:
    queues: RolloutQueues[str] = RolloutQueues(parts=2, staleness=0)
    queues.admit(1)
    first, second = queues.start(), queues.start()
    assert (first, second, queues.start()) == (Part(1, 0), Part(1, 1), None)
    queues.finish(Part(1, 1), 0, "second")
    assert queues.take(1) is None
    queues.finish(Part(1, 0), 0, "first")
    taken = queues.take(1)
    assert taken is not None
    assert [result.content for result in taken] == ["first", "second"]
    assert (queues.size, queues.dropped) == (0, 0)


def test_a_full_queue_takes_no_more() -> None:
    queues: RolloutQueues[str] = RolloutQueues(parts=2, staleness=1)
    queues.admit(1)
    queues.admit(2)
    with pytest.raises(OverflowError, match="4 of 4 parts"):
        queues.admit(3)


def test_a_part_that_was_overtaken_is_dropped_and_generated_again_first() -> None:
    queues: RolloutQueues[str] = RolloutQueues(parts=2, staleness=1)
    queues.admit(1)
    queues.admit(2)
    slow = queues.start()
    assert slow == Part(1, 0)
    for _ in range(3):
        part = queues.start()
        assert part is not None
        queues.finish(part, 0, "fast")
    taken = queues.take(1)
    assert taken is not None
    assert [result.part for result in taken] == [Part(1, 1), Part(2, 0)]
    queues.admit(3)
    queues.finish(slow, 0, "too late")
    # The third step begins with weights that have had two updates: those of the slow part had none.
    assert queues.take(3) is None
    assert queues.dropped == 2
    assert [queues.start(), queues.start()] == [Part(1, 0), Part(2, 1)]


@given(
    parts=st.integers(1, 4),
    staleness=st.integers(0, 3),
    choices=st.lists(st.sampled_from(["engine", "trainer", "oldest", "newest"]), max_size=300),
)
def test_nothing_too_old_is_trained_on_and_nothing_is_lost(parts: int, staleness: int, choices: list[str]) -> None:
    """Engines of any speed and a trainer: what happens next is drawn, the end of which running part too."""
    queues: RolloutQueues[None] = RolloutQueues(parts, staleness)
    admitted, updates = 0, 0
    running: list[tuple[Part, int]] = []
    trained: list[Part] = []
    for choice in choices:
        while admitted <= updates + staleness:
            admitted += 1
            queues.admit(admitted)
        assert queues.size <= queues.capacity
        if choice == "trainer":
            taken = queues.take(updates + 1)
            if taken is not None:
                assert len(taken) == parts
                assert [result.part for result in taken] == sorted(result.part for result in taken)
                assert all(0 <= lag(updates + 1, result.version) <= staleness for result in taken)
                trained += [result.part for result in taken]
                updates += 1
        elif choice == "engine":
            if part := queues.start():
                running.append((part, updates))
        elif running:
            part, version = running.pop({"oldest": 0, "newest": -1}[choice])
            queues.finish(part, version, None)
    assert len(trained) == len(set(trained)) == updates * parts
    everything = {Part(step, index) for step in range(1, admitted + 1) for index in range(parts)}
    waiting = set(iter(queues.start, None))
    assert set(trained) | {part for part, _ in running} | {one.part for one in queues.ready} | waiting == everything


def test_gauges_integrate_levels_and_keep_peaks() -> None:
    gauges = Gauges(10.0)
    gauges.set(11.0, Levels(queued=4, generating=2, idle=0, starved=1))
    gauges.set(13.0, Levels(queued=8, generating=1, idle=1))
    first = gauges.cut(14.0)
    assert first.seconds == 4.0
    assert first.integrals == {"queued": 2 * 4 + 1 * 8, "generating": 2 * 2 + 1, "idle": 1, "starved": 2}
    assert first.peaks == {"queued": 8, "generating": 2, "idle": 1, "starved": 1}
    second = gauges.cut(16.0)
    assert (second.seconds, second.integrals["queued"], second.peaks["starved"]) == (2.0, 16, 0)


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 9)), max_size=20), st.lists(st.booleans(), max_size=20))
def test_cutting_does_not_change_what_is_integrated(changes: list[tuple[float, int]], cuts: list[bool]) -> None:
    whole, cut = Gauges(0.0), Gauges(0.0)
    now, pieces = 0.0, []
    for (seconds, queued), cuts_here in zip(changes, [*cuts, *[False] * len(changes)], strict=False):
        now += seconds
        whole.set(now, Levels(queued=queued))
        cut.set(now, Levels(queued=queued))
        if cuts_here:
            pieces.append(cut.cut(now))
    pieces.append(cut.cut(now))
    assert sum(piece.integrals["queued"] for piece in pieces) == pytest.approx(whole.cut(now).integrals["queued"])
    assert sum(piece.seconds for piece in pieces) == pytest.approx(now)
