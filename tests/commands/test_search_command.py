"""`placebench search`: what it finds by runs and shipped calibrations, in words or files, and every wrong call."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pages import ROOT
from synthetic_run import SyntheticRun

from placebench.cli import main
from placebench.predict.known import shipped_calibrations
from placebench.report.found import SearchFile
from placebench.report.predicted import PredictionFile
from placebench.spec.placement_files import load_placement

pytestmark = pytest.mark.usefixtures("here")

REFERENCE = ROOT / "runs" / "reference" / "4x-h200"
WORKLOAD = {"model": "tiny", "batch": {"size": 64, "mini_batch_size": 32}}


def invoke(*arguments: object, command: str = "search") -> Result:
    return CliRunner().invoke(main, [command, *map(str, arguments)], prog_name="placebench")


def found(*arguments: object) -> SearchFile:
    result = invoke(*arguments, "--json", "found.json")
    assert result.exit_code == 0, result.output
    return SearchFile.model_validate_json(Path("found.json").read_text())


def test_what_is_found_is_predicted_alike_by_predict_and_no_slower_than_the_usual_words() -> None:
    run = REFERENCE / "ppo-1.5b-placements"
    content = found("--from", run, "--write", "files", "--most", 50)
    (group,) = content.groups
    assert content.now == "standard"
    assert group.more_layouts == 0
    named = [one.placement if one.text is None else f"files/{one.placement}" for one in group.placements]
    # A file's word has its path in front, where it is shown as well.
    assert all(Path(name).exists() for name in named if name.endswith(".yaml"))
    result = invoke("--from", run, "--placements", ",".join([*named, "split"]), "--json", "p.json", command="predict")
    assert result.exit_code == 0, result.output
    *again, split = PredictionFile.model_validate_json(Path("p.json").read_text()).placements
    assert [one.step_s for one in again] == [one.step_s for one in group.predictions.placements]
    assert min(one.step_s for one in again) <= split.step_s
    moved = [one.moved_devices for one in group.placements]
    assert moved == sorted(moved)


def test_the_text_is_that_of_the_predictions_with_who_moves_and_what_no_word_says() -> None:
    result = invoke("--from", REFERENCE / "ppo-7b", "--max-staleness", 1, "--price", 2)
    assert result.exit_code == 0, result.output
    # A word of a command is not broken.
    assert all(len(line) <= 80 or line.startswith("    --placements ") for line in result.output.splitlines())
    shown = " ".join(result.output.split())
    assert "Of placements that do not change what is trained, the fastest is " in shown
    assert "on weights up to 1 update old, which changes what is trained" in shown
    assert "How far to trust this (same run, generation does not wait for the host: standard" in shown
    assert "To decide it (write the files first, with --write DIR here; " in shown
    assert "DIR/actor" in shown
    assert "--write DIR writes the files for --placements." in shown


def test_a_step_that_is_said_to_be_longer_is_so_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")  # room for the names of files
    words = ("--gpu", "H200", "--model", "qwen2.5-7b", "--devices", "gpu:8")
    told = dict(re.findall(r"^(\S+) +([\d.]+) s ", invoke(*words).output, re.MULTILINE))
    (group,) = found(*words).groups
    fastest, *_ = sorted(group.predictions.placements, key=lambda one: one.ratio)
    longer = {one.placement: one.ratio for one in group.predictions.placements if one is not fastest}
    assert 1.04 < longer["standard"] < 1.09, "else it is not near enough to be rounded to as much"
    assert all(float(told[name]) > float(told[fastest.placement]) for name in longer)


def test_the_command_that_decides_names_the_files_that_were_written() -> None:
    result = invoke("--from", REFERENCE / "ppo-7b", "--write", "my files")
    (command,) = re.findall(r"^To decide it.*?:\n  placebench (.*?[^\\])$", result.output, re.DOTALL | re.MULTILINE)
    words = shlex.split(command.replace("\\\n", ""))
    assert "write the files first" not in result.output
    placements = words[words.index("--placements") + 1].split(",")
    assert any(word.startswith("my files/") for word in placements)
    planned = CliRunner().invoke(main, [*words, "--dry-run"], prog_name="placebench")
    assert planned.exit_code == 0, planned.output
    for word in placements:
        name = Path(word).stem if word.endswith(".yaml") else word
        assert f"placement {name}," in planned.output
    assert "devices   4 × GPU, 139 GiB each" in planned.output
    assert "64 sequences" in planned.output


def test_a_thousand_gpus_are_searched_with_files_that_load(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("--from", REFERENCE / "ppo-7b", "--devices", "gpu:8x128@141GiB", "--batch-size", 1024)
    (group,) = found(*arguments, "--write", "files").groups
    assert {one.prediction_class for one in group.predictions.placements} <= {"more nodes", "other size"}
    for path in Path("files").glob("*.yaml"):
        placement = load_placement(path, (8,) * 128)
        assert placement.size <= 1024
        assert path.name in [one.placement for one in group.placements]


def test_rows_that_leave_devices_unused_are_told_with_the_number_used() -> None:
    words = ("--from", REFERENCE / "ppo-7b", "--devices", "gpu:8x128@141GiB", "--batch-size", 1536)
    (group,) = found(*words).groups
    fewer = [f"{one.placement} {one.devices:,}" for one in group.predictions.placements if one.devices < 1024]
    assert fewer
    says = f"Fewer than the 1,024 devices are used by {', '.join(fewer)}; tokens/s/device"
    for price, counts in ((), " counts only those used."), (("--price", 2), " and cost/M count only those used."):
        assert f"{says}{counts}" in " ".join(invoke(*words, *price).output.split())
    assert "devices are used by" not in invoke("--from", REFERENCE / "ppo-1.5b-placements").output


def test_grpo_is_searched_without_a_critic() -> None:
    (group,) = found("--from", REFERENCE / "grpo", "--write", "files").groups
    for one in group.placements:
        assert one.text is None or "critic:" not in one.text
    fastest = min(one.step_s for one in group.predictions.placements)
    assert fastest < 6.15  # of a single device


def test_a_reward_model_has_a_place_of_its_own_and_engines_run_ahead() -> None:
    arguments = ("--from", "h200", "--devices", "gpu:4@141GiB", "--max-staleness", 1)
    synchronous, ahead = found(*arguments, "--set", "reward_model=qwen2.5-0.5b").groups
    for group, staleness in ((synchronous, 0), (ahead, 1)):
        for one in group.predictions.placements:
            assert f"staleness={staleness}" in one.placement or f"stale{staleness}" in one.placement or not staleness
            assert next(phase.total_s for phase in one.phases if phase.name == "reward") > 0.01


def test_a_gpu_without_known_peaks_is_searched_as_far_as_it_was_measured() -> None:
    calibration = shipped_calibrations()["h200"].model_copy(update={"device": "NVIDIA L40S"})
    calibration.write(Path("l40s.json"))
    (group,) = found("--from", "l40s.json").groups
    assert all("tp2" not in one.placement for one in group.placements)
    result = invoke("--from", "l40s.json", "--model", "llama-3.1-8b")
    assert result.exit_code == 2
    assert "was not measured for this work, and the peaks of NVIDIA L40S are not known" in result.stderr


def test_another_gpu_has_the_memory_of_its_own_in_what_is_found_and_in_the_command_that_decides() -> None:
    arguments = (
        "--from",
        "h200",
        "--gpu",
        "H100",
        "--model",
        "qwen2.5-7b",
        "--batch-size",
        128,
        "--devices",
        "gpu:8x2",
    )
    (group,) = found(*arguments).groups
    assert all(max(one.memory_bytes.values()) < 79.2 * 2**30 for one in group.predictions.placements)
    output = invoke(*arguments).output
    assert "its memory is taken from the data sheet, 79 GiB." in " ".join(output.split())
    assert "--devices gpu:8x2@79GiB" in output


def test_a_run_of_this_host_is_searched_from_the_placement_that_is_named() -> None:
    SyntheticRun(rounds=2, workload=WORKLOAD, pace=lambda *_: 1.0).write(Path("runs/20260101T000000Z-a"))
    content = found("--from", "latest", "--now", "split")
    assert content.now == "split"
    by_name = {one.placement: one.moved_devices for one in content.groups[0].placements}
    assert by_name["split"] == 0


@pytest.mark.parametrize("now", ["split/overlap=none", "standard", "mine.yaml"])
def test_the_placement_that_there_is_has_a_row_once_wherever_it_ranks(now: str) -> None:
    Path("mine.yaml").write_text(
        "pools: {last: [1], first: [3]}\n"
        "roles: {ref: last, reward: first, critic: first, actor: first, rollout: first}\n"
    )
    arguments = ("--from", REFERENCE / "ppo-1.5b-placements", "--now", now, "--most", "50")
    (group,) = found(*arguments).groups
    names = [one.placement for one in group.placements]
    assert names.count(now) == 1
    steps = [
        {(phase.name, phase.pool, phase.total_s, phase.start_s) for phase in one.phases}
        for one in group.predictions.placements
    ]
    fastest = min(group.predictions.placements, key=lambda one: one.step_s)
    row = group.predictions.placements[names.index(now)]
    assert row.step_s >= fastest.step_s
    assert steps.count(steps[names.index(now)]) == 1
    text = " ".join(invoke(*arguments).output.split())
    assert f"the fastest is {fastest.placement}; those that move fewest devices come first:" in text
    assert " now " in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "name what to predict from: --from RUN, or --gpu"),
        (("--from", REFERENCE / "ppo-7b", "--now", "spilt"), "--now 'spilt': unknown placement 'spilt'"),
        (
            ("--from", REFERENCE / "ppo-7b", "--devices", "gpu:1@141GiB"),
            "no placement is possible on 1 × NVIDIA H200 with 141 GiB: none",
        ),
        (
            ("--from", "h200", "--gpu", "H100", "--model", "qwen2.5-7b", "--devices", "gpu:8"),
            "no placement is possible on 8 × NVIDIA H100 80GB HBM3 with 79 GiB: none",
        ),
        (
            ("--from", "h200", "--gpu", "H100", "--model", "qwen2.5-7b", "--devices", "gpu:8"),
            "node0/gpu:0 has 79.2 GiB; --set batch.micro_batch_tokens=7168 fits with about",
        ),
        (("--from", REFERENCE / "ppo-7b", "--max-staleness", "99"), "--max-staleness"),
        (("--gpu", "L40S"), "its peaks are not known; choose one of NVIDIA A100"),
        (("--from", REFERENCE / "ppo-7b", "--model", "nowhere"), "unknown model 'nowhere'"),
        (("--from", REFERENCE / "ppo-7b", "--set", "batch.sise=3"), "unknown key"),
        (("--from", REFERENCE / "grpo-of-mine"), "grpo-of-mine"),
        (("--from", "job.json"), "the calibration is of a job of yours, whose batch and memory are not known"),
        (
            ("--from", REFERENCE / "ppo-7b", "--write", "job.json"),
            "--write job.json: cannot write it: File exists",
        ),
        (
            ("--from", REFERENCE / "ppo-7b", "--write", "with,comma"),
            "--write 'with,comma': --placements is split at commas: name a folder without one",
        ),
        (
            ("--from", REFERENCE / "ppo-1.5b-placements", "--json", "not/there.json"),
            "--json not/there.json: cannot write it: No",
        ),
    ],
)
def test_a_wrong_call_ends_in_one_line(arguments: tuple[object, ...], says: str) -> None:
    calibration = shipped_calibrations()["h200"]
    alone = [case.model_copy(update={"workload": {}, "models": None}) for case in calibration.cases]
    calibration.model_copy(update={"cases": tuple(alone)}).write(Path("job.json"))
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_what_moves_are_counted_from_is_named_where_it_is_not_shown() -> None:
    words = ("--gpu", "H200", "--model", "qwen2.5-1.5b", "--devices")
    assert "Moves are counted from learners:2+engines:2/staleness=1, which" in invoke(*words, "gpu:7").output
    assert "Moves are counted" not in invoke(*words, "gpu:4").output


def test_nothing_is_written_where_words_say_all() -> None:
    result = invoke("--from", REFERENCE / "ppo-1.5b-placements", "--max-staleness", 1, "--write", "files")
    assert "each of these placements has a word, so --write has written no file" in " ".join(result.output.split())
    assert not Path("files").exists()


def test_a_file_that_is_there_with_other_content_is_not_written_over() -> None:
    words = ("--from", REFERENCE / "ppo-7b", "--write", "files")
    assert invoke(*words).exit_code == 0
    first, *others = sorted(Path("files").iterdir())
    assert others, "else it cannot be told that nothing was written before"
    assert invoke(*words).exit_code == 0  # each is the same
    first.write_text("mine")
    for path in others:
        path.unlink()
    result = invoke(*words)
    assert result.stderr == (
        f"placebench: --write files: {first.name} is there with other content: remove it, or name another folder\n"
    )
    assert (result.exit_code, result.stdout) == (2, "")
    assert [path.read_text() for path in Path("files").iterdir()] == ["mine"]
