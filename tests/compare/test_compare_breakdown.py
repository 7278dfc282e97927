from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import SPLIT, STANDARD, Layout
from scipy.stats import ttest_ind
from synthetic_run import SyntheticRun, edit_spans

from placebench.compare.comparison import Comparison, compare_run, compare_sides
from placebench.compare.explain.breakdown import StepChange, path_parts, step_change
from placebench.compare.explain.caveats import caveats
from placebench.compare.explain.headlines import headline
from placebench.compare.explain.reasons import reasons
from placebench.compare.measure.sides import run_sides
from placebench.record.folder import Status
from placebench.report.summary import summarize
from placebench.report.time_tables import path_grid
from placebench.report.waterfall import waterfall


def evenly(round_: int, _: str) -> float:
    return 1.0


def change_of(comparison: Comparison) -> StepChange:
    change = step_change(*comparison.sides)
    assert change is not None
    return change


def differences(change: StepChange) -> dict[str, float]:
    """What each part adds, in seconds; parts that add nothing are left out."""
    return {
        ("gap before " if part.first.is_gap else "") + part.first.phase: round(part.difference, 6)
        for part in change.parts
        if abs(part.difference) > 1e-9
    }


def test_the_difference_of_serial_and_overlapped_steps_phase_by_phase(tmp_path: Path) -> None:
    change = change_of(compare_run(SyntheticRun(pace=evenly).write(tmp_path / "run")))
    assert differences(change) == {
        "gen": 0.40,
        "reward": -0.01,
        "old_log_prob": 0.10,
        "ref": 0.10,
        "values": -0.10,
        "update_critic": -0.20,
        "update_actor": 0.24,
    }
    values = next(part for part in change.phases if part.first.phase == "values")
    assert [values.longer, values.hidden] == pytest.approx([0.10, 0.20])
    assert [change.first_s, change.other_s] == pytest.approx([1.30, 1.83])


def test_a_pause_before_one_phase_is_found_there(tmp_path: Path) -> None:
    later = {phase: (start + 0.3, end + 0.3) for phase, (start, end) in list(STANDARD.times.items())[6:]}
    paused = Layout(STANDARD.pools, STANDARD.roles, {**STANDARD.times, **later}, STANDARD.step_s + 0.3)
    comparison = compare_run(
        SyntheticRun({"standard": STANDARD, "paused": paused}, pace=evenly).write(tmp_path / "run")
    )
    assert differences(change_of(comparison)) == {"gap before update_critic": 0.3}
    assert (
        reasons(comparison, comparison.sides[1])[0]
        == "0.30 s more passes between phases, all of it before update_critic."
    )


def test_the_parts_of_a_step_with_a_validation_add_up(tmp_path: Path) -> None:
    # 0.02 s lie between the last phase and the validation, which is no part of the step.
    comparison = compare_run(SyntheticRun(testing_s=0.5, pace=evenly).write(tmp_path / "run"))
    for result in comparison.sides:
        parts = {(part.is_gap, part.phase): part.on_path for part in path_parts(result)}
        assert sum(parts.values()) == pytest.approx(result.value("step_time"))
        assert parts[True, "end of the step"] == pytest.approx(0.02)


def slow_rank(path: Path, placement: str, device: str, phase: str, factor: float) -> None:
    """Let all devices of a phase but one be done in a part of their time."""

    def shorten(span: dict[str, object]) -> None:
        start, end = (float(str(span[name])) for name in ("start_mono", "end_mono"))
        if span["phase"] == phase and span["device"] not in (device, "controller"):
            span["end_mono"] = start + factor * (end - start)

    edit_spans(path, placement, shorten)


def test_a_straggler_is_said_to_be_the_cause(tmp_path: Path) -> None:
    longer = {"gen": (0.01, 1.01)} | {
        phase: (start + 0.5, end + 0.5) for phase, (start, end) in list(STANDARD.times.items())[1:]
    }
    uneven = Layout(STANDARD.pools, STANDARD.roles, longer, STANDARD.step_s + 0.5)
    path = SyntheticRun({"even": STANDARD, "uneven": uneven}, pace=evenly).write(tmp_path / "run")
    slow_rank(path, "uneven", "cpu:1", "gen", 0.5)
    comparison = compare_run(path)
    gen = change_of(comparison).phases[0].other
    assert [gen.on_path, gen.imbalance] == pytest.approx([1.0, 0.25])
    assert reasons(comparison, comparison.sides[1])[0] == (
        "On 2 devices as before, gen takes 0.50 s longer, 0.25 s of it for the slowest device."
    )


