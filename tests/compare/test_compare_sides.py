"""Arms from runs and logs, and what is compared of them."""

import json
import math
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from layouts import STANDARD
from log_samples import SAMPLES, verl_log
from scipy.stats import ttest_ind
from synthetic_run import SyntheticRun, edit_spans

from placebench.compare.comparison import compare_run, compare_sides
from placebench.compare.explain.breakdown import step_changes
from placebench.compare.explain.caveats import caveats
from placebench.compare.explain.headlines import headline
from placebench.compare.explain.reasons import reasons
from placebench.compare.measure.log_sides import log_side
from placebench.compare.measure.sides import read_sides
from placebench.compare.read.sources import ReadingOptions, Source
from placebench.compare.side import Side
from placebench.compare.statistics.estimates import Ratio
from placebench.compare.statistics.verdicts import Verdict
from placebench.record.folder import Status
from placebench.report.summary import summarize


def arm(*launches: Path, **options: object) -> Side:
    return log_side([[path] for path in launches], **options)  # type: ignore[arg-type]


def test_several_launches_an_arm_give_a_verdict_and_one_gives_none(tmp_path: Path) -> None:
    slow = [verl_log(tmp_path, f"slow{n}.log", step_s=10.0 + 0.01 * n) for n in range(3)]
    fast = [verl_log(tmp_path, f"fast{n}.log", step_s=8.0 + 0.01 * n) for n in range(3)]
    several = compare_sides([arm(*slow, name="slow"), arm(*fast, name="fast")]).sides[1].ratios["step_time"]
    assert several is not None
    assert (several.verdict, several.pairs) == (Verdict.FASTER, 0)
    assert several.value == pytest.approx(0.8, rel=1e-3)
    single = compare_sides([arm(slow[0]), arm(fast[0])])
    assert {ratio.verdict for ratio in single.sides[1].ratios.values() if ratio} == {Verdict.UNDECIDED}
    assert headline(single, single.sides[1]).startswith(
        "Undecided whether fast0 or slow0 is faster: a step takes 20 % less"
    )
    assert any("Only 1 launch of an arm" in line for line in caveats(single))


def drifting(folder: Path, name: str, growth: float, pace: float) -> Path:
    """A log of verl whose responses grow from step to step, and whose steps take longer as the root of their tokens."""
    lines = []
    for step in range(1, 31):
        tokens = round(8000 * math.exp(growth * step))
        seconds = pace * (tokens / 8000) ** 0.5
        lines.append(f"step:{step} - timing_s/gen:{seconds / 2} - timing_s/step:{seconds}")
        lines.append(f" - perf/total_num_tokens:{tokens} - perf/throughput:{tokens / seconds / 8}\n")
    path = folder / name
    path.write_text("".join(lines))
    return path


def test_lengths_that_drift_apart_are_taken_out_by_regression(tmp_path: Path) -> None:
    # The steps of the second arm are 4 % slower as measured and, with its longer responses taken out, 10 % faster.
    flat = [drifting(tmp_path, f"flat{n}.log", 0.002, 10.0 + 0.01 * n) for n in range(3)]
    steep = [drifting(tmp_path, f"steep{n}.log", 0.02, 9.0 + 0.01 * n) for n in range(3)]
    comparison = compare_sides([arm(*flat, name="flat"), arm(*steep, name="steep")])
    other = comparison.sides[1]
    assert other.work is not None
    assert other.work.fitted
    assert other.work.exponent == pytest.approx(0.5, abs=0.01)
    assert other.work.adjusted.value == pytest.approx(0.9, rel=0.01)
    assert other.work.adjusted.verdict is Verdict.FASTER
    step = other.ratios["step_time"]
    assert step is not None
    assert step.value == pytest.approx(1.04, rel=0.02)
    assert step.verdict is Verdict.UNDECIDED
    assert any("at equal tokens (regression: 1 % more tokens, 0.50 % longer)" in line for line in caveats(comparison))


def test_the_placements_of_one_run_are_compared_as_the_run_compares_them(tmp_path: Path) -> None:
    run = SyntheticRun(pace=lambda round_, _: 1.0 + 0.5 * round_).write(tmp_path / "run")
    compared = compare_sides(read_sides([Source(None, run)], ReadingOptions()))
    assert [arm.name for arm in compared.sides] == ["standard", "split"]
    assert compared.sides[1].ratios == compare_run(run).sides[1].ratios
    found = compared.sides[1].ratios["step_time"]
    assert found is not None
    # A round is a pair: that every round is slower than the one before drops out.
    assert found.pairs == 3
    assert (found.low, found.high) == pytest.approx((1.83 / 1.3, 1.83 / 1.3))


