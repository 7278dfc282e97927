import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from layouts import SPLIT, STANDARD, Layout
from synthetic_run import SyntheticRun, edit_spans

from placebench.compare.comparison import Comparison, compare_run, compare_sides
from placebench.compare.explain.breakdown import path_parts
from placebench.compare.explain.headlines import alone, headline
from placebench.compare.explain.reasons import reasons
from placebench.compare.explain.waiting import waiting
from placebench.compare.measure.sides import run_sides
from placebench.compare.statistics.estimates import launches_needed
from placebench.compare.statistics.verdicts import Verdict
from placebench.record.folder import Status
from placebench.record.writing import read_jsonl
from placebench.report.notes import notes
from placebench.report.summary import summarize


def evenly(round_: int, _: str) -> float:
    """Launches of a round are equally fast, so ratios are exact."""
    return 1.0


def unevenly(round_: int, placement: str) -> float:
    """Launches differ by more than the placements do."""
    return {1: 1.0, 2: 2.0, 3: 0.5}[round_] if placement == "split" else 1.0


def build(
    tmp_path: Path, layouts: dict[str, Layout], pace: Callable[[int, str], float] = evenly, rounds: int = 3
) -> Comparison:
    return compare_run(SyntheticRun(layouts=layouts, pace=pace, rounds=rounds).write(tmp_path / "run"))


def texts(comparison: Comparison) -> tuple[str, ...]:
    other = comparison.sides[1]
    return (headline(comparison, other), *reasons(comparison, other))


def test_a_ratio_that_is_not_that_of_the_values_beside_it_is_explained(tmp_path: Path) -> None:
    # The medians are the same, yet four of five steps take 1.1 times as long.
    paces = {"a": (1.0, 1.0, 2.0, 2.0, 3.0), "b": (1.1, 1.1, 2.2, 2.2, 2.0)}
    run = SyntheticRun(
        layouts={"a": STANDARD, "b": STANDARD},
        rounds=1,
        steps=7,
        pace=lambda *_: 1.0,
        step_pace=lambda _, name, step: ((1.0, 1.0) + paces[name])[step - 1],
    )
    comparison = compare_run(run.write(tmp_path / "run"))
    assert headline(comparison, comparison.sides[1]) == (
        "Undecided whether b or a is faster: a step takes 10 % more time, 2.60 s instead of 2.60 s"
        " (1 launch each, so no interval; measured on paired steps, not on these two medians)."
    )


def test_slower_for_having_fewer_devices_in_spite_of_overlap(tmp_path: Path) -> None:
    assert texts(build(tmp_path, {"standard": STANDARD, "split": SPLIT})) == (
        "split is slower than standard: a step takes 40.8 % more time, 1.83 s instead of 1.30 s"
        " (95 % interval ±<0.01 %, 3 launches each).",
        "split overlaps 0.61 s of work (update_critic beside update_actor 0.40 s, values beside"
        " old_log_prob 0.19 s and 2 others 0.02 s), but on 1 device instead of 2, phases take 1.14 s longer (gen 0.40"
        " s, update_actor 0.24 s, update_critic 0.20 s and 3 others 0.30 s). In all, a step takes 0.53 s longer.",
        "In split, cpu:1 (critic_pool) waits 1.22 s of the 1.83 s step (67 %): 0.90 s for gen, 0.19 s for ref, 0.08 s"
        " for update_actor, 0.03 s while no phase runs and 0.02 s in other waits.",
    )


@pytest.mark.parametrize(
    ("reward_s", "last"),
    [
        (0.01, "values beside ref 0.10 s, update_critic beside update_weights 0.08 s and 1 other 0.01 s"),
        (0.08, "values beside ref 0.17 s, values beside old_log_prob 0.12 s and 2 others 0.16 s"),
    ],
)
def test_what_is_hidden_beyond_the_longest_is_counted(tmp_path: Path, reward_s: float, last: str) -> None:
    times = {
        **SPLIT.times,
        "reward": (0.91, 0.91 + reward_s),
        "values": (0.91 + reward_s, 1.20 + reward_s),
        "update_critic": (1.32, 1.68),
        "update_actor": (1.32, 1.60),
        "update_weights": (1.60, 1.81),
    }
    _, why, _ = texts(build(tmp_path, {"standard": STANDARD, "split": replace(SPLIT, times=times)}))
    named = why.partition("of work (")[2].partition("), but")[0]
    assert named.startswith("update_critic beside update_actor 0.28 s, values beside ")
    assert named.endswith(last)