def test_pools_of_other_sizes_move_work_onto_the_path(tmp_path: Path) -> None:
    # With 3 + 1 devices the critic takes longer than the actor, so the path leads through it.
    times = {
        "gen": (0.0, 0.6),
        "old_log_prob": (0.6, 0.7),
        "ref": (0.7, 0.8),
        "values": (0.6, 1.0),
        "adv": (1.0, 1.01),
        "update_critic": (1.01, 1.81),
        "update_actor": (1.01, 1.36),
        "update_weights": (1.36, 1.37),
    }
    pools = {"actor_pool": ("cpu:0", "cpu:2", "cpu:3"), "critic_pool": ("cpu:1",)}
    uneven = Layout(pools, SPLIT.roles, times, 1.81)
    comparison = compare_run(SyntheticRun({"split": SPLIT, "split:3+1": uneven}, pace=evenly).write(tmp_path / "run"))
    assert differences(change_of(comparison)) == {
        "gen": -0.30,
        "old_log_prob": -0.20,
        "ref": -0.20,
        "values": 0.40,
        "update_critic": 0.80,
        "update_actor": -0.48,
        "update_weights": -0.01,
        "gap before gen": -0.01,
        "gap before end of the step": -0.02,
    }


def test_without_spans_the_reason_says_so(tmp_path: Path) -> None:
    path = SyntheticRun(pace=evenly).write(tmp_path / "run")
    for spans in path.glob("trials/*-split/spans.jsonl"):
        spans.unlink()
    comparison = compare_run(path)
    assert path_parts(comparison.sides[1]) == ()
    assert step_change(*comparison.sides) is None
    assert waterfall(comparison) is None


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.floats(0.01, 2.0), min_size=9, max_size=9),
    st.lists(st.floats(0.0, 0.5), min_size=9, max_size=9),
    st.floats(0.0, 0.2),
)
def test_parts_add_up_to_the_difference_whatever_the_times(
    tmp_path_factory: pytest.TempPathFactory, seconds: list[float], pauses: list[float], spread: float
) -> None:
    now, times = 0.0, {}
    for phase, taken, pause in zip(STANDARD.times, seconds, pauses, strict=True):
        times[phase] = (now + pause, now + pause + taken)
        now += pause + taken
    other = Layout(SPLIT.pools, SPLIT.roles, times, now + 0.1, overlap="none")
    pace: Callable[[int, str], float] = lambda round_, name: 1 + spread * round_ * len(name)  # noqa: E731
    run = SyntheticRun({"standard": STANDARD, "other": other}, rounds=2, steps=3, pace=pace)
    comparison = compare_run(run.write(tmp_path_factory.mktemp("sum") / "run"))
    change = change_of(comparison)
    values = [result.value("step_time") for result in comparison.sides]
    assert sum(part.difference for part in change.parts) == pytest.approx(values[1] - values[0], abs=1e-12)
    assert sum(part.longer - part.hidden for part in change.parts) == pytest.approx(change.difference, abs=1e-12)


def test_parts_keep_their_share_of_the_step_when_launches_differ(tmp_path: Path) -> None:
    # The step's mean over launches is geometric, 1.83 s × √3.
    run = SyntheticRun(rounds=2, pace=lambda round_, _: {1: 1.0, 2: 3.0}[round_])
    split = compare_run(run.write(tmp_path / "run")).sides[1]
    assert split.value("step_time") == pytest.approx(1.83 * 3**0.5)
    assert split.value("idle/cpu:1") / split.value("step_time") == pytest.approx(1.22 / 1.83)
    assert sum(part.on_path for part in path_parts(split)) == pytest.approx(1.83 * 3**0.5)


