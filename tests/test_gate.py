"""`placebench check` and `placebench baseline`: what passes, what does not, with which exit code and which output."""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from synthetic_run import STANDARD, SyntheticRun

from placebench.cli import main
from placebench.commands.shared import parse_share
from placebench.errors import BaselineError, LaunchError, RegressionError, UsageError
from placebench.gate.baseline import Baseline, MeasuredPlacement, load_baseline, save_baseline
from placebench.gate.checking import Check, Outcome, check, describe, unequal_work
from placebench.gate.output import verdict
from placebench.runfolder import Status

NOISE = (0.99, 1.0, 1.02)


@pytest.fixture(autouse=True)
def _own_temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Runs that another test has killed are none of the commands' business here.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture(autouse=True)
def _off_github(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)), prog_name="placebench")


def pace(factor: float) -> Callable[[int, str], float]:
    return lambda round_, _: factor * NOISE[round_ % 3]


def run(folder: Path, factor: float = 1.0, **changes: object) -> Path:
    return SyntheticRun(pace=pace(factor), **changes).write(folder)  # type: ignore[arg-type]


def measured(*steps: float, name: str = "standard", **changes: Any) -> Baseline:
    launches = tuple({"step_time": step, "tokens_per_s": 100 / step, "load": 0.5} for step in steps)
    placement = MeasuredPlacement(devices=("d", "d"), planned=len(steps), launches=launches)
    content = {"host": {"hostname": "a"}, "versions": {"torch": "2.13"}, "workload": {"model": "tiny"}}
    return Baseline(placebench="0", run="r", measured="now", placements={name: placement}, **{**content, **changes})


def outcome(before: Baseline, now: Baseline, **options: object) -> Check:
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


def test_a_long_name_costs_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layouts = {"learners:1+engines:1/staleness=1/overlap=updates": STANDARD}
    options = ["--metric", "step", "--metric", "tokens/s/device", "--metric", "peak memory"]
    before, now = (run(tmp_path / name, layouts=layouts) for name in ("before", "now"))
    assert invoke("baseline", "save", before, tmp_path / "baseline.json").exit_code == 0
    words = ["check", now, "--baseline", tmp_path / "baseline.json", *options]
    narrow = invoke(*words).stdout
    monkeypatch.setenv("COLUMNS", "200")
    rows = [line.split(None, 1)[1] for line in invoke(*words).stdout.splitlines() if line.startswith("learners")]
    assert len(rows) == 3
    for row in rows:
        cells = re.split(r"\s{2,}", row.strip())
        assert any(all(cell in line for cell in cells) for line in narrow.splitlines()), row


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


def test_unequal_work_stands_in_every_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = {"standard": STANDARD}
    before = run(tmp_path / "before", layouts=alone)
    longer = run(tmp_path / "longer", 1.3, layouts=alone, tokens={"standard": 1690})
    slower = run(tmp_path / "slower", 1.6, layouts=alone, tokens={"standard": 1690})
    summary, junit, content = (tmp_path / name for name in ("summary.md", "gate.xml", "gate.json"))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    result = invoke("check", longer, "--baseline", before, "--junit", junit, "--json", content)
    assert result.exit_code == 0
    told = "unequal work: standard had 1,690 tokens a step, the baseline 1,300 (+30.0 %). step: 1.30 ("
    assert told in " ".join(result.stdout.split())
    assert f"::warning title=placebench check::{told.replace('%', '%25')}" in result.stdout
    last = "no regression shown; worse only as measured or only at equal tokens: 1 of 1 number"
    assert result.stdout.splitlines()[-1] == last
    assert f"- {told}" in summary.read_text()
    suite = ElementTree.parse(junit).getroot()[0]
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "1", "failures": "0", "errors": "0", "skipped": "1",
    }  # fmt: skip
    assert [(skipped.get("message") or "").startswith(told) for skipped in suite.iter("skipped")] == [True]
    numbers = json.loads(content.read_text())
    assert (numbers["exit_code"], numbers["verdict"], numbers["cases"][0]["outcome"]) == (0, last, "undecided")
    assert numbers["cases"][0]["work"] == {
        "baseline_tokens": pytest.approx(1300), "run_tokens": pytest.approx(1690), "exponent": 1.0,
        "ratio": pytest.approx(1.0), "low": pytest.approx(0.965, abs=0.01), "high": pytest.approx(1.036, abs=0.01),
    }  # fmt: skip
    worse = invoke("check", slower, "--baseline", before, "--junit", junit)
    assert worse.exit_code == 1
    assert worse.stderr.endswith(", 1.23 times with the difference in tokens (+30.0 %) taken out\n")
    (failure,) = ElementTree.parse(junit).getroot()[0].iter("failure")
    assert "(+30.0 %) taken out" in (failure.get("message") or "")


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


