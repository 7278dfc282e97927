"""What of a run and a baseline is a regression, what is none, and what cannot be judged."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from gate_runs import NOISE, run
from hypothesis import given
from hypothesis import strategies as st
from layouts import STANDARD

from placebench.errors import BaselineError, LaunchError, RegressionError
from placebench.gate.baseline import Baseline, MeasuredPlacement, load_baseline, save_baseline
from placebench.gate.checking import BaselineCheck, Outcome, check, describe, unequal_work
from placebench.gate.output import verdict


def measured(*steps: float, name: str = "standard", **changes: Any) -> Baseline:
    launches = tuple({"step_time": step, "tokens_per_s": 100 / step, "load": 0.5} for step in steps)
    placement = MeasuredPlacement(devices=("d", "d"), planned=len(steps), launches=launches)
    content = {"host": {"hostname": "a"}, "versions": {"torch": "2.13"}, "workload": {"model": "tiny"}}
    return Baseline(placebench="0", run="r", measured="now", placements={name: placement}, **{**content, **changes})


def outcome(before: Baseline, now: Baseline, **options: object) -> BaselineCheck:
    return check(now, before, **{"max_regression": 0.05, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ((1.0, 1.01, 0.99), Outcome.PASSED),
        # Beyond the threshold, interval and all.
        ((1.2, 1.21, 1.19), Outcome.REGRESSION),
        # Beyond the threshold, but so noisy that it need not be.
        ((0.8, 1.2, 1.6), Outcome.PASSED),
        # Surely slower, but by less than the threshold.
        ((1.03, 1.031, 1.032), Outcome.PASSED),
        ((0.8, 0.81, 0.79), Outcome.IMPROVED),
    ],
)
def test_a_regression_needs_the_threshold_and_the_interval(now: tuple[float, ...], expected: Outcome) -> None:
    found = outcome(measured(1.0, 1.01, 0.99), measured(*now), metrics=("step", "tokens/s"))
    assert [case.outcome for case in found.cases] == [expected, expected]
    assert isinstance(found.error, RegressionError) == (expected is Outcome.REGRESSION)


def test_the_smallest_change_that_would_be_seen_is_told() -> None:
    found = outcome(measured(1.0, 1.02, 0.98), measured(1.0, 1.02, 0.98)).cases[0]
    assert found.ratio is not None
    seen = 1 + found.visible
    slower = outcome(measured(1.0, 1.02, 0.98), measured(*(seen * 1.001 * step for step in (1.0, 1.02, 0.98))))
    faster = outcome(measured(1.0, 1.02, 0.98), measured(*(seen * 0.999 * step for step in (1.0, 1.02, 0.98))))
    assert (slower.cases[0].outcome, faster.cases[0].outcome) == (Outcome.REGRESSION, Outcome.PASSED)


@pytest.mark.parametrize("metric", ["step", "tokens/s"])
def test_what_noise_may_hide_is_told(metric: str) -> None:
    quiet = outcome(measured(1.0, 1.001, 0.999), measured(1.0, 1.001, 0.999), metrics=(metric,))
    noisy = outcome(measured(1.0, 1.2, 0.8), measured(1.0, 1.2, 0.8), metrics=(metric,))
    faster = outcome(measured(1.0, 1.01, 0.99), measured(0.5, 0.51, 0.49), metrics=(metric,))
    assert verdict(quiet) == verdict(faster) == "no regression: 1 number within 5 %"
    assert verdict(noisy) == "no regression shown; too noisy to be sure of 5 %: 1 of 1 number"


@pytest.mark.parametrize(
    ("left", "expected"),
    [(0.96, Outcome.PASSED), (0.645, Outcome.PASSED), (0.51, Outcome.PASSED), (0.49, Outcome.REGRESSION)],
)
def test_half_as_much_throughput_is_50_percent_worse(left: float, expected: Outcome) -> None:
    before = (1.0, 1.0001, 0.9999)
    now = measured(*(step / left for step in before))
    found = outcome(measured(*before), now, metrics=("tokens/s",), max_regression=0.5)
    assert [case.outcome for case in found.cases] == [expected]
    seen = found.cases[0].visible
    assert seen == pytest.approx(0.5, abs=0.001)
    just = outcome(measured(*before), measured(*(step / (1 - seen) * 1.0001 for step in before)), metrics=("tokens/s",),
                   max_regression=0.5)  # fmt: skip
    assert just.cases[0].outcome is Outcome.REGRESSION


def with_tokens(tokens: float, *steps: float) -> Baseline:
    """Launches of so many tokens a step, whose phase takes half of it, as a baseline without steps has them."""
    found = measured(*steps)
    launches = tuple(
        {
            "step_time": launch["step_time"],
            "phase/gen": launch["step_time"] / 2,
            "tokens": tokens,
            "tokens_per_s": tokens / launch["step_time"],
            "peak_memory": tokens,
        }
        for launch in found.placements["standard"].launches
    )
    placement = found.placements["standard"].model_copy(update={"launches": launches})
    return found.model_copy(update={"placements": {"standard": placement}})


@pytest.mark.parametrize(
    ("tokens", "slower", "expected"),
    [
        # As long as its tokens make it.
        (1300, 1.3, {"step": "undecided", "gen": "undecided", "tokens/s": "passed", "peak memory": "regression"}),
        # Slower than its tokens make it.
        (1300, 1.6, {"step": "regression", "gen": "regression", "tokens/s": "regression", "peak memory": "regression"}),
        # Slower, which fewer tokens hide.
        (700, 1.0, {"step": "undecided", "gen": "undecided", "tokens/s": "regression", "peak memory": "improved"}),
        # Faster than its tokens make it.
        (700, 0.6, {"step": "improved", "gen": "improved", "tokens/s": "improved", "peak memory": "improved"}),
        (1005, 1.3, dict.fromkeys(("step", "gen", "tokens/s"), "regression") | {"peak memory": "passed"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("paired", [False, True])
def test_a_change_of_work_alone_is_no_regression_and_hides_none(
    tokens: float, slower: float, expected: dict[str, str], paired: bool
) -> None:
    before = with_tokens(1000, 1.0, 1.01, 0.99)
    now = with_tokens(tokens, *(slower * step for step in (1.0, 1.01, 0.99)))
    found = outcome(before, now, metrics=tuple(expected), paired=paired)
    assert {case.metric.label: str(case.outcome) for case in found.cases} == expected
    texts = [unequal_work(case) for case in found.cases]
    if tokens == 1005:
        assert texts == [None] * 4
    else:
        start = f"unequal work: standard had {tokens:,.0f} tokens a step, the baseline 1,000"
        assert [str(text).startswith(start) for text in texts] == [True] * 4
        work = found.cases[0].work
        assert work is not None
        assert work.found is not None
        assert work.found.adjusted.value == pytest.approx(slower / tokens * 1000)
        assert str(texts[0]).endswith(") per token; a verdict needs both to agree.")
        assert str(texts[-1]) == f"{start}; peak memory is judged as measured."
        assert describe(found.cases[-1]).endswith(f"), with {tokens / 10 - 100:+.1f} % tokens a step")


def test_how_far_tokens_make_a_step_longer_is_told_by_its_steps(tmp_path: Path) -> None:
    # Steps take as long as the root of their tokens; of these the second run has 30 % more, and it is 18 % slower.
    wave = {step: 1 + 0.3 * math.sin(step) for step in range(1, 13)}

    def save(name: str, more: float, factor: float) -> Baseline:
        root = math.sqrt(more)
        path = run(
            tmp_path / name, factor * root, layouts={"standard": STANDARD}, steps=12,
            step_tokens=lambda _, __, step: more * wave[step], step_pace=lambda _, __, step: math.sqrt(wave[step]),
        )  # fmt: skip
        return save_baseline(path, tmp_path / f"{name}.json")

    before, same, slower = save("before", 1.0, 1.0), save("same", 1.3, 1.0), save("slower", 1.3, 1.18)
    assert load_baseline(tmp_path / "slower.json") == slower
    for now, expected in ((same, "undecided"), (slower, "regression")):
        for paired in (False, True):
            (case,) = outcome(before, now, paired=paired).cases
            assert str(case.outcome) == expected
            assert case.work is not None
            assert case.work.found is not None
            assert case.work.found.exponent == pytest.approx(0.5)
    assert "(+30.0 %). step: 1.345 (" in str(unequal_work(case))
    # A file without steps tells no more than that: per token, it is 3.5 % slower.
    content = json.loads((tmp_path / "before.json").read_text())
    del content["placements"]["standard"]["steps"]
    (tmp_path / "older.json").write_text(json.dumps(content))
    (case,) = outcome(load_baseline(tmp_path / "older.json"), slower, paired=True).cases
    assert (str(case.outcome), ", 1.035 (" in str(unequal_work(case))) == ("undecided", True)


NUMBERS = st.just(0.0) | st.floats(0.001, 1000)


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 4), NUMBERS, NUMBERS), max_size=5), min_size=3, max_size=3),
    NUMBERS,
    st.sampled_from(["step", "gen", "tokens/s", "peak memory"]),
    st.booleans(),
)
def test_whatever_steps_a_file_holds_there_is_an_outcome(
    steps: list[list[tuple[int, float, float]]], tokens: float, metric: str, paired: bool
) -> None:
    before, now = with_tokens(1000, 1.0, 1.01, 0.99), with_tokens(tokens, 1.3, 1.31, 1.29)
    sides = []
    for side, found in ((before, [[(1, 1.0, 1000.0), (2, 1.0, 1001.0)]] * 3), (now, steps)):
        placement = side.placements["standard"].model_copy(update={"steps": tuple(map(tuple, found))})
        sides.append(side.model_copy(update={"placements": {"standard": placement}}))
    (case,) = outcome(*sides, metrics=(metric,), paired=paired).cases
    if case.work is None and metric in ("step", "gen"):
        assert case.outcome is Outcome.REGRESSION
    assert (unequal_work(case) is None) == (case.work is None or case.ratio is None)


LAUNCHES = st.lists(st.floats(0.01, 100), min_size=0, max_size=6)


@given(LAUNCHES, LAUNCHES, st.floats(0, 0.5), st.integers(2, 5))
def test_nothing_measured_never_passes(before: list[float], now: list[float], allowed: float, needed: int) -> None:
    found = outcome(measured(*before), measured(*now), max_regression=allowed, min_launches=needed)
    if min(len(before), len(now)) < needed:
        assert isinstance(found.error, LaunchError)
    else:
        case = found.cases[0]
        assert case.ratio is not None
        worse = case.ratio.low > 1 + allowed and not math.isnan(case.ratio.low)
        assert isinstance(found.error, RegressionError) == worse


def test_pairs_tell_a_slower_machine_from_slower_code() -> None:
    # The machine gets slower from launch to launch; the code is the same, or 30 % slower in each pair.
    machine = (1.0, 1.6, 0.9, 2.4)
    slower = tuple(1.3 * pace * noise for pace, noise in zip(machine, (1.0, 1.01, 0.99, 1.0), strict=True))
    same = tuple(pace * noise for pace, noise in zip(machine, (1.01, 1.0, 1.0, 0.99), strict=True))
    assert outcome(measured(*machine), measured(*slower)).error is None
    assert isinstance(outcome(measured(*machine), measured(*slower), paired=True).error, RegressionError)
    assert outcome(measured(*machine), measured(*same), paired=True).error is None


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ((10, 40, 50), (20, 30, 60), None),  # B A, A B, B A
        ((10, 20, 30), (40, 50, 60), "did not take turns"),
        ((10, 30, 70), (20, 40, 50), None),
        ((10, 30, 50), (20, 60, 40), "did not take turns"),  # one was launched again, after the third pair
        ((10, 20, 30), (40, None, 60), "is not known"),
        ((), (), "is not known"),
    ],
)
def test_pairs_that_did_not_take_turns_are_told(
    before: tuple[float, ...], now: tuple[float | None, ...], told: str | None
) -> None:
    sides = []
    for times in (before, now):
        side = measured(1.0, 1.01, 0.99)
        placement = side.placements["standard"].model_copy(update={"first_steps": times})
        sides.append(side.model_copy(update={"placements": {"standard": placement}}))
    found = outcome(*sides, paired=True)
    assert len(found.turns) == (told is not None)
    assert all(told in line for line in found.turns if told)
    assert found.error is None
    assert outcome(*sides).turns == ()


def test_a_number_that_no_launch_has_does_not_pass() -> None:
    found = outcome(measured(1.0, 1.0, 1.0), measured(1.0, 1.0, 1.0), metrics=("peak memory",))
    assert isinstance(found.error, LaunchError)
    assert "standard: peak memory was not measured" in str(found.error)


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"host": {"hostname": "b"}}, "host", "host hostname: a → b"),
        ({"versions": {"torch": "2.14"}}, "versions", "version torch: 2.13 → 2.14"),
        ({"launcher": "torchrun"}, "workload", "the run's launcher: ray → torchrun"),
        ({"workload": {"model": "tiny", "batch": {"size": 8}}}, "workload", "workload batch.size: none → 8"),
    ],
)  # fmt: skip
def test_other_hosts_versions_and_workloads_are_named_and_refused(
    changes: dict[str, Any], kind: str, text: str
) -> None:
    before, now = measured(1.0, 1.0, 1.0), measured(1.0, 1.0, 1.0, **changes)
    refused = outcome(before, now)
    assert isinstance(refused.error, BaselineError)
    assert (refused.incomparable, refused.cases) == ((text,), ())
    allowed = outcome(before, now, allow=(kind,))
    assert allowed.error is None
    assert allowed.allowed == (text,)


def test_the_version_under_test_may_differ() -> None:
    before = measured(1.0, 1.0, 1.0, versions={"torch": "2.13", "placebench": "0.1"})
    assert outcome(before, measured(1.0, 1.0, 1.0, versions={"torch": "2.13", "placebench": "0.2"})).error is None


def test_placements_that_one_side_lacks() -> None:
    missing = outcome(measured(1.0, 1.0, 1.0), measured(1.0, 1.0, 1.0, name="split"))
    assert isinstance(missing.error, BaselineError)
    assert "the baseline has no split" in str(missing.error)
    both = measured(1.0, 1.0, 1.0)
    both = both.model_copy(update={"placements": both.placements | {"split": both.placements["standard"]}})
    unmeasured = outcome(both, measured(1.0, 1.0, 1.0))
    assert isinstance(unmeasured.error, LaunchError)
    assert "the run has no split, which the baseline has" in str(unmeasured.error)


def test_a_baseline_file_is_the_run_that_it_was_saved_from(tmp_path: Path) -> None:
    saved = save_baseline(run(tmp_path / "run"), tmp_path / "new" / "baseline.json")
    assert load_baseline(tmp_path / "new" / "baseline.json") == saved == load_baseline(tmp_path / "run")
    assert list(saved.placements) == ["standard", "split"]
    assert saved.placements["split"].side("split").by_round("step_time") == pytest.approx(
        {number: 1.83 * NOISE[number % 3] for number in (1, 2, 3)}
    )
