import json
import math
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launching import assert_nothing_left, plan, run
from layouts import STANDARD
from rich.console import Console
from synthetic_run import SyntheticRun

from placebench.compare.comparison import compare_run
from placebench.compare.measure.precision import headline_width
from placebench.compare.read.run_reading import load_run
from placebench.errors import UsageError
from placebench.plan.as_config import config_text
from placebench.plan.plan import make_plan
from placebench.plan.request import ROUNDS, RunRequest
from placebench.plan.resume import resume_plan
from placebench.plan.views import show_plan
from placebench.record.folder import RunFolder, Status
from placebench.record.run_file import read_run_file
from placebench.report.summary import summarize
from placebench.spec.auto_rounds import FIRST_LOOK, LEAST_PRECISION, PILOT_ROUNDS, AutoRounds
from placebench.spec.check import Facts, collect
from placebench.spec.config import load_yaml
from placebench.spec.workload import Workload

pytestmark = pytest.mark.usefixtures("temp_here")

# A job whose steps take `pace` times 0.1 s as far as its files tell, in no time at all.
TIMED = """
def timed(pace):
    steps(0.1 * pace)
first = launch["placement"]["name"] == "standard"
"""


def test_a_quiet_run_ends_one_round_after_the_first_look(tmp_path: Path, temp: Path) -> None:
    result, said = run(plan(tmp_path, rounds="auto"), TIMED + "timed(1.0 if first else 1.5)")
    assert (result.done, result.total, result.stopped_by) == (14, 14, None)
    content = json.loads((result.folder / "run.json").read_text())
    assert (content["rounds"], content["status"], len(content["order"])) == (FIRST_LOOK + 1, "done", FIRST_LOOK + 1)
    limits = {"precision": 0.05, "max_rounds": 20, "max_time_s": None}
    assert content["auto"] == limits | {"chooses_steps": False, "choice": None}
    told = "7 rounds, precise enough: the widest headline interval spanned 0.0% after 6 rounds and spans 0.0% now"
    assert f"note: {told}, --precision is 5.0%" in said
    assert "[14/about 14] round 7" in said
    assert_nothing_left(temp)


def test_a_noisy_run_gets_rounds_up_to_the_limit_and_says_what_it_expects(tmp_path: Path) -> None:
    body = TIMED + "timed(1.0 + 0.3 * (launch['round'] % 3) * first)"
    result, said = run(plan(tmp_path, rounds="auto", max_rounds=9), body)
    assert result.done == 18
    assert "note: 9 rounds, the most that --max-rounds allows: the widest headline interval spans " in said
    assert "[15/about 18] round 8 split" in said


def test_noise_that_ends_lets_the_run_end(tmp_path: Path) -> None:
    # One odd launch in round 1 of 2 % makes the interval wide at first: rounds are added until it is narrow.
    body = TIMED + "timed(1.04 if case == '1 split' else 1.0 if first else 1.001)"
    result, said = run(plan(tmp_path, rounds="auto", precision=0.03), body)
    rounds = result.done // 2
    assert FIRST_LOOK + 1 < rounds < 20
    assert f"note: {rounds} rounds, precise enough" in said
    assert headline_width(result.folder, rounds - 1) <= 0.03 < headline_width(result.folder, rounds - 2)


def test_no_round_begins_that_would_pass_the_time(tmp_path: Path) -> None:
    body = TIMED + "timed(1.0 + (launch['round'] % 3) * first)"
    result, said = run(plan(tmp_path, rounds="auto", max_time_s=0.1), body)
    assert result.done == 4
    assert "note: 2 rounds; another would pass --max-time" in said


def test_time_that_is_left_makes_no_run_end_sooner(tmp_path: Path) -> None:
    result, said = run(plan(tmp_path, rounds="auto", max_time_s=1e6), TIMED + "timed(1.0)")
    assert result.done == 2 * (FIRST_LOOK + 1)
    assert f"note: {FIRST_LOOK + 1} rounds, precise enough" in said


def test_later_launches_have_as_many_steps_as_their_costs_call_for(tmp_path: Path) -> None:
    # Launches hardly differ, and a start costs many steps: later launches have more steps than the first ones.
    body = """
    import random
    noise = random.Random(case)
    if case == "5 split":
        sys.exit(7)
    for step in range(1, count + 1):
        progress("step", step)
        end_step(step, 0.002 * noise.uniform(0.9, 1.1))
    """
    workload = {"warmup_steps": 1}
    result, said = run(plan(tmp_path, rounds="auto", max_rounds=7, precision=0.01, workload=workload), body)
    record = read_run_file(RunFolder(result.folder))
    assert record.auto is not None
    assert record.auto.choice is not None
    later = 1 + record.auto.choice.measured
    assert later > record.steps == Workload().steps
    assert f"note: {record.auto.choice.sentence}\n" in said
    assert f"round 4 split: step {later}/{later}" in said
    resumed = resume_plan(result.folder, RunRequest(sample_hz=0.0))
    result, said = run(resumed, body.replace('case == "5 split"', "False"))
    assert result.done == result.total == 14
    assert f"step {later}/{later}" in said
    assert "soonest" not in said  # it was chosen before
    counts = {(one.round, one.steps_done) for one in load_run(result.folder).launches}
    assert counts == {(number, record.steps if number <= PILOT_ROUNDS else later) for number in range(1, 8)}
    compared = summarize(compare_run(result.folder))
    assert compared.placements[1].quantities[0].ratio is not None
    assert compared.placements[1].quantities[0].ratio.pairs == 7
    assert compared.method.chosen_steps == record.auto.choice.sentence