def test_several_runs_of_the_same_count_as_one(tmp_path: Path) -> None:
    runs = {
        side: [run(tmp_path / f"{side}{n}", factor * (1 + n), rounds=1) for n in range(3)]
        for side, factor in (("before", 1.0), ("after", 1.3))
    }
    before, after = (",".join(map(str, paths)) for paths in runs.values())
    assert invoke("check", after, "--baseline", before, "--paired").exit_code == 1
    assert invoke("check", before, "--baseline", before, "--paired").exit_code == 0
    # One launch of each run: the runs differ by more than the code does.
    assert invoke("check", after, "--baseline", before).exit_code == 0
    other = run(tmp_path / "other", rounds=1, workload={"model": "big"})
    refused = invoke("check", f"{runs['after'][0]},{other}", "--baseline", before)
    assert refused.exit_code == 4
    assert "demo and demo cannot be taken together: workload model: tiny → big" in refused.stderr


def test_a_number_that_no_launch_has_does_not_pass() -> None:
    found = outcome(measured(1.0, 1.0, 1.0), measured(1.0, 1.0, 1.0), metrics=("peak memory",))
    assert isinstance(found.error, LaunchError)
    assert "standard: peak memory was not measured" in str(found.error)


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"host": {"hostname": "b"}}, "host", "host hostname: a → b"),
        ({"versions": {"torch": "2.14"}}, "versions", "version torch: 2.13 → 2.14"),
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
    assert saved.placements["split"].values("step_time") == pytest.approx(
        {number: 1.83 * NOISE[number % 3] for number in (1, 2, 3)}
    )


def test_the_command_passes_and_fails(tmp_path: Path) -> None:
    before, slower = run(tmp_path / "before"), run(tmp_path / "slower", 1.3)
    baseline = tmp_path / "baseline.json"
    saved = invoke("baseline", "save", before, baseline)
    assert (saved.exit_code, saved.output) == (0, f"{baseline}: 3 of standard, 3 of split launches of demo\n")
    same = invoke("check", run(tmp_path / "same"), "--baseline", baseline)
    assert same.exit_code == 0, same.output
    assert same.stdout.endswith("no regression: 2 numbers within 5 %\n")
    worse = invoke("check", slower, "--baseline", before, "--metric", "step", "--metric", "phase/gen")
    assert worse.exit_code == 1
    assert worse.stderr.startswith("placebench: standard: step is 1.30 times the baseline's (95 % interval ")
    assert [line.split()[:2] for line in worse.stdout.splitlines() if line.rstrip().endswith(" regression")] == [
        ["standard", "step"], ["standard", "gen"], ["split", "step"], ["split", "gen"],
    ]  # fmt: skip
    assert invoke("check", slower, "--baseline", before, "--max-regression", "50%").exit_code == 0
    assert invoke("check", f"{slower}:split", "--baseline", baseline).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["check", "run"], 2, "Missing option '--baseline'"),
        (["check", "nowhere", "--baseline", "base.json"], 2, "nowhere: there is no such folder"),
        (["check", "run", "--baseline", "base.json", "--max-regression", "5"], 2, "write a share, such as 5% or 0.05"),
        (["check", "run", "--baseline", "base.json", "--max-regression", "-5%"], 2, "write a share"),
        (["check", "run", "--baseline", "base.json", "--metric", "steps"], 2, "no such number: use step, gen, "),
        (["check", "run", "--baseline", "base.json", "--metric", "load"], 2, "neither side of it is worse"),
        (["check", "run:spilt", "--baseline", "base.json"], 2, "run has no placement 'spilt'"),
        (["check", "run", "--baseline", "base.json", "--junit", "run"], 2, "run: cannot write it: Is a directory"),
        (["check", "run,", "--baseline", "base.json"], 2, "'run,': there is an empty entry"),
        (["check", "run", "--baseline", "nowhere.json"], 4, "nowhere.json: there is no baseline: save one with"),
        (["check", "run", "--baseline", "empty"], 4, "empty: no baseline: there is no run.json in this folder"),
        (["check", "run", "--baseline", "broken.json"], 4, "not a baseline that this placebench reads: Invalid JSON"),
        (["check", "run", "--baseline", "older.json"], 4, "not a baseline that this placebench reads: schema_version"),
        (
            ["check", "failed", "--baseline", "base.json"],
            3,
            "the run has launches that are not done: round 2 split",
        ),
        (
            ["check", "run", "--baseline", "base.json", "--min-launches", "4"],
            3,
            "has 3 launches of standard, 4 needed",
        ),
        (["baseline", "save", "failed", "new.json"], 3, "no baseline from a run with launches that are not done"),
        (["baseline", "save", "single", "new.json"], 3, "standard has 1 finished launch: a baseline needs 2 or more"),
        (["baseline", "save", "run", "run"], 2, "run: cannot write it: Is a directory"),
    ],
)
def test_other_ends_have_their_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run(Path("run"))
    run(Path("single"), rounds=1)
    run(Path("failed"), statuses={(2, "split"): Status.OOM, (3, "split"): Status.PLANNED})
    save_baseline(Path("run"), Path("base.json"))
    Path("empty").mkdir()
    Path("broken.json").write_text("{")
    Path("older.json").write_text(json.dumps({**json.loads(Path("base.json").read_text()), "schema_version": 0}))
    result = invoke(*arguments)
    assert result.exit_code == code, result.output
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1
    assert not Path("new.json").exists()


