"""`placebench compare`: arms from runs and logs, what is compared, what is refused, and what the user is told."""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from log_samples import SAMPLES, VERL_CONFIG
from synthetic_run import SyntheticRun, gpu_run

from placebench.cli import main
from placebench.compare.across import compare_arms, headline, warnings
from placebench.compare.arms import Arm
from placebench.compare.comparison import compare_run
from placebench.compare.log_arms import log_arm
from placebench.compare.sources import ReadingOptions, Source, parse_source, read_arms
from placebench.compare.statistics import Verdict
from placebench.errors import UsageError
from placebench.logs.facts import head_facts
from placebench.report.schema import Summary


@pytest.fixture(autouse=True)
def _own_temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Runs that another test has killed are none of the commands' business here.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def verl(
    folder: Path,
    name: str,
    *,
    step_s: float = 10.0,
    steps: int = 6,
    more: Mapping[int, str] | None = None,
    tokens: int = 8000,
    head: str = "",
) -> Path:
    """A console log of verl on 8 devices: steps 1 and 2 take three times as long, gen is half of a step."""
    lines = []
    for step in range(1, steps + 1):
        seconds = step_s * (3 if step <= 2 else 1)
        throughput = tokens / seconds / 8
        lines.append(
            f"step:{step} - timing_s/gen:{seconds / 2} - timing_s/generate_sequences:{seconds / 4}"
            f" - timing_s/update_actor:{seconds / 4} - timing_s/step:{seconds}{(more or {}).get(step, '')}"
            f" - perf/total_num_tokens:{tokens} - perf/throughput:{throughput} - response_length/mean:100.0\n"
        )
    path = folder / name
    path.write_text(head + "".join(lines))
    return path


def arm(*launches: Path, **options: object) -> Arm:
    return log_arm([[path] for path in launches], **options)  # type: ignore[arg-type]


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["compare", *map(str, arguments)], prog_name="placebench")


def words(text: str) -> str:
    return " ".join(text.split())


def test_numbers_of_a_log_are_medians_behind_the_warm_up(tmp_path: Path) -> None:
    found = arm(verl(tmp_path, "a.log", step_s=10.0))
    assert found.launch_values.to_dict("records") == [
        pytest.approx(
            {
                "step_time": 10.0,
                "phase/gen": 5.0,
                "phase/update_actor": 2.5,
                "part/generate_sequences": 2.5,
                "unattributed": 2.5,
                "tokens_per_s": 800.0,
                "tokens_per_s_per_device": 100.0,
            }
        )
    ]
    assert [(launch.steps, launch.measured, launch.format) for launch in found.launches] == [(6, 4, "verl")]


def test_validation_and_checkpoints_inside_the_step_are_taken_off_it(tmp_path: Path) -> None:
    # verl counts them into its step: the step that is logged is longer by just their time.
    upkeep = dict.fromkeys((3, 4, 5), " - timing_s/testing:6.0 - timing_s/save_checkpoint:4.0 - timing_s/step:20.0")
    found = arm(verl(tmp_path, "a.log", more=upkeep, steps=9))
    values = found.launch_values.iloc[0]
    assert values["step_time"] == pytest.approx(10.0)
    assert values["part/testing"] == pytest.approx(6.0)
    assert values["part/save_checkpoint"] == pytest.approx(4.0)
    assert values["tokens_per_s"] == pytest.approx(800.0)
    assert "phase/testing" not in found.launch_values


def test_steps_behind_a_restart_are_warm_up_again(tmp_path: Path) -> None:
    first = verl(tmp_path, "first.log", steps=5)
    again = verl(tmp_path, "again.log", steps=8, step_s=20.0)
    lines = again.read_text().splitlines(keepends=True)
    restarted = tmp_path / "restarted.log"
    restarted.write_text(first.read_text() + "".join(lines[3:]))
    found = arm(restarted)
    # Steps 1 and 2, and 4 and 5 behind the restart at 4, are warm-up.
    assert (found.launches[0].steps, found.launches[0].measured) == (8, 4)
    assert any("restart: line 6" in flag for flag in found.flags)