def test_steps_are_left_as_asked_for(tmp_path: Path) -> None:
    def chooses(**given: Any) -> bool:
        auto = auto_rounds(RunRequest(rounds="auto", **given))
        assert isinstance(auto, AutoRounds)
        return auto.chooses_steps

    assert chooses()
    assert chooses(job={"job": "verl"})
    assert not chooses(workload={"steps": 8})
    assert not chooses(job={"job": "verl", "steps": 8})
    assert not chooses(job={"job": "verl", "until_end": True})
    assert not chooses(checkpoint_every=2)
    open_plan = make_plan(RunRequest(out=tmp_path, devices="cpu:2", rounds="auto"))
    text = config_text(open_plan, RunRequest(rounds="auto"), ("placebench", "run"))
    assert "\n# steps:  # " in text
    (tmp_path / "bench.yaml").write_text(text)
    assert "steps" not in load_yaml(tmp_path / "bench.yaml")
    out = StringIO()
    show_plan(open_plan, Console(file=out, width=200))
    assert "from round 4 on, the number that reaches the precision soonest" in out.getvalue()
    out = StringIO()
    few = make_plan(RunRequest(out=tmp_path, devices="cpu:2", rounds="auto", max_rounds=3))
    show_plan(few, Console(file=out, width=200))
    assert "from round 4 on" not in out.getvalue()


def test_a_model_of_real_size_gets_a_round_more(tmp_path: Path) -> None:
    def rounds(**given: Any) -> int:
        return make_plan(RunRequest(out=tmp_path, devices="gpu:2@141GiB", dry_run=True, **given)).rounds

    assert (rounds(), rounds(workload={"model": "qwen2.5-0.5b"})) == (3, 4)


def test_no_round_is_added_after_a_failure_and_a_resumed_run_goes_on(tmp_path: Path) -> None:
    broken = TIMED + "if case == '2 split': sys.exit(7)\ntimed(1.0 + 0.3 * (launch['round'] % 3) * first)"
    result, _ = run(plan(tmp_path, rounds="auto", max_rounds=8), broken)
    assert (result.done, result.total, len(result.failures)) == (13, 14, 1)
    resumed = resume_plan(result.folder, RunRequest(sample_hz=0.0))
    assert resumed.auto == AutoRounds(max_rounds=8)
    result, said = run(resumed, TIMED + "timed(1.0 + 0.3 * (launch['round'] % 3) * first)")
    assert (result.done, result.total) == (16, 16)
    assert "[14/about 14] round 2 split: start" in said
    assert {trial.status for trial in RunFolder(result.folder).trials()} == {Status.DONE}
    with pytest.raises(UsageError, match=re.escape("--rounds is 3 now and already 8 in the run")):
        resume_plan(result.folder, RunRequest(rounds=3))
    assert resume_plan(result.folder, RunRequest(rounds=9)).auto is None
    assert resume_plan(result.folder, RunRequest(max_rounds=30)).auto == AutoRounds(max_rounds=30)


def test_a_run_that_is_stopped_while_rounds_are_added_says_so(tmp_path: Path) -> None:
    body = TIMED + "if case == '8 split': os.kill(os.getppid(), signal.SIGINT); time.sleep(60)\n"
    result, _ = run(plan(tmp_path, rounds="auto"), body + "timed(1.0 + 0.3 * (launch['round'] % 3) * first)")
    assert (result.done, result.total, result.stopped_by) == (14, 16, "stopped by SIGINT")
    assert json.loads((result.folder / "run.json").read_text())["rounds"] == 8


def auto_rounds(request: RunRequest, stored: AutoRounds | None = None) -> object:
    facts = Facts(request=request, stored=stored)
    collect([ROUNDS], facts).raise_any()
    return facts.get("auto")


