import runpy
from pathlib import Path

import numpy as np
import pytest
from layouts import STANDARD
from synthetic_run import SyntheticRun

from placebench.compare.statistics.verdicts import Verdict
from placebench.spec.auto_rounds import AutoRounds

BENCHMARK = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "statistics_simulation.py"))
STEPS = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "steps_and_rounds.py"))
DEALING = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "false_verdicts.py"))
SCENARIOS = BENCHMARK["SCENARIOS"]


def log_line(step: int, gen: float, update: float) -> str:
    """A step of verl's log, with a validation of 3 s in every fifth."""
    testing = " - timing_s/testing:3" if step % 5 == 0 else ""
    whole = gen + update + 3 * (step % 5 == 0)
    phases = f"timing_s/gen:{gen:.4f} - timing_s/update_actor:{update:.4f}{testing}"
    return f"step:{step} - {phases} - timing_s/step:{whole:.4f}\n"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_intervals_cover_and_identical_arms_are_not_told_apart(scenario: object) -> None:
    for launches in (3, 5):
        found = list(BENCHMARK["differences"](scenario, launches, 3000, np.random.default_rng(launches)))
        coverage = BENCHMARK["share"](iter(found), BENCHMARK["covers"])
        assert 0.93 <= coverage <= 0.97
        assert BENCHMARK["share"](iter(found), BENCHMARK["errs"]) <= 0.05


def test_power_grows_with_launches_and_effect() -> None:
    found = {}
    for launches in (3, 8):
        measured = list(BENCHMARK["differences"](BENCHMARK["TYPICAL"], launches, 2000, np.random.default_rng(0)))
        found[launches] = [
            BENCHMARK["share"](iter(measured), BENCHMARK["decides"](effect)) for effect in (0.02, 0.05, 0.1)
        ]
    assert found[3] == sorted(found[3])
    assert all(few <= many + 0.01 for few, many in zip(found[3], found[8], strict=True))
    assert found[8][2] > 0.95
    assert found[3][0] < 0.05


@pytest.mark.parametrize("precision", [0.02, 0.05, 0.1])
def test_adding_rounds_until_they_are_precise_keeps_the_coverage(precision: float) -> None:
    for sd in (0.01, 0.02, 0.05):
        auto = AutoRounds(precision)
        coverage, wrong, rounds = BENCHMARK["auto_coverage"](sd, auto, 4000, np.random.default_rng(1))
        assert 0.92 <= coverage <= 0.97
        assert wrong <= 0.05
        assert auto.least_rounds <= rounds <= auto.max_rounds


def test_the_percentile_bootstrap_covers_too_little_with_few_launches() -> None:
    random = np.random.default_rng(0)
    first, other = BENCHMARK["simulate"](SCENARIOS[2], 3, 400, random)
    covered = {}
    for name, method in BENCHMARK["METHODS"].items():
        low, high = method(other - first, 99, random)
        covered[name] = float(((low <= 0) & (high >= 0)).mean())
    assert covered["hierarchical bootstrap, percentiles"] < 0.85
    assert covered["t-test over steps"] < 0.6
    assert covered["placebench, t over launches"] > 0.92


def test_a_log_dealt_to_two_arms_gives_no_false_verdict(tmp_path: Path) -> None:
    times = np.exp(np.random.default_rng(0).normal(0, 0.05, (80, 2)))
    (tmp_path / "train.log").write_text("".join(log_line(step, *pair) for step, pair in enumerate(times, 1)))
    steps = DEALING["read_steps"](tmp_path / "train.log")
    assert set(steps.columns) == {"gen", "update_actor", "step"}
    assert steps["step"].max() < 3  # validation is taken out
    verdicts = [verdict for found in DEALING["deal"](steps, 10, 3, swap=True) for verdict in found.values()]
    assert len(verdicts) == 3 * 21
    assert not {Verdict.FASTER, Verdict.SLOWER} & set(verdicts)
    slowed = steps.mul(np.where(np.arange(80) // 10 % 2, 1.3, 1.0), axis=0)
    verdicts = [found["step"] for found in DEALING["deal"](slowed, 10, 3, swap=False)]
    assert verdicts[0] is Verdict.SLOWER


def test_launches_dealt_to_two_arms_are_told_apart_only_where_they_differ(tmp_path: Path) -> None:
    layouts = {"standard": STANDARD}
    even = SyntheticRun(layouts=layouts, rounds=8, pace=lambda round_, _: 1.0 + 0.001 * (round_ % 3))
    found = list(DEALING["deal_launches"](even.write(tmp_path / "even"), 3))
    assert len(found) == 3 * 8
    assert {verdict for _, verdict in found} == {Verdict.SAME}
    assert sum(as_rounds for as_rounds, _ in found) == 3
    odd = SyntheticRun(layouts=layouts, rounds=6, pace=lambda round_, _: (1.5 + 0.001 * round_) if round_ % 2 else 1.0)
    verdicts = [verdict for _, verdict in DEALING["deal_launches"](odd.write(tmp_path / "odd"), 3)]
    assert verdicts.count(Verdict.FASTER) == verdicts.count(Verdict.SLOWER) == 1


def test_chosen_steps_save_time_and_keep_the_coverage() -> None:
    auto, cost = AutoRounds(), STEPS["Cost"]("GPU", 30.0, 7.0)
    for noise in (STEPS["Noise"](0.014, 0.042, 0.6), STEPS["Noise"](0.07, 0.042)):
        fixed, chosen = (STEPS["auto_runs"](noise, cost, auto, 8, 2000, chooses=chooses) for chooses in (False, True))
        assert chosen.minutes < fixed.minutes
        assert 0.92 <= chosen.coverage <= 0.97
        assert chosen.false_verdicts <= 0.05


def test_a_round_more_of_fewer_steps_is_narrower_in_the_same_time() -> None:
    cost, noise = STEPS["Cost"]("GPU", 55.0, 7.0), STEPS["Noise"](0.014, 0.042)
    assert 4 * cost.of(4) == pytest.approx(3 * cost.of(8), rel=0.01)
    assert STEPS["mean_width"](noise, 4, 4, 2000) < 0.9 * STEPS["mean_width"](noise, 3, 8, 2000)
