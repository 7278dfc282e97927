"""`placebench compare`: its words, what it refuses, what the user is told and what it writes."""

import json
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from log_samples import VERL_CONFIG, verl_log
from pages import ROOT
from synthetic_run import SyntheticRun, gpu_run

from placebench.cli import main
from placebench.compare.comparability import doubts_of, known_facts
from placebench.compare.read.sources import Source, parse_source
from placebench.compare.side import Background, Side
from placebench.errors import UsageError
from placebench.report.schema import Summary

pytestmark = pytest.mark.usefixtures("own_temp")


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["compare", "--verbose", *map(str, arguments)], prog_name="placebench")


def words(text: str) -> str:
    return " ".join(text.split())


def test_files_are_not_scattered_into_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = verl_log(tmp_path, "a.log")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    result = invoke(log, "--out", "")
    assert result.exit_code == 2
    assert result.stderr.startswith("placebench: Invalid value for '--out': it is empty: name a folder")
    assert not list(Path().iterdir())


def test_the_warm_up_that_is_told_is_that_of_the_launches(tmp_path: Path) -> None:
    run = SyntheticRun(warmup_steps=1).write(tmp_path / "run")
    log = verl_log(tmp_path, "log.jsonl")
    assert "a launch, 1 warm-up step left out;" in words(invoke(run, "--out", tmp_path / "one").stdout)
    both = invoke(run, log, "--warmup-steps", 3, "--force", "--out", tmp_path / "both")
    assert "a launch, 1 to 3 warm-up steps left out;" in words(both.stdout)


def test_what_differs_stands_beside_the_verdict(tmp_path: Path) -> None:
    a = verl_log(tmp_path, "a.log", head=VERL_CONFIG)
    other = VERL_CONFIG.replace("'train_batch_size': 256", "'train_batch_size': 512").replace("0.5B-Instruct", "0.5B")
    b = verl_log(tmp_path, "b.log", head=other, tokens=16000)
    result = invoke(a, b)
    assert result.exit_code == 0
    text = words(result.stdout)
    assert "What else differs a b batch size 256 512 tokens a step 8,000 16,000 2 launches" in text
    assert (
        "Unequal work: b had 16,000 tokens a step, a 8,000 (+100.0 %). Step time: 1.00 as measured, 0.50 per token;"
        " a verdict needs both to agree."
    ) in text
    # A step of other work says nothing of speed: the verdict is on the throughput. The shape of the model is the same.
    assert "faster: 2.00 times the tokens/s/device, 200 instead of 100" in text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("Qwen2.5-0.5B", "Qwen2.5-7B"), "the model differs: /models/Qwen2.5-0.5B-Instruct (a) and"),
        (("'gae'", "'grpo'"), "the algorithm differs: gae (a) and grpo (b)"),
        (("'cuda'", "'cpu'"), "the kind of device differs: GPU (a) and CPU (b)"),
    ],
)
def test_a_comparison_that_means_nothing_needs_force(tmp_path: Path, change: tuple[str, str], reason: str) -> None:
    a = verl_log(tmp_path, "a.log", head=VERL_CONFIG)
    b = verl_log(tmp_path, "b.log", head=VERL_CONFIG.replace(*change))
    refused = invoke(a, b)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert reason in refused.stderr
    assert refused.stderr.count("\n") == 1
    forced = invoke(a, b, "--force")
    assert forced.exit_code == 0
    assert f"warning: Compared by force: {reason}" in words(forced.stdout)
    assert "Compared by force, so this means little: Undecided whether b or a is faster" in words(forced.stdout)


def test_placements_of_one_run_need_no_force_among_each_other() -> None:
    runs = [ROOT / "runs" / "reference" / "4x-h200" / name for name in ("ppo-7b", "ppo-1.5b")]
    told = words(invoke(*runs, "--force", "--verbose").stdout)
    assert "Compared by force, so this means little: ppo-7b/split is" not in told
    assert "ppo-7b/split is slower than ppo-7b/standard" in told
    assert "Compared by force, so this means little: ppo-1.5b/split is" in told