def test_limits_need_rounds_auto(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--precision, --max-time: only for a number of rounds that is not fixed"):
        make_plan(RunRequest(out=tmp_path, devices="cpu:2", precision=0.1, max_time_s=60.0))
    assert auto_rounds(RunRequest(rounds="auto", precision=0.1)) == AutoRounds(precision=0.1, chooses_steps=True)
    (tmp_path / "bench.yaml").write_text("rounds: auto\n")
    assert load_yaml(tmp_path / "bench.yaml") == {"rounds": "auto"}


@pytest.mark.parametrize("precision", [0.0, 1e-200, 0.99e-4, 1.0, math.nan])
def test_a_precision_that_no_rounds_reach_is_refused(precision: float) -> None:
    for request, stored in (
        (RunRequest(rounds="auto", precision=precision), None),
        (RunRequest(precision=precision), AutoRounds()),
        (RunRequest(), AutoRounds(precision)),
    ):
        with pytest.raises(UsageError, match=r"^--precision \S+: give at least 0.01%, and less than 100%$"):
            auto_rounds(request, stored)
    # A run that has such a precision goes on with another one.
    assert auto_rounds(RunRequest(precision=0.05), AutoRounds(precision)) == AutoRounds()


@given(st.integers(1, 40), st.floats(0), st.floats(LEAST_PRECISION, 1, exclude_max=True))
def test_the_rounds_to_expect_can_be_told_of_every_precision(rounds: int, width: float, precision: float) -> None:
    assert rounds <= AutoRounds(precision).expected_rounds(rounds, width) <= max(rounds, 20)


def test_the_width_of_headlines_covers_every_placement_and_one_alone(tmp_path: Path) -> None:
    layouts = {"standard": STANDARD, "even": STANDARD, "odd": STANDARD}
    run_ = SyntheticRun(
        layouts=layouts, rounds=4, pace=lambda round_, name: 1.1 if name == "odd" and round_ % 2 else 1.0
    )
    path = run_.write(tmp_path / "run")
    # d = ln 1.1, 0, ln 1.1, 0: sd 0.05503, half width t(0.975, 3) * sd / 2 = 0.08756; the ends lie 2 * that apart.
    assert headline_width(path, 4) == pytest.approx(0.1914, abs=1e-3)
    assert headline_width(path, 1) == float("inf")
    alone = SyntheticRun(layouts={"standard": STANDARD}, rounds=4, pace=lambda round_, _: 1.1 if round_ % 2 else 1.0)
    assert headline_width(alone.write(tmp_path / "alone"), 4) == pytest.approx(0.1914, abs=1e-3)


def test_the_width_that_ends_a_run_is_told_beside_the_present_one() -> None:
    assert AutoRounds().reason_to_stop(7, 0.0497, 0.0803, 0.0, 1.0) == (
        "7 rounds, precise enough: the widest headline interval spanned 5.0% after 6 rounds and spans 8.0% now,"
        " --precision is 5.0%"
    )
    assert AutoRounds(max_rounds=7).reason_to_stop(7, 0.0497, 0.0803, 0.0, 1.0) == (
        "7 rounds, the most that --max-rounds allows: the widest headline interval spans 8.0%, --precision is 5.0%"
    )
    assert AutoRounds(max_rounds=2).reason_to_stop(2, math.inf, math.inf, 0.0, 1.0) == (
        "2 rounds, the most that --max-rounds allows: there is no interval, --precision is 5.0%"
    )


@pytest.mark.parametrize("spread", [0.0, 0.06])
def test_the_width_is_the_one_that_the_report_gives(tmp_path: Path, spread: float) -> None:
    # With tokens that differ from launch to launch the work is unequal, and the report pairs no steps.
    def tokens(round_: int, name: str, step: int) -> float:
        return math.exp(0.25 * math.sin(7.3 * step) + spread * math.sin(1.7 * step * round_ * len(name)))

    run_ = SyntheticRun(
        layouts={"standard": STANDARD, "copy": STANDARD},
        steps=12,
        step_tokens=tokens,
        pace=lambda round_, name: 1.01 ** (round_ * len(name)),
        step_pace=lambda *step: tokens(*step) ** 0.8,
    )
    path = run_.write(tmp_path / "run")
    other = compare_run(path).sides[1]
    assert (other.work is not None) == (spread > 0)
    ratios = [other.ratios[key] for key in ("step_time", "tokens_per_s")]
    widths = [ratio.high / ratio.low - 1 for ratio in ratios if ratio]
    assert headline_width(path, 3) == pytest.approx(max(widths), rel=1e-9)


@given(st.integers(1, 40), st.floats(0, 10), st.floats(0, 1e5), st.floats(0, 1e5))
def test_rounds_end_by_precision_or_a_limit_alone(rounds: int, width: float, elapsed: float, per_round: float) -> None:
    auto = AutoRounds(0.05, 20, 3600.0)
    reason = auto.reason_to_stop(rounds, width, 2 * width, elapsed, per_round)
    limit = rounds >= 20 or elapsed + per_round > 3600
    assert (reason is not None) == (limit or (rounds > FIRST_LOOK and width <= 0.05))
    expected = auto.expected_rounds(rounds, width)
    assert max(rounds, FIRST_LOOK + 1) <= expected <= max(20, rounds)