def test_a_warm_up_longer_than_said_is_found(tmp_path: Path) -> None:
    slow, usual = (verl(tmp_path, name, step_s=seconds, steps=20) for name, seconds in (("a", 16.0), ("b", 10.0)))
    log = tmp_path / "slow_start.log"
    log.write_text("".join([*slow.read_text().splitlines(True)[:6], *usual.read_text().splitlines(True)[6:]]))
    found = arm(log)
    assert (found.launches[0].steps, found.launches[0].measured) == (20, 14)
    assert found.launch_values["step_time"].tolist() == pytest.approx([10.0])


def test_several_launches_an_arm_give_a_verdict_and_one_gives_none(tmp_path: Path) -> None:
    slow = [verl(tmp_path, f"slow{n}.log", step_s=10.0 + 0.01 * n) for n in range(3)]
    fast = [verl(tmp_path, f"fast{n}.log", step_s=8.0 + 0.01 * n) for n in range(3)]
    several = compare_arms([arm(*slow, name="slow"), arm(*fast, name="fast")]).arms[1].ratios["step_time"]
    assert several is not None
    assert (several.verdict, several.pairs) == (Verdict.FASTER, 0)
    assert several.value == pytest.approx(0.8, rel=1e-3)
    single = compare_arms([arm(slow[0]), arm(fast[0])])
    assert {ratio.verdict for ratio in single.arms[1].ratios.values() if ratio} == {Verdict.UNDECIDED}
    assert headline(single, single.arms[1]).startswith("Undecided whether fast0 or slow0 is faster: a step takes 0.80")
    assert any("With 1 launch of an arm" in line for line in warnings(single))


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
    comparison = compare_arms([arm(*flat, name="flat"), arm(*steep, name="steep")])
    other = comparison.arms[1]
    assert other.work is not None
    assert other.work.fitted
    assert other.work.exponent == pytest.approx(0.5, abs=0.01)
    assert other.work.adjusted.value == pytest.approx(0.9, rel=0.01)
    assert other.work.adjusted.verdict is Verdict.FASTER
    step = other.ratios["step_time"]
    assert step is not None
    assert step.value == pytest.approx(1.04, rel=0.02)
    assert step.verdict is Verdict.UNDECIDED
    assert any("at equal tokens (regression: 1 % more tokens, 0.50 % longer)" in line for line in warnings(comparison))


def test_the_placements_of_one_run_are_compared_as_the_run_compares_them(tmp_path: Path) -> None:
    run = SyntheticRun(pace=lambda round_, _: 1.0 + 0.5 * round_).write(tmp_path / "run")
    compared = compare_arms(read_arms([Source(None, run)], ReadingOptions()))
    assert [arm.name for arm in compared.arms] == ["standard", "split"]
    assert compared.arms[1].ratios == compare_run(run).results[1].ratios
    found = compared.arms[1].ratios["step_time"]
    assert found is not None
    # A round is a pair: that every round is slower than the one before drops out.
    assert found.pairs == 3
    assert (found.low, found.high) == pytest.approx((1.83 / 1.3, 1.83 / 1.3))


def test_rounds_of_different_runs_are_no_pairs(tmp_path: Path) -> None:
    runs = [
        SyntheticRun(pace=lambda round_, _: 1.0 + 0.1 * round_).write(tmp_path / "before"),
        SyntheticRun(pace=lambda round_, _: 1.5 * (1.0 + 0.1 * round_)).write(tmp_path / "after"),
    ]
    compared = compare_arms(read_arms([Source(None, run, "split") for run in runs], ReadingOptions()))
    assert [arm.name for arm in compared.arms] == ["before/split", "after/split"]
    found = compared.arms[1].ratios["step_time"]
    assert found is not None
    assert found.pairs == 0
    assert found.low < 1.5 < found.high