HUB = "/cache/hub/models--Qwen--Qwen2.5-0.5B-Instruct/snapshots/7ae557604adf67be50417f59c2c2f167def9a775"


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", HUB, True),
        ("/models/Qwen2.5-0.5B/", "Qwen/Qwen2.5-0.5B-Instruct", True),
        ("/ckpts/llama-70b/hf", "/ckpts/qwen-0.5b/hf", False),
        (
            "/ckpts/llama-70b/global_step_20/actor/huggingface",
            "/ckpts/qwen-0.5b/global_step_20/actor/huggingface",
            False,
        ),
        ("/ckpts/llama-70b/checkpoint-100", "/ckpts/llama-70b/checkpoint-200", True),
        ("/ckpts/llama-70b/final", "meta/Llama-70B", True),
        ("/models/final", "/models/final", True),
        ("/models/hf", "/other/final", False),
        (HUB, HUB.replace("0.5B", "7B"), False),
    ],
)
def test_a_model_is_told_by_the_part_of_its_path_that_names_one(one: str, other: str, is_same: bool) -> None:
    arms = [
        Side(
            name=label,
            launch_values=pd.DataFrame(),
            steps=pd.DataFrame(),
            background=Background(facts={"model": text}),
        )
        for label, text in (("a", one), ("b", other))
    ]
    assert (not doubts_of(arms, known_facts(arms))) is is_same


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
    assert "split: the power cap lowered the clocks in 100 % of the samples" in text


def test_a_report_has_the_same_files_as_a_runs(tmp_path: Path) -> None:
    a, b = verl_log(tmp_path, "a.log"), verl_log(tmp_path, "b.log", step_s=9.0)
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


def test_the_report_of_two_runs_says_why(tmp_path: Path) -> None:
    before = SyntheticRun().write(tmp_path / "before")
    after = SyntheticRun(pace=lambda round_, _: 1.3 + 0.004 * round_).write(tmp_path / "after")
    result = invoke(f"{before}:standard", f"{after}:split", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    text = words(result.stdout)
    assert "Critical path: split against standard" in text
    assert "but on 1 device instead of 2, phases take 1.8" in text
    assert "In split, cpu:1 (critic_pool) waits" in text
    assert "difference" in {path.stem for path in (tmp_path / "out" / "plots").iterdir()}
    summary = Summary.model_validate_json((tmp_path / "out" / "summary.json").read_text())
    first, other = summary.placements
    assert [part.difference for part in first.critical_path] == [None] * len(first.critical_path)
    added = sum(part.difference.value for part in other.critical_path if part.difference)
    assert added == pytest.approx((other.quantities[0].value or 0) - (first.quantities[0].value or 0), rel=1e-6)
    assert "Idle time of each pool by cause" in (tmp_path / "out" / "report.md").read_text()
    alone = invoke(f"{after}:split")
    assert "In split, cpu:1 (critic_pool) waits" in words(alone.stdout)


@pytest.mark.parametrize("names", [("a", "b"), ("before_the_change", "after_the_change")])
@pytest.mark.parametrize("phase", ["policy_and_reference_logprobs", "policy_and_reference_logprobs_prep_and_transfer"])
def test_the_verdict_stands_whole_in_80_columns(tmp_path: Path, names: tuple[str, str], phase: str) -> None:
    more = dict.fromkeys(range(1, 7), f" - timing_s/{phase}:1.5")
    arms = [
        [verl_log(tmp_path, f"{name}{number}.log", step_s=seconds + number / 100, more=more) for number in range(3)]
        for name, seconds in zip(names, (10.0, 12.0), strict=True)
    ]
    result = invoke(*(f"{name}={','.join(map(str, logs))}" for name, logs in zip(names, arms, strict=True)))
    assert result.exit_code == 0, result.stderr
    legend, table = result.stdout.split("\n\n")[:2] if len(names[0]) > 1 else ("", result.stdout.split("\n\n")[0])
    assert legend.splitlines() == ([f"A  {names[0]}", f"B  {names[1]}"] if legend else [])
    lines = table.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[-1] for line in lines if "verdict" in line] == ["verdict"]
    found = {line.split()[0]: line.split()[-1] for line in lines}
    assert {name: found[name] for name in ("step", "gen", "unattributed", "tokens/s")} == {
        "step": "slower",
        "gen": "slower",
        "unattributed": "higher",
        "tokens/s": "slower",
    }
    assert phase in "".join(line.split()[0] for line in lines if line.startswith("  ") and line[2] != " ")
    assert all(f"{seconds} s" in table for seconds in ("10.0", "12.0", "1.50"))