def common_work(round_: int, name: str, step: int) -> float:
    """Steps that differ much from each other and are, but for a little, the same in all placements."""
    own = np.random.default_rng([round_, len(name), step]).normal(0, 0.02)
    return math.exp(0.3 * math.sin(7.3 * step) + own)


def test_the_order_of_a_runs_placements_mirrors_the_verdict(tmp_path: Path) -> None:
    names = {"a": 1.0, "bb": 1.04, "ccc": 1.08}
    run = SyntheticRun(
        layouts=dict.fromkeys(names, STANDARD),
        rounds=4,
        steps=10,
        pace=lambda round_, name: names[name],
        step_pace=common_work,
    ).write(tmp_path / "run")

    sides = {name: read_sides([Source(None, run, name)], ReadingOptions())[0] for name in names}

    def verdict(first: str, other: str) -> Ratio:
        found = compare_sides([sides[first], sides[other]]).sides[1].ratios["step_time"]
        assert found is not None
        return found

    mirrored = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
    for first, other in (("a", "bb"), ("a", "ccc"), ("bb", "ccc")):
        found, turned = verdict(first, other), verdict(other, first)
        assert (turned.low, turned.high) == pytest.approx((1 / found.high, 1 / found.low))
        assert turned.verdict is mirrored.get(found.verdict, found.verdict)
    own = compare_run(run).sides[1].ratios["step_time"]
    assert own is not None
    assert (verdict("a", "bb").low, verdict("a", "bb").high) == (own.low, own.high)


def test_rounds_of_different_runs_are_no_pairs(tmp_path: Path) -> None:
    runs = [
        SyntheticRun(pace=lambda round_, _: 1.0 + 0.1 * round_).write(tmp_path / "before"),
        SyntheticRun(pace=lambda round_, _: 1.5 * (1.0 + 0.1 * round_)).write(tmp_path / "after"),
    ]
    compared = compare_sides(read_sides([Source(None, run, "split") for run in runs], ReadingOptions()))
    assert [arm.name for arm in compared.sides] == ["before/split", "after/split"]
    found = compared.sides[1].ratios["step_time"]
    assert found is not None
    assert found.pairs == 0
    assert found.low < 1.5 < found.high


def test_arms_of_the_same_run_and_of_another_are_told_apart(tmp_path: Path) -> None:
    for name in ("one", "two"):
        SyntheticRun().write(tmp_path / name)
    sources = [Source(None, run=tmp_path / "one"), Source(None, run=tmp_path / "two", placement="standard")]
    found = compare_sides(read_sides(sources, ReadingOptions()))
    assert [arm.name for arm in found.sides] == ["one/standard", "one/split", "two/standard"]
    assert caveats(found) == (
        "The launches of two/standard did not take turns with those of one/standard: if the machine changed in"
        " between, that shows as a difference.",
    )
    told = summarize(found, 2).method.interval
    assert told.startswith("of one/split the t interval over the log ratios of launches of the same round")
    welch = "Welch's t interval over launches, as those of different runs or rounds are no pairs"
    assert told.endswith(f"; of two/standard {welch}")


def test_warnings_about_launches_and_placements_say_of_which_run(tmp_path: Path) -> None:
    lost = {(1, "standard"): Status.OOM}
    statuses: dict[str, dict[tuple[int, str], Status]] = {
        "one": lost,
        "two": lost | {(2, "standard"): Status.TIMEOUT},
        "three": {},
    }
    for name, of_run in statuses.items():
        SyntheticRun(source="nvml", statuses=of_run, rounds=4).write(tmp_path / name)
    oom, timeout = "round 1 standard: out of memory: ", "round 2 standard: timeout: "
    load = "Device load comes from NVML: a GPU whose kernel only waits reads 100 %."

    def told(*sources: tuple[str | None, str, str]) -> list[str]:
        words = [Source(name, tmp_path / run, placement) for name, run, placement in sources]
        _, *found = caveats(compare_sides(read_sides(words, ReadingOptions())))
        return [line.partition("worker on")[0] for line in found]

    assert told((None, "one", "standard"), (None, "two", "standard")) == [
        f"one/standard, two/standard: {oom}",
        load,
        f"two/standard: {timeout}",
    ]
    assert told(("a", "three", "standard"), ("b", "two", "standard")) == [load, f"b: {oom}", f"b: {timeout}"]
    assert told((None, "one", "standard"), (None, "three", "split")) == [f"one: {oom}", load]


def test_of_logs_it_is_not_known_whether_they_took_turns(tmp_path: Path) -> None:
    before, after = (arm(*(verl_log(tmp_path, f"{name}{n}.log") for n in (1, 2)), name=name) for name in ("a", "b"))
    told = "It is not known whether launches of b and a took turns: if they did not and the machine changed in between,"
    assert any(line.startswith(told) for line in caveats(compare_sides([before, after])))