def test_where_rounds_are_lost_path_and_words_are_of_those_that_both_have(tmp_path: Path) -> None:
    # The machine becomes slower and slower, and the last round has the first placement alone.
    late = Layout(STANDARD.pools, STANDARD.roles, {**STANDARD.times, "update_weights": (1.27, 1.38)}, 1.40)
    run = SyntheticRun(
        {"standard": STANDARD, "late": late},
        pace=lambda round_, _: {1: 1.0, 2: 1.1, 3: 1.5}[round_],
        statuses={(3, "late"): Status.OOM},
    )
    comparison = compare_run(run.write(tmp_path / "run"))
    standard, other = comparison.sides
    change = change_of(comparison)
    both = 1.1**0.5
    assert [change.first_s, change.other_s] == pytest.approx([1.30 * both, 1.40 * both])
    assert differences(change) == {"update_weights": pytest.approx(0.1 * both, abs=1e-6)}
    assert all(part.rounds.low - 1e-9 < part.difference < part.rounds.high + 1e-9 for part in change.parts)
    told = "7.7 % more time, 1.47 s instead of 1.36 s (95 % interval ±<0.01 %, 2 rounds with both)."
    assert headline(comparison, other).endswith(told)
    assert reasons(comparison, other)[0] == "On 2 devices as before, update_weights takes 0.10 s longer."
    arms = compare_sides(run_sides(tmp_path / "run"))
    assert headline(arms, arms.sides[1]).endswith(told)
    summary = summarize(comparison)
    *_, step = path_grid(*summary.placements).rows
    assert step[1:4] == ("1.36 s", "1.47 s", "+0.10 s")
    # What is of a placement by itself stays that of all its launches.
    assert standard.value("step_time") == pytest.approx(1.30 * (1.1 * 1.5) ** (1 / 3))
    assert sum(part.on_path_s for part in summary.placements[1].critical_path) == pytest.approx(1.40 * both)
    caveat = (
        "late against standard: ratios, critical paths and the reason come from the 2 rounds that have both. All other"
        " values come from all launches of each."
    )
    assert caveat in summary.warnings
    assert caveat in caveats(arms)


def test_launches_without_a_round_in_common_are_no_pairs_and_said_to_be_none(tmp_path: Path) -> None:
    lost = {(round_, name): Status.FAILED for name, of in (("standard", (3, 4)), ("split", (1, 2))) for round_ in of}
    comparison = compare_run(SyntheticRun(rounds=4, statuses=lost).write(tmp_path / "run"))
    other = comparison.sides[1]
    told = "1.86 s instead of 1.31 s (Welch's 95 % interval 40 to 44 % more, 2 launches each, not paired)."
    assert headline(comparison, other).endswith(told)
    gen = change_of(comparison).phases[0]
    expected = ttest_ind([0.9 * 1.012, 0.9 * 1.016], [0.5 * 1.004, 0.5 * 1.008], equal_var=False).confidence_interval()
    assert (gen.rounds.low, gen.rounds.high) == pytest.approx((expected.low, expected.high), rel=1e-5)
    caveat = (
        "split and standard have no round in common, so their launches cannot be compared in pairs: if the machine"
        " changed in between, that shows as a difference. --resume runs what is missing."
    )
    arms = compare_sides(run_sides(tmp_path / "run"))
    assert headline(arms, arms.sides[1]).endswith(told)
    assert caveat in caveats(comparison)
    assert caveat in caveats(arms)


def test_a_single_round_in_common_is_no_pair_where_both_have_more(tmp_path: Path) -> None:
    lost = {(round_, name): Status.FAILED for name, round_ in (("standard", 3), ("split", 1))}
    comparison = compare_run(SyntheticRun(statuses=lost).write(tmp_path / "run"))
    assert headline(comparison, comparison.sides[1]).endswith("2 launches each, not paired).")
    assert any(
        line.startswith("split and standard have only 1 round in common, so their") for line in caveats(comparison)
    )


def test_the_waterfall_leads_from_one_step_time_to_the_other(tmp_path: Path) -> None:
    figure = waterfall(compare_run(SyntheticRun(pace=evenly).write(tmp_path / "run")))
    assert figure is not None
    (axes,) = figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == [
        "standard",
        "gen",
        "old_log_prob",
        "ref",
        "values",
        "update_critic",
        "update_actor",
        "smaller parts",
        "split",
    ]
    widths = [patch.get_width() for patch in axes.patches]  # type: ignore[attr-defined]
    standard, split, *bars = widths
    assert standard + sum(bars) == pytest.approx(split)
    texts = [text.get_text() for text in axes.texts]
    assert "−0.20 s  (takes 0.20\xa0s longer, 0.40\xa0s more hidden)" in texts


def test_a_part_lies_within_its_interval_where_launches_differ(tmp_path: Path) -> None:
    # The mean of the launches' step times is geometric and smaller than that of their parts.
    pace = {("standard", 1): 1.0, ("standard", 2): 1.2, ("standard", 3): 1.7}
    run = SyntheticRun(pace=lambda round_, name: pace.get((name, round_), 1.1)).write(tmp_path / "run")
    change = change_of(compare_run(run))
    for part in change.parts:
        assert part.difference == pytest.approx((part.rounds.low + part.rounds.high) / 2, abs=1e-9)