def test_one_log_alone_gives_its_numbers(tmp_path: Path) -> None:
    result = invoke(verl_log(tmp_path, "a.log"))
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


def test_a_named_arm_may_have_more_logs_than_a_file_name_has_letters() -> None:
    files = [f"launch-{number:03d}.log" for number in range(40)]
    assert parse_source(f"before={','.join(files)}") == Source("before", launches=tuple((Path(f),) for f in files))


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
        (["a.log,run"], "a.log,run: run is a run: a comma separates the logs of an arm, and + joins the files of one"),
        (["x=mine+other"], "x=mine+other: mine is a run: a comma separates the logs of an arm"),
        (["run:spilt"], "run has no placement 'spilt': it has standard, split"),
        (["mine=run", "a.log"], "the run has the placements standard, split: choose one, as mine=run:standard"),
        (["a.log", "--devices", "0"], "--devices '0': give a number above 0, or one for each argument"),
        (["a.log", "b.log", "--devices", "1,2,3"], "--devices 1,2,3: 3 numbers for 2 arguments"),
        (["a.log", "--format", "verb"], "unknown log format 'verb': use tensorboard, "),
        (["a.log", "--format", "trl"], "a.log: no training steps (looked for: "),
        (["a.log", "--warmup-steps", "6"], "a.log: --warmup-steps 6 leaves none of its 6 steps: give fewer, such as 0"),
        (
            ["losses.log", "a.log"],
            "losses.log: it has no timings in seconds (timing_s/…, timing/…), so there is nothing to compare:"
            " found 1 step with 1 other metric",
        ),
        (
            ["own.csv"],
            "own.csv: it has no timings in seconds (timing_s/…), so there is nothing to compare:"
            " found 2 steps with 2 other metrics",
        ),
        (["gen.log", "update.log", "--warmup-steps", "0"], "no number in common: update_actor against gen"),
        (["a.log", "b.log", "--out", "a.log"], "--out a.log: cannot write the report"),
        (["a.log", "b.log", "--png"], "--png: figures are written only with --out FOLDER: add it"),
        (["latest:split"], "latest: there is no run under runs/ yet"),
        (["a.log", "--out", "run"], "--out run: is the folder of a run, whose own report it would replace"),
        (["run", "--format", "verl"], "--format verl: is for logs, and only runs are compared: leave it out"),
        (["run:split", "--devices", "8"], "--devices 8: is for logs, and only runs are compared: leave it out"),
        (["run", "--learner-ranks", "2"], "--learner-ranks 2: is for logs, and only runs are compared: leave it out"),
        (["run", "--warmup-steps", "0"], "--warmup-steps 0: is for logs, and only runs are compared: leave it out"),
    ],
)
def test_wrong_input_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    SyntheticRun(rounds=1).write(Path("run"))
    if "x=mine+other" in arguments:
        SyntheticRun(rounds=1).write(Path("runs/mine"))
    verl_log(Path(), "a.log")
    verl_log(Path(), "b.log")
    Path("losses.log").write_text("step:1 - actor/loss:0.5\n")
    Path("own.csv").write_text("step,step_time,gen_time\n1,2.0,1.0\n2,2.0,1.0\n")
    Path("gen.log").write_text("step:1 - timing_s/gen:0.5\n")
    Path("update.log").write_text("step:1 - timing_s/update_actor:0.5\n")
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1
    assert {path.name for path in Path("run").iterdir()} == {"run.json", "trials"}


def test_a_run_without_a_finished_launch_is_refused(tmp_path: Path) -> None:
    from placebench.record.folder import Status

    run = SyntheticRun(rounds=1, statuses={(1, "split"): Status.OOM}).write(tmp_path / "run")
    result = invoke(run)
    assert result.exit_code == 2
    assert "split has no finished launch: there is nothing to compare" in result.stderr


def test_a_launch_whose_files_are_damaged_is_told_as_such(tmp_path: Path) -> None:
    run = SyntheticRun(rounds=1).write(tmp_path / "run")
    for trial in (run / "trials").iterdir():
        (trial / "steps.jsonl").write_bytes(b"\0\1\n")
    for words in (("compare", str(run)), ("predict", "--from", str(run), "--placements", "standard")):
        result = CliRunner().invoke(main, [*words])
        assert result.exit_code == 2
        assert "cannot be read: " in result.stderr
        assert "steps.jsonl, line 1: " in result.stderr
        assert result.stderr.count("\n") == 1