def test_what_is_waited_for_beyond_the_longest_is_summed(tmp_path: Path) -> None:
    times = {
        **SPLIT.times,
        "values": (0.92, 1.00),
        "update_critic": (1.32, 1.48),
        "update_actor": (1.32, 1.60),
        "update_weights": (1.60, 1.81),
    }
    _, _, waits = texts(build(tmp_path, {"standard": STANDARD, "split": replace(SPLIT, times=times)}))
    assert waits == (
        "In split, cpu:1 (critic_pool) waits 1.58 s of the 1.83 s step (86 %): 0.90 s for gen, 0.21 s for"
        " update_weights, 0.20 s for ref and 0.27 s in other waits."
    )


def test_faster_turns_the_sentence_round(tmp_path: Path) -> None:
    verdict, why, _ = texts(build(tmp_path, {"split": SPLIT, "standard": STANDARD}))
    assert verdict.startswith("standard is faster than split: a step takes 29.0 % less time, 1.30 s instead of 1.83 s")
    assert why.startswith("split overlaps 0.61 s of work")
    assert ", but on 2 devices instead of 1, phases take 1.14 s less (gen 0.40 s, update_actor 0.24 s" in why
    assert why.endswith(". In all, a step takes 0.53 s less.")


def side_by_side(overlap: str) -> Layout:
    """Two pairs of phases in different pools, all as long as 1 s, in the order that an overlap gives."""
    begins = {"all": (0.0, 0.0, 1.0, 1.0), "updates": (0.0, 1.0, 2.0, 2.0), "none": (0.0, 1.0, 2.0, 3.0)}[overlap]
    phases = ("ref", "values", "update_critic", "update_actor")
    times = {phase: (begin, begin + 1.0) for phase, begin in zip(phases, begins, strict=True)}
    return Layout(SPLIT.pools, SPLIT.roles, times, begins[-1] + 1.0, overlap=overlap)


def test_faster_by_overlap_alone(tmp_path: Path) -> None:
    verdict, why, waits = texts(build(tmp_path, {"blocking": side_by_side("none"), "split": side_by_side("all")}))
    assert verdict.startswith("split is faster than blocking: a step takes 50.0 % less time, 2.00 s instead of 4.00 s")
    assert why == (
        "split overlaps 2.00 s of work (values beside ref 1.00 s and update_actor beside update_critic 1.00 s)."
    )
    assert waits == (
        "In blocking, cpu:0 (actor_pool) waits 2.00 s of the 4.00 s step (50 %): 1.00 s for values and 1.00 s for"
        " update_critic."
    )


def test_slower_for_losing_a_part_of_the_overlap(tmp_path: Path) -> None:
    _, why, _ = texts(build(tmp_path, {"split": side_by_side("all"), "updates": side_by_side("updates")}))
    assert why == (
        "split overlaps 2.00 s of work (values beside ref 1.00 s and update_actor beside update_critic"
        " 1.00 s), updates 1.00 s."
    )


def test_a_phase_that_takes_longer_but_stays_hidden_is_told_as_such(tmp_path: Path) -> None:
    slow_values = Layout(SPLIT.pools, SPLIT.roles, {**SPLIT.times, "values": (0.92, 1.28)}, SPLIT.step_s)
    _, why, _ = texts(build(tmp_path, {"split": SPLIT, "slow": slow_values}))
    assert why == (
        "slow overlaps 0.77 s of work (update_critic beside update_actor 0.40 s, values beside"
        " old_log_prob 0.19 s, values beside ref 0.17 s and 1 other 0.01 s), split 0.61 s, and in return on 1 device as"
        " before, values takes 0.16 s longer."
    )


def test_same_says_so_and_finds_no_reason(tmp_path: Path) -> None:
    verdict, why, _ = texts(build(tmp_path, {"a": SPLIT, "b": SPLIT}))
    assert verdict.startswith("b and a are the same within 2 %: a step takes as much time")
    assert why == "No single cause stands out."