def test_the_reason_is_the_one_that_the_runs_own_report_gives(tmp_path: Path) -> None:
    run = SyntheticRun(pace=lambda round_, _: 1.0).write(tmp_path / "run")
    told = compare_run(run)
    within = compare_sides(read_sides([Source(None, run)], ReadingOptions()))
    assert reasons(within, within.sides[1]) == reasons(told, told.sides[1])
    runs = [run, SyntheticRun(pace=lambda round_, _: 1.0).write(tmp_path / "again")]
    sources = [Source(None, path, name) for path, name in zip(runs, ("standard", "split"), strict=True)]
    across = compare_sides(read_sides(sources, ReadingOptions()))
    assert reasons(across, across.sides[1]) == reasons(told, told.sides[1])
    log = (run / "trials" / "01-split" / "steps.jsonl",)
    beside = compare_sides(read_sides([Source(None, run, "split"), Source("log", launches=(log,))], ReadingOptions()))
    assert reasons(beside, beside.sides[1]) == ()


def test_the_parts_of_two_runs_steps_have_welchs_interval(tmp_path: Path) -> None:
    paces = {"before": (1.0, 1.02, 0.98), "after": (1.29, 1.3, 1.31)}

    def run(name: str) -> Source:
        path = SyntheticRun(pace=lambda round_, _: paces[name][round_ - 1]).write(tmp_path / name)
        return Source(name, path, "standard")

    compared = compare_sides(read_sides([run(name) for name in paces], ReadingOptions()))
    ((name, change),) = step_changes(compared)
    assert name == "after"
    assert change.difference == pytest.approx(1.30 * 0.3, rel=1e-3)
    assert sum(part.difference for part in change.parts) == pytest.approx(change.difference)
    gen = next(part for part in change.phases if part.first.phase == "gen")
    expected = ttest_ind(*([0.5 * pace for pace in paces[side]] for side in ("after", "before")), equal_var=False)
    interval = expected.confidence_interval()
    assert (gen.rounds.low, gen.rounds.high) == pytest.approx((interval.low, interval.high), rel=1e-3)
    assert gen.rounds.n == 3


def test_a_run_beside_its_own_log_is_seen_by_its_controller(tmp_path: Path) -> None:
    run = SyntheticRun(pace=lambda round_, _: 1.0).write(tmp_path / "run")
    logs = tuple((run / "trials" / f"0{round_}-split" / "steps.jsonl",) for round_ in (1, 2, 3))
    compared = compare_sides(
        read_sides([Source(None, run, "split"), Source("log", launches=logs)], ReadingOptions(devices=(2,)))
    )
    for key in ("step_time", "phase/gen", "phase/values", "tokens_per_s", "tokens_per_s_per_device"):
        found = compared.sides[1].ratios[key]
        assert found is not None
        assert found.value == pytest.approx(1.0)
    # Phases of split overlap, so the log's step has no unattributed time.
    assert "unattributed" not in compared.sides[1].launch_values
    assert any("log: gen, reward" in line and "overlap" in line for line in caveats(compared))


def test_placements_of_a_run_beside_a_log_are_compared_in_their_controllers_view(tmp_path: Path) -> None:
    run = SyntheticRun(pace=lambda round_, _: 1.0).write(tmp_path / "run")

    def shorten(span: dict[str, object]) -> None:
        if span["phase"] == "gen" and span["device"] != "controller":
            start, end = (float(str(span[name])) for name in ("start_mono", "end_mono"))
            span["end_mono"] = (start + end) / 2

    edit_spans(run, "split", shorten)
    log = (run / "trials" / "01-split" / "steps.jsonl",)
    compared = compare_sides(read_sides([Source(None, run), Source("log", launches=(log,))], ReadingOptions()))
    gen = compared.sides[1].ratios["phase/gen"]
    assert gen is not None
    assert gen.value == pytest.approx(0.9 / 0.5)