def test_every_output_tells_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, slower = run(tmp_path / "before"), run(tmp_path / "slower", 1.3)
    summary, junit, content = (tmp_path / name for name in ("summary.md", "gate.xml", "gate.json"))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    result = invoke("check", slower, "--baseline", before, "--junit", junit, "--json", content)
    assert result.exit_code == 1
    assert result.stdout.count("::error title=placebench check::") == 2
    assert "(95 %25 interval " in result.stdout
    text = summary.read_text()
    assert text.startswith("### demo against demo of 2026-03-01T10:00:00Z, at most 5 % worse\n")
    assert "| split | step | " in text
    suite = ElementTree.parse(junit).getroot()[0]
    assert {name: suite.get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "2", "failures": "2", "errors": "0",
    }  # fmt: skip
    numbers = json.loads(content.read_text())
    assert (numbers["exit_code"], [case["outcome"] for case in numbers["cases"]]) == (1, ["regression"] * 2)
    assert numbers["cases"][0]["ratio"] == pytest.approx(1.3)
    assert result.stderr.strip() == f"placebench: {numbers['verdict']}"


def test_what_cannot_be_judged_is_an_error_of_junit(tmp_path: Path) -> None:
    before = run(tmp_path / "before")
    odd = run(tmp_path / "odd", statuses={(1, "split"): Status.OOM}, workload={"model": "tiny\x1b[31m"})
    junit = tmp_path / "gate.xml"
    result = invoke("check", odd, "--baseline", before, "--junit", junit)
    assert result.exit_code == 4
    errors = [error.get("message") or "" for error in ElementTree.parse(junit).iter("error")]
    assert any("workload model: tiny → tiny?[31m" in text for text in errors)
    assert any("round 1 split: oom" in text for text in errors)


@pytest.mark.parametrize(
    ("baseline", "reason"),
    [
        ("nowhere.json", "nowhere.json: there is no baseline: save one with"),
        ("broken.json", "broken.json: not a baseline that this placebench reads: Invalid JSON"),
        ("run,other", "demo and demo cannot be taken together: workload model: tiny → big"),
    ],
)
def test_every_output_tells_that_there_is_no_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, baseline: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run(Path("run"))
    run(Path("other"), workload={"model": "big"})
    Path("broken.json").write_text("{")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    result = invoke("check", "run", "--baseline", baseline, "--junit", "gate.xml", "--json", "gate.json")
    assert result.exit_code == 4
    assert reason in result.stderr
    assert f"::error title=placebench check::{reason}" in result.stdout
    suite = ElementTree.parse("gate.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")
    assert [reason in (error.get("message") or "") for error in suite.iter("error")] == [True]
    assert reason in Path("summary.md").read_text()
    content = json.loads(Path("gate.json").read_text())
    assert (content["exit_code"], content["cases"], content["baseline"]) == (4, [], baseline)
    assert [reason in text for text in content["incomparable"]] == [True]


def test_ctrl_c_is_exit_code_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("placebench.gate.baseline.measured_run", stop)
    assert invoke("check", tmp_path, "--baseline", tmp_path).exit_code == 130


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("5 %", 0.05), ("0.05", 0.05), ("0", 0.0), ("99%", 0.99)])
def test_shares(text: str, share: float) -> None:
    assert parse_share("--max-regression", text) == pytest.approx(share)


@given(st.text(max_size=6))
def test_no_share_breaks_the_parser(text: str) -> None:
    try:
        assert 0 <= parse_share("--x", text) < 1
    except UsageError:
        assert not text.removesuffix("%").isdecimal() or int(text.removesuffix("%")) >= 1


def test_a_check_needs_no_torch(tmp_path: Path) -> None:
    before = run(tmp_path / "before")
    program = (
        "import sys; from placebench.cli import main\n"
        f"sys.argv = ['placebench', 'check', {str(before)!r}, '--baseline', {str(before)!r}]\n"
        "try: main()\n"
        "finally: print(sorted(sys.modules.keys() & {'torch', 'ray', 'vllm', 'transformers'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n[]\n")