def test_the_smallest_effect_is_told_as_it_was_given(tmp_path: Path) -> None:
    path = SyntheticRun(layouts={"a": SPLIT, "b": SPLIT}, pace=evenly).write(tmp_path / "run")
    comparison = compare_run(path, 0.005)
    assert headline(comparison, comparison.sides[1]).startswith("b and a are the same within 0.5 %: ")
    lines = notes(summarize(comparison), None)
    assert [line for line in lines if "lies beyond 0.5 %, same when it lies within 0.5 %" in line]


def test_undecided_claims_no_difference_of_phases(tmp_path: Path) -> None:
    verdict, why, _ = texts(build(tmp_path, {"standard": SPLIT, "split": SPLIT}, unevenly))
    assert verdict.startswith("Undecided whether split or standard is faster: a step takes as much time")
    assert why == "Measured, but as uncertain as the verdict: no single cause stands out."


def vary_gen(path: Path, seconds: tuple[float, ...]) -> None:
    """Lengthen gen of every measured step of split, and with it all that follows, by so many seconds in each round."""
    for round_, more in enumerate(seconds, start=1):
        (file,) = path.glob(f"trials/{round_:02d}-split/spans.jsonl")
        spans = [json.loads(line) for line in file.read_text().splitlines()]
        for span in spans:
            before = max(0, span["step"] - 1) * more
            for edge, clock in itertools.product(("start", "end"), ("wall", "mono")):
                is_later = span["step"] > 0 and (edge == "end" or span["phase"] not in ("gen", "step"))
                span[f"{edge}_{clock}"] += before + (more if is_later else 0.0)
        file.write_text("".join(json.dumps(span) + "\n" for span in spans))


def test_an_undecided_reason_adds_up_to_the_difference(tmp_path: Path) -> None:
    path = SyntheticRun({"standard": STANDARD, "split": SPLIT}, pace=evenly).write(tmp_path / "run")
    vary_gen(path, (-0.3, 0.0, 0.3))
    verdict, why, _ = texts(compare_run(path))
    assert verdict.startswith("Undecided")
    # The rounds do not agree on gen, the largest of the parts.
    assert why == (
        "Measured, but as uncertain as the verdict: on 1 device instead of 2, phases take 1.12 s longer (gen perhaps"
        " 0.39 s, update_actor 0.24 s, update_critic 0.20 s and 3 others 0.29 s); split overlaps 0.60 s of work"
        " (update_critic beside update_actor 0.40 s, values beside old_log_prob 0.19 s and 2 others 0.01 s). In all, a"
        " step takes 0.51 s longer."
    )


def test_what_is_said_to_be_hidden_is_what_the_table_has_and_leaves_out_work_beside_gaps(tmp_path: Path) -> None:
    # The critic works on for 0.06 s in the gap before weights are sent.
    times = {**SPLIT.times, "update_critic": (1.32, 1.86), "update_weights": (1.86, 1.88)}
    gapped = replace(SPLIT, times=times, step_s=1.90)
    comparison = build(tmp_path, {"standard": STANDARD, "split": gapped})
    assert comparison.sides[1].value("hidden") == pytest.approx(0.69)
    assert "split overlaps 0.69 s of work (update_critic beside update_actor 0.48 s" in texts(comparison)[1]


def test_a_phase_is_named_where_the_rounds_agree_on_its_sign(tmp_path: Path) -> None:
    path = SyntheticRun({"standard": STANDARD, "split": SPLIT}, pace=evenly).write(tmp_path / "run")
    vary_gen(path, (-0.275, -0.2, -0.125))
    comparison = compare_run(path, 0.1)
    gen = comparison.sides[1].ratios["phase/gen"]
    assert gen is not None
    assert gen.verdict is Verdict.UNDECIDED
    why = texts(comparison)[1]
    assert "gen 0.20 s" in why
    assert "all else" not in why


def test_one_launch_states_measurements_and_no_verdict(tmp_path: Path) -> None:
    verdict, why, _ = texts(build(tmp_path, {"standard": STANDARD, "split": SPLIT}, rounds=1))
    assert verdict == (
        "Undecided whether split or standard is faster: a step takes 41 % more time, 1.83 s instead of 1.30 s"
        " (1 launch each, so no interval)."
    )
    assert why == (
        "Measured, but as uncertain as the verdict: on 1 device instead of 2, phases take 1.14 s longer (gen 0.40 s,"
        " update_actor 0.24 s, update_critic 0.20 s and 3 others 0.30 s); split overlaps 0.61 s of work"
        " (update_critic beside update_actor 0.40 s, values beside old_log_prob 0.19 s and 2 others 0.02 s). In all, a"
        " step takes 0.53 s longer."
    )