def test_a_run_beside_its_own_log_is_seen_by_its_controller(tmp_path: Path) -> None:
    run = SyntheticRun(pace=lambda round_, _: 1.0).write(tmp_path / "run")
    logs = tuple((run / "trials" / f"0{round_}-split" / "steps.jsonl",) for round_ in (1, 2, 3))
    compared = compare_arms(
        read_arms([Source(None, run, "split"), Source("log", launches=logs)], ReadingOptions(devices=(2,)))
    )
    for key in ("step_time", "phase/gen", "phase/values", "tokens_per_s", "tokens_per_s_per_device"):
        found = compared.arms[1].ratios[key]
        assert found is not None
        assert found.value == pytest.approx(1.0)
    # Phases of split overlap, so the log's step has no unattributed time.
    assert "unattributed" not in compared.arms[1].launch_values
    assert any("log: gen, reward" in line and "overlap" in line for line in warnings(compared))


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_format_is_compared_with_itself(tmp_path: Path, sample: str) -> None:
    known, content = SAMPLES[sample]
    paths = [tmp_path / f"{name}.log" for name in ("a", "b")]
    for path in paths:
        path.write_bytes(content)
    compared = compare_arms([arm(path, warmup_steps=0, devices=4, learner_ranks=2) for path in paths])
    assert compared.arms[0].launches[0].format == known
    ratios = [ratio for ratio in compared.arms[1].ratios.values() if ratio]
    assert ratios
    assert all(ratio.value == pytest.approx(1.0) for ratio in ratios)
    assert not any(fact.differs for fact in compared.facts)


def test_a_step_time_that_is_a_mere_sum_gives_way_to_the_logs_clock(tmp_path: Path) -> None:
    slow, fast = tmp_path / "slow.log", tmp_path / "fast.log"
    fast.write_bytes(SAMPLES["openrlhf"][1])
    # The same sums, but 30 s instead of 15 s pass from step to step.
    slow.write_bytes(SAMPLES["openrlhf"][1].replace(b"19:25:45", b"19:26:15").replace(b"19:25:30", b"19:25:45"))
    compared = compare_arms([arm(fast, warmup_steps=0), arm(slow, warmup_steps=0)])
    step, clock = (compared.arms[1].ratios[key] for key in ("step_time", "log_clock"))
    assert step is not None
    assert clock is not None
    assert (step.value, clock.value) == pytest.approx((1.0, 2.0))
    assert "a step takes 2.00 times as long by the logs' clock, 30.0 s against 15.0 s" in headline(
        compared, compared.arms[1]
    )


def test_what_holds_for_every_launch_is_told_once(tmp_path: Path) -> None:
    logs = [verl(tmp_path, f"{name}.log") for name in "ab"]
    with logs[1].open("a") as stream:
        stream.write(logs[1].read_text().splitlines(keepends=True)[-1])
    flags = arm(*logs, name="x").flags
    assert flags == (f"x: {logs[1]}: repeated: 1 step line repeats an earlier one",)
    assert arm(logs[1], logs[1], name="x").flags == ("x: repeated: 1 step line repeats an earlier one",)


def test_what_verl_prints_before_its_steps_is_known(tmp_path: Path) -> None:
    assert head_facts(verl(tmp_path, "a.log", head=VERL_CONFIG)) == {
        "model": "/models/Qwen2.5-0.5B-Instruct",
        "algorithm": "gae",
        "batch size": "256",
        "mini-batch size": "64",
        "longest prompt": "512",
        "longest response": "256",
        "precision": "bfloat16",
        "rollout": "vllm",
        "rollout tensor parallel": "1",
        "training backend": "fsdp",
        "devices": "8",
        "kind of device": "GPU",
    }
    engine = "] Initializing a V1 LLM engine (v0.11.0) with config: model='Q/m', x=1, dtype=torch.float16, y\n"
    assert head_facts(verl(tmp_path, "b.log", head=engine)) == {
        "vllm version": "0.11.0", "model": "Q/m", "precision": "float16",
    }  # fmt: skip
    torn = VERL_CONFIG.replace("'model':", "'mo")
    assert head_facts(verl(tmp_path, "c.log", head=torn)) == {}