def test_runs_of_different_launchers_are_told(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b")]
    for path, launcher in zip(paths, ("ray", "torchrun"), strict=True):
        SyntheticRun(layouts={"standard": STANDARD}).write(path)
        manifest = json.loads((path / "run.json").read_text())
        (path / "run.json").write_text(json.dumps(manifest | {"launcher": launcher}))
    compared = compare_sides(read_sides([Source(None, path) for path in paths], ReadingOptions()))
    differing = {fact.name: fact.values for fact in compared.facts if fact.differs}
    assert differing["launcher"] == ("ray", "torchrun")
    assert compared.doubts == ()


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_format_is_compared_with_itself(tmp_path: Path, sample: str) -> None:
    known, content = SAMPLES[sample]
    paths = [tmp_path / f"{name}.log" for name in ("a", "b")]
    for path in paths:
        path.write_bytes(content)
    compared = compare_sides([arm(path, warmup_steps=0, devices=4, learner_ranks=2) for path in paths])
    assert compared.sides[0].background.sources[0].format == known
    ratios = [ratio for ratio in compared.sides[1].ratios.values() if ratio]
    assert ratios
    assert all(ratio.value == pytest.approx(1.0) for ratio in ratios)
    assert not any(fact.differs for fact in compared.facts)


def test_a_step_time_that_is_a_mere_sum_gives_way_to_the_logs_clock(tmp_path: Path) -> None:
    slow, fast = tmp_path / "slow.log", tmp_path / "fast.log"
    fast.write_bytes(SAMPLES["openrlhf"][1])
    # The same sums, but 30 s instead of 15 s pass from step to step.
    slow.write_bytes(SAMPLES["openrlhf"][1].replace(b"19:25:45", b"19:26:15").replace(b"19:25:30", b"19:25:45"))
    compared = compare_sides([arm(fast, warmup_steps=0), arm(slow, warmup_steps=0)])
    step, clock = (compared.sides[1].ratios[key] for key in ("step_time", "log_clock"))
    assert step is not None
    assert clock is not None
    assert (step.value, clock.value) == pytest.approx((1.0, 2.0))
    assert "a step takes 2.00 times the time by the logs' clock, 30.0 s instead of 15.0 s" in headline(
        compared, compared.sides[1]
    )


def openrlhf_log(path: Path, gap_s: int, pace: float) -> Path:
    """A log whose steps are `gap_s` apart by its clock, whatever their phases take."""
    begin = datetime(2026, 8, 13, 10)
    times = " ".join(f"'timing/{name}': {pace}," for name in ("make_experience", "ppo_train", "generation"))
    lines = (
        f"(PPOTrainer pid=42) INFO {begin + timedelta(seconds=gap_s * step):%m-%d %H:%M:%S} ppo_trainer.py:546]"
        f" ✨ Global step {step}: {{{times} 'timing/step_total': {3 * pace}}}\n"
        for step in range(1, 11)
    )
    path.write_text("".join(lines))
    return path


def test_the_logs_clock_is_a_headline_and_not_corrected_for_the_details(tmp_path: Path) -> None:
    paces = (0.97, 1.0, 1.04)
    arms = [
        arm(*(openrlhf_log(tmp_path / f"{name}{n}.log", gap_s + n, paces[n]) for n in range(3)), name=name)
        for name, gap_s in (("a", 98), ("b", 106))
    ]
    compared = compare_sides(arms)
    clock = compared.sides[1].ratios["log_clock"]
    assert clock is not None
    gaps = [[math.log(gap_s + n) for n in range(3)] for gap_s in (106, 98)]
    expected = ttest_ind(gaps[0], np.array(gaps[1]) + math.log(1.02), equal_var=False).pvalue
    assert clock.p_value == pytest.approx(expected)
    assert clock.verdict is Verdict.SLOWER
    assert headline(compared, compared.sides[1]).startswith(
        "b is slower than a: a step takes 8 % more time by the logs' clock"
    )


def test_frameworks_that_count_no_tokens_may_have_done_other_work(tmp_path: Path) -> None:
    first = arm(verl_log(tmp_path, "verl.log"))
    content = SAMPLES["openrlhf"][1]
    for lengths, expected in (
        (b"", "A step may be more work for one than for the other: other does not count tokens."),
        (b"100.0", "A step may be more work for one than for the other: other does not count tokens."),
        (
            b"512.0",
            "Unequal work: responses of other have 512 tokens on average, of verl 100: step times do not tell",
        ),
    ):
        path = tmp_path / f"other{lengths.decode()}.log"
        told = b"'rollout/response_length_mean': " + lengths + b", " if lengths else b""
        path.write_bytes(content.replace(b"'rollout/num_samples'", told + b"'rollout/num_samples'"))
        compared = compare_sides([first, arm(path, name="other", warmup_steps=0)])
        assert any(line.startswith(expected) for line in caveats(compared)), caveats(compared)


def test_what_has_no_step_time_is_named(tmp_path: Path) -> None:
    path = tmp_path / "old.log"
    path.write_text("step:1 - timing/gen:1.0\nstep:2 - timing/gen:1.0\n")
    compared = compare_sides([arm(path, warmup_steps=0), arm(verl_log(tmp_path, "new.log"))])
    assert headline(compared, compared.sides[1]) == "new against old: no verdict, as old gives no step time."