def test_a_phase_that_one_placement_lacks_is_told_as_such(tmp_path: Path) -> None:
    times = STANDARD.times.items()
    earlier = {phase: (begin - 0.1 * (begin > 0.8), end - 0.1 * (end > 0.82)) for phase, (begin, end) in times}
    lean = replace(STANDARD, times={phase: time for phase, time in earlier.items() if phase != "values"}, step_s=1.2)
    _, why, *_ = texts(build(tmp_path / "one", {"standard": STANDARD, "lean": lean}))
    assert why == "Done in standard alone, values takes 0.10 s less."
    _, why, *_ = texts(build(tmp_path / "other", {"lean": lean, "standard": STANDARD}))
    assert why == "Done in standard alone, values takes 0.10 s longer."


def test_a_phase_whose_pool_nobody_has_said_is_on_the_devices_that_do_it(tmp_path: Path) -> None:
    start, end = STANDARD.times["update_weights"]
    slow = replace(STANDARD, times={**STANDARD.times, "update_weights": (start, end + 0.1)}, step_s=1.4)
    path = SyntheticRun(layouts={"plain": STANDARD, "slow": slow}, pace=evenly).write(tmp_path / "run")
    for name in ("plain", "slow"):
        edit_spans(path, name, lambda span: span.update(role=None, pool=None))
    assert texts(compare_run(path))[1] == "On 2 devices as before, update_weights takes 0.10 s longer."


@pytest.mark.parametrize("overlap", ["none", "all"])
def test_a_phase_that_moves_to_the_controller_is_told_as_such(tmp_path: Path, overlap: str) -> None:
    def move(span: dict[str, Any]) -> None:
        if span["phase"] == "values":
            span.update(role=None, pool=None, device="controller")

    times = STANDARD.times.items()
    later = {phase: (begin + 0.1 * (begin > 0.8), end + 0.1 * (end > 0.8)) for phase, (begin, end) in times}
    standard = replace(STANDARD, overlap=overlap)
    run = SyntheticRun({"standard": standard, "moved": replace(standard, times=later, step_s=1.4)}, pace=evenly)
    path = run.write(tmp_path / "run")
    edit_spans(path, "moved", move)
    _, why, *_ = texts(compare_run(path))
    # What was before it on its devices is beside a gap where all may overlap: neither hidden, nor are they idle then.
    assert why == "In the controller instead of on 2 devices, values takes 0.10 s longer."


def test_time_between_phases_is_a_cost(tmp_path: Path) -> None:
    slack = Layout(STANDARD.pools, STANDARD.roles, STANDARD.times, STANDARD.step_s + 0.2)
    _, why, _ = texts(build(tmp_path, {"standard": STANDARD, "slack": slack}))
    assert why == "0.20 s more passes between phases, all of it at the end of the step."


def test_waiting_for_a_slower_device_of_the_own_pool(tmp_path: Path) -> None:
    path = SyntheticRun(layouts={"standard": STANDARD}, pace=evenly).write(tmp_path / "run")
    for spans in path.glob("trials/*/spans.jsonl"):
        # cpu:1 has no part in gen and waits 0.5 s for cpu:0.
        spans.write_text(
            "".join(
                line
                for line in spans.read_text().splitlines(keepends=True)
                if not ('"phase": "gen"' in line and '"cpu:1"' in line)
            )
        )
    comparison = compare_run(path)
    assert waiting(comparison.placements[0]) == (
        "In standard, the 2 devices of global_pool wait, on average, 0.29 s of the 1.30 s step (22 %):"
        " 0.25 s for other devices of the pool and 0.03 s while no phase runs."
    )


def test_a_placement_alone_has_a_step_time_and_no_verdict(tmp_path: Path) -> None:
    comparison = build(tmp_path, {"standard": STANDARD})
    assert alone(comparison) == "standard: a step takes 1.30 s (95 % interval ±<0.001 s, 3 launches)."