def test_what_differs_stands_beside_the_verdict(tmp_path: Path) -> None:
    a = verl(tmp_path, "a.log", head=VERL_CONFIG)
    other = VERL_CONFIG.replace("'train_batch_size': 256", "'train_batch_size': 512").replace("0.5B-Instruct", "0.5B")
    b = verl(tmp_path, "b.log", head=other, tokens=16000)
    result = invoke(a, b)
    assert result.exit_code == 0
    text = words(result.stdout)
    assert "What else differs a b batch size 256 512 tokens a step 8,000 16,000 2 launches" in text
    assert (
        "Unequal work: b had 16,000 tokens a step, a 8,000 (+100.0 %). Step time: 1.00 as measured, 0.50 per token;"
        " a verdict needs both to agree."
    ) in text
    # A step of other work says nothing of speed: the verdict is on the throughput. The shape of the model is the same.
    assert "faster: 2.00 times the tokens/s/device, 200 against 100" in text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("Qwen2.5-0.5B", "Qwen2.5-7B"), "the model differs: /models/Qwen2.5-0.5B-Instruct (a) and"),
        (("'gae'", "'grpo'"), "the algorithm differs: gae (a) and grpo (b)"),
        (("'cuda'", "'cpu'"), "the kind of device differs: GPU (a) and CPU (b)"),
    ],
)
def test_a_comparison_that_means_nothing_needs_force(tmp_path: Path, change: tuple[str, str], reason: str) -> None:
    a = verl(tmp_path, "a.log", head=VERL_CONFIG)
    b = verl(tmp_path, "b.log", head=VERL_CONFIG.replace(*change))
    refused = invoke(a, b)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert reason in refused.stderr
    assert refused.stderr.count("\n") == 1
    forced = invoke(a, b, "--force")
    assert forced.exit_code == 0
    assert f"warning: Compared by force: {reason}" in words(forced.stdout)
    assert "Forced, and means little: Undecided whether b or a is faster" in words(forced.stdout)


def test_gpus_against_cpus_are_refused_for_runs_too(tmp_path: Path) -> None:
    runs = [SyntheticRun(workload={"model": "qwen2.5-1.5b"}).write(tmp_path / "cpu"), gpu_run().write(tmp_path / "gpu")]
    result = invoke(f"{runs[0]}:split", f"{runs[1]}:split")
    assert result.exit_code == 2
    assert "the kind of device differs: CPU (cpu/split) and GPU (gpu/split)" in result.stderr


def test_clocks_versions_and_hosts_of_runs_are_compared(tmp_path: Path) -> None:
    slow = gpu_run(samples={"clock_sm_mhz": 1500, "power_w": 400.0, "event_reasons": 4}).write(tmp_path / "slow")
    fast = gpu_run().write(tmp_path / "fast")
    manifest = json.loads((slow / "run.json").read_text())
    manifest["versions"]["torch"] = "2.15.0"
    (slow / "run.json").write_text(json.dumps(manifest))
    result = invoke(f"{fast}:split", f"{slow}:split")
    assert result.exit_code == 0, result.stderr
    text = words(result.stdout)
    assert "torch version 2.13.0 2.15.0" in text
    assert "SM clock, MHz 1,900 1,500" in text
    assert "split: the power cap held clocks down in 100 % of the samples" in text


def test_a_report_has_the_same_files_as_a_runs(tmp_path: Path) -> None:
    a, b = verl(tmp_path, "a.log"), verl(tmp_path, "b.log", step_s=9.0)
    out = tmp_path / "compared"
    result = invoke(a, b, "--out", out)
    assert result.exit_code == 0, result.stderr
    assert {path.name for path in out.iterdir()} == {"report.html", "report.md", "summary.json", "plots"}
    assert {path.stem for path in (out / "plots").iterdir()} == {"ratios", "phases", "steps"}
    summary = Summary.model_validate_json((out / "summary.json").read_text())
    assert summary.kind == "comparison"
    assert [found.source for found in summary.sources] == [str(a), str(b)]
    assert [found.key for found in summary.placements[1].parts] == ["part/generate_sequences"]
    page = (out / "report.html").read_text()
    for text in (
        summary.name,
        "Parts of phases and times outside the step",
        "never added up",
        "4 of 6",
        "2 launches compared",
    ):
        assert text in page
    assert "Phases from submission to result" not in page
    assert invoke(a, b, "--out", out).exit_code == 0


def test_one_log_alone_gives_its_numbers(tmp_path: Path) -> None:
    result = invoke(verl(tmp_path, "a.log"))
    assert result.exit_code == 0
    assert "a: a step takes 10.0 s (1 launch)." in result.stdout


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a.log", Source(None, launches=((Path("a.log"),),))),
        ("x=a.log,b.log", Source("x", launches=((Path("a.log"),), (Path("b.log"),)))),
        ("a.log+m.jsonl,b.log", Source(None, launches=((Path("a.log"), Path("m.jsonl")), (Path("b.log"),)))),
        ("run", Source(None, Path("run"))),
        ("run:split:3+1", Source(None, Path("run"), "split:3+1")),
        ("mine=run:split/overlap=none", Source("mine", Path("run"), "split/overlap=none")),
        ("odd,na+me=1.log", Source(None, launches=((Path("odd,na+me=1.log"),),))),
    ],
)
def test_words_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, found: Source) -> None:
    monkeypatch.chdir(tmp_path)
    SyntheticRun(rounds=1).write(Path("run"))
    Path("odd,na+me=1.log").touch()
    assert parse_source(text) == found


WORD = st.text(st.characters(codec="utf-8", exclude_characters="=,+:/\0"), min_size=1, max_size=8)


@given(st.none() | WORD, st.lists(st.lists(WORD, min_size=1, max_size=3), min_size=1, max_size=3))
def test_launches_and_their_files_are_taken_apart(name: str | None, launches: list[list[str]]) -> None:
    files = ",".join("+".join(launch) for launch in launches)
    expected = tuple(tuple(Path(file) for file in launch) for launch in launches)
    assert parse_source(files if name is None else f"{name}={files}") == Source(name, launches=expected)


@given(st.text(max_size=40))
def test_no_word_breaks_the_parser(text: str) -> None:
    with suppress(UsageError):
        assert parse_source(text).launches


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "Missing argument 'SOURCE...'"),
        (["none.log"], "none.log: there is no such file"),
        (["a.log", "a.log"], "a.log is given twice: name it once"),
        (["a.log,a.log"], "a.log is given twice: name it once"),
        (["a.log,"], "'a.log,': there is an empty entry"),
        (["run", "run"], "run is given twice: name it once"),
        (["run:spilt"], "run has no placement 'spilt': it has standard, split"),
        (["mine=run", "a.log"], "the run has the placements standard, split: choose one, as mine=run:standard"),
        (["a.log", "--devices", "0"], "--devices '0': give a number above 0, or one for each argument"),
        (["a.log", "b.log", "--devices", "1,2,3"], "--devices 1,2,3: 3 numbers for 2 arguments"),
        (["a.log", "--format", "verb"], "unknown log format 'verb': use tensorboard, "),
        (["a.log", "--format", "trl"], "a.log: no training steps (looked for: "),
        (["a.log", "--warmup-steps", "6"], "a.log: --warmup-steps 6 leaves none of its 6 steps"),
        (["losses.log", "a.log"], "losses.log: it has no timings, so there is nothing to compare"),
        (["gen.log", "update.log", "--warmup-steps", "0"], "no number in common: update_actor against gen"),
        (["a.log", "b.log", "--out", "a.log"], "--out a.log: cannot write the report"),
        (["latest:split"], "latest: there is no run under runs/ yet"),
    ],
)
def test_wrong_input_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    SyntheticRun(rounds=1).write(Path("run"))
    verl(Path(), "a.log")
    verl(Path(), "b.log")
    Path("losses.log").write_text("step:1 - actor/loss:0.5\n")
    Path("gen.log").write_text("step:1 - timing_s/gen:0.5\n")
    Path("update.log").write_text("step:1 - timing_s/update_actor:0.5\n")
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_run_without_a_finished_launch_is_refused(tmp_path: Path) -> None:
    from placebench.runfolder import Status

    run = SyntheticRun(rounds=1, statuses={(1, "split"): Status.OOM}).write(tmp_path / "run")
    result = invoke(run)
    assert result.exit_code == 2
    assert "split has no finished launch: there is nothing to compare" in result.stderr