def test_the_interval_of_a_step_time_is_in_seconds_however_long_the_step(tmp_path: Path) -> None:
    comparison = build(tmp_path, {"standard": STANDARD}, lambda round_, _: 76 * (1 + 0.02 * (round_ - 2)))
    expected = "standard: a step takes 99 s (95 % interval 94–104 s, 3 launches)."
    assert alone(comparison) == expected
    assert alone(compare_sides(run_sides(tmp_path / "run", "standard"))) == expected


def paused(trial: Path, first: int) -> None:
    """Let a pause be a part of every step from one on."""
    steps = [span for span in read_jsonl(trial / "spans.jsonl") if span["phase"] == "step" and span["step"] >= first]
    pause = {"start_mono": steps[0]["start_mono"] + 0.1, "end_mono": steps[-1]["end_mono"]}
    (trial / "pauses.jsonl").write_text(json.dumps(pause) + "\n")


def keep_spans(trial: Path, kept: str) -> None:
    """Leave only the spans in whose lines some text stands."""
    spans = trial / "spans.jsonl"
    spans.write_text("".join(line for line in spans.read_text().splitlines(keepends=True) if kept in line))


NOT_MEASURED = "standard: the step time is not known, as no finished launch recorded its measured steps."
SET_ASIDE = "standard has no finished launch."


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (partial(paused, first=1), NOT_MEASURED),
        (partial(paused, first=3), NOT_MEASURED),
        (lambda trial: (trial / "spans.jsonl").unlink(), SET_ASIDE),
        (partial(keep_spans, kept="no such text"), SET_ASIDE),
        (partial(keep_spans, kept='"step": 2,'), SET_ASIDE),
    ],
    ids=["paused", "paused after its warm-up", "no file of spans", "no spans", "spans of one step"],
)
def test_a_launch_without_measured_spans_has_no_step_time_and_does_not_count_as_0(
    tmp_path: Path, change: Callable[[Path], None], told: str
) -> None:
    def changed(path: Path) -> Path:
        for trial in path.glob("trials/02-*"):
            change(trial)
        return path

    lone = SyntheticRun(layouts={"standard": STANDARD}, rounds=2, statuses={(1, "standard"): Status.FAILED})
    (found,) = summarize(compare_run(changed(lone.write(tmp_path / "lone")))).placements
    assert (found.headline, found.reasons) == (told, ())
    whole = SyntheticRun(statuses={(2, "split"): Status.FAILED, (2, "standard"): Status.FAILED}).write(tmp_path / "w")
    cut = changed(SyntheticRun().write(tmp_path / "cut"))
    assert reasons_of(cut) == reasons_of(whole)


def reasons_of(path: Path) -> tuple[tuple[str, ...], list[float]]:
    """The reasons of a run's second placement, and what the parts of its path take."""
    comparison = compare_run(path)
    other = comparison.sides[1]
    return reasons(comparison, other), [part.on_path for part in path_parts(other)]


@pytest.mark.parametrize("gone", ["standard", "split"])
def test_without_launches_there_is_nothing_to_compare(tmp_path: Path, gone: str) -> None:
    statuses = {(round_, gone): Status.FAILED for round_ in (1, 2, 3)}
    comparison = compare_run(SyntheticRun(statuses=statuses).write(tmp_path / "run"))
    assert texts(comparison) == (f"split against standard: nothing to compare, as {gone} has no finished launch.",)


def test_unpaired_rounds_are_told(tmp_path: Path) -> None:
    comparison = compare_run(SyntheticRun(statuses={(2, "split"): Status.OOM}, pace=evenly).write(tmp_path / "run"))
    assert texts(comparison)[0].endswith("(95 % interval ±<0.01 %, 2 rounds with both).")


def test_what_is_undecided_says_how_many_launches_would_decide(tmp_path: Path) -> None:
    # The pairs are 0.02, 0.04 and 0.06: mean 0.04, standard deviation 0.02.
    run = SyntheticRun(
        layouts={"standard": STANDARD, "copy": STANDARD},
        pace=lambda round_, name: math.exp(0.04 + 0.02 * (round_ - 2)) if name == "copy" else 1.0,
    )
    comparison = compare_run(run.write(tmp_path / "run"))
    step = comparison.sides[1].ratios["step_time"]
    assert step is not None
    assert step.needed == launches_needed(0.04, 0.02, math.log(1.02))
    assert f"3 launches each; about {step.needed} each would decide)." in headline(comparison, comparison.sides[1])
