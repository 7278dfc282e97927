"""Only predictions that nobody can change any more are measured."""

import csv
import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from layouts import STANDARD
from pages import ROOT
from predicted_here import main
from sizes_launch import SizesJob
from synthetic_run import SyntheticRun

from placebench.record.calibration_file import MeasuredCase, MeasuredPhase, read_calibration
from placebench.record.writing import append_jsonl, read_jsonl

CALIBRATED = ROOT / "runs/reference/calibration/here/qwen2.5-0.5b-ppo-16384/calibration-qwen2.5-0.5b-ppo-16384.json"
SIZES = ("8x256+256", "16x3072+1024")


def _predict(folder: Path, *models: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    words = [word for size in SIZES for word in ("--point", size)]
    words += ["--by", str(CALIBRATED), "--set", "rollout.memory_share=0.3", "--into", str(folder / "predictions.json")]
    done = CliRunner().invoke(main, ["predict", *models, *words])
    assert done.exit_code == 0, done.output
    return folder / "predictions.json"


def _measure(folder: Path, into: Path) -> Result:
    """Without the time for a single launch."""
    return CliRunner().invoke(main, ["measure", str(folder), "--into", str(into), "--seconds", "1"])


def _git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


def test_only_what_is_committed_as_it_is_gets_measured(tmp_path: Path) -> None:
    folder = tmp_path / "checkout" / "0.5b"
    predictions = _predict(folder, "qwen2.5-0.5b:ppo:16384")
    _git(folder.parent, "init")
    refused = _measure(folder, tmp_path / "measured")
    assert refused.exit_code == 1
    assert f"{predictions} is not committed as it is" in refused.output
    assert not (tmp_path / "measured").exists()
    _git(folder, "add", ".")
    _git(folder, "commit", "-m", "Predict")
    assert _measure(folder, tmp_path / "measured").exit_code == 0
    predictions.write_text(predictions.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert _measure(folder, tmp_path / "again").exit_code == 1


def test_sizes_that_there_was_no_time_for_are_listed_without_a_time(tmp_path: Path) -> None:
    predictions = _predict(tmp_path / "0.5b", "qwen2.5-0.5b:ppo:16384")
    content = json.loads(predictions.read_text(encoding="utf-8"))
    assert content["settings"] == ["rollout.memory_share=0.3"]
    assert [one["size"] for one in content["predictions"].values()] == list(SIZES)
    done = _measure(tmp_path / "0.5b", tmp_path / "measured")
    assert "no time for 2 of 2 launches" in done.output
    with (tmp_path / "measured" / "0.5b" / "errors.csv").open(encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["phase"] == "step"]
    assert [(row["configuration"].rpartition("-")[2], row["measured_s"]) for row in rows] == [
        (size, "") for size in SIZES
    ]


def test_a_calibration_that_had_no_time_for_all_sizes_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read_calibration(CALIBRATED)

    def keep_one(model: str, into: Path, *rest: object) -> bool:
        into.write_text(whole.model_copy(update={"cases": whole.cases[:1]}).model_dump_json(), encoding="utf-8")
        return True

    monkeypatch.setattr("predicted_here._launch", keep_one)
    words = ["calibrate", "qwen2.5-0.5b:ppo:16384", "--point", SIZES[0], "--into", str(tmp_path / "0.5b")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "calibration-qwen2.5-0.5b-ppo-16384.json: only 1 of 2 sizes had time: give it more --seconds" in done.output


def test_several_launches_calibrate_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, asked = read_calibration(CALIBRATED), []

    def launch(model: str, into: Path, points: Sequence[str], words: Sequence[str], steps: int, seconds: float) -> bool:
        asked.append(seconds)
        if len(asked) == 3:
            return False  # it had no time
        slower = [
            case.model_copy(update={"step_s": case.step_s * len(asked), "phases": tuple(_slower(case, len(asked)))})
            for case in whole.cases
            if case.step_s is not None
        ]
        into.write_text(whole.model_copy(update={"cases": tuple(slower)}).model_dump_json(), encoding="utf-8")
        return True

    monkeypatch.setattr("predicted_here._launch", launch)
    words = ["calibrate", "qwen2.5-0.5b:ppo:16384", "--into", str(tmp_path / "both"), "--launches", "3"]
    done = CliRunner().invoke(main, [*words, "--seconds", "400"])
    assert done.exit_code == 0, done.output
    again = CliRunner().invoke(main, words)
    assert again.exit_code == 1
    assert "is there from another time: name a new folder" in again.output
    assert asked == pytest.approx([200, 200, 400], rel=0.1)  # nothing here takes any time
    names = [path.name for path in (tmp_path / "both").glob("calibration-*")]
    assert sorted(names) == ["calibration-qwen2.5-0.5b-ppo-16384-2.json", "calibration-qwen2.5-0.5b-ppo-16384.json"]
    for number, words in enumerate((["--launches", "1"], ["--launches", "2"])):
        asked.clear()
        into = tmp_path / str(number)
        command = ["calibrate", "qwen2.5-0.5b:ppo:16384", "--into", str(into), *words]
        assert CliRunner().invoke(main, command).exit_code == 0
    alone, together = (
        [one["step_s"] for one in json.loads(path.read_text(encoding="utf-8"))["predictions"].values()]
        for path in (tmp_path / "0" / "predictions.json", tmp_path / "1" / "predictions.json")
    )
    assert all(1.2 < more / less < 1.8 for less, more in zip(alone, together, strict=True))


def test_models_take_turns_in_calibrating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow minutes of the host fall on both."""
    whole, asked = read_calibration(CALIBRATED), []

    def launch(model: str, into: Path, *rest: object) -> bool:
        asked.append(f"{into.parent.name}/{into.name}")
        into.write_text(whole.model_dump_json(), encoding="utf-8")
        return True

    monkeypatch.setattr("predicted_here._launch", launch)
    words = ["calibrate", "qwen2.5-0.5b:ppo:16384", "tiny:grpo:8192", "--into", str(tmp_path), "--launches", "2"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert asked == [
        "qwen2.5-0.5b-ppo-16384/calibration-qwen2.5-0.5b-ppo-16384.json",
        "tiny-grpo-8192/calibration-tiny-grpo-8192.json",
        "qwen2.5-0.5b-ppo-16384/calibration-qwen2.5-0.5b-ppo-16384-2.json",
        "tiny-grpo-8192/calibration-tiny-grpo-8192-2.json",
    ]
    for name, model in (("qwen2.5-0.5b-ppo-16384", "qwen2.5-0.5b:ppo:16384"), ("tiny-grpo-8192", "tiny:grpo:8192")):
        content = json.loads((tmp_path / name / "predictions.json").read_text(encoding="utf-8"))
        assert {one["model"] for one in content["predictions"].values()} == {model}


def _slower(case: MeasuredCase, times: float) -> Iterator[MeasuredPhase]:
    for phase in case.phases:
        yield phase.model_copy(update={"seconds": phase.seconds * times})


def test_kernels_and_how_fast_the_cores_were_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [{"step": 6, "phase": "gen", "role": "rollout", "device": "gpu:0", "kernel_s": 0.5}]

    run = subprocess.run

    def launch(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if "--repeats" not in command:
            return run(command, **options)
        into = Path(command[command.index("--into") + 1])
        shutil.copyfile(CALIBRATED, into / CALIBRATED.name)
        SyntheticRun({"standard": STANDARD}, rounds=1, kernels=kernels).write(into / "runs" / "sizes")
        _keep_pace(into / "runs" / "sizes")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("predicted_here.subprocess.run", launch)
    words = ["calibrate", "qwen2.5-0.5b:ppo:16384", "--point", SIZES[0], "--into", str(tmp_path / "0.5b")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    kept = (tmp_path / "0.5b" / f"{CALIBRATED.stem}-kernels.jsonl").read_text(encoding="utf-8")
    assert list(map(json.loads, kept.splitlines())) == kernels
    assert (tmp_path / "0.5b" / f"{CALIBRATED.stem}-steps.jsonl").exists()
    cores = list(read_jsonl(tmp_path / "0.5b" / f"{CALIBRATED.stem}-cores.jsonl"))
    assert {tuple(line) for line in cores} == {("mono", "core_loop_s")}
    first, *others = read_calibration(tmp_path / "0.5b" / CALIBRATED.name).cases
    assert first.core_loop_s == pytest.approx(5e-5)
    assert {case.core_loop_s for case in others} == {None}


def _keep_pace(run: Path) -> None:
    """All steps are of the calibration's first size; cores are slow but in the three that are timed.

    The first two warm up, and the sixth is traced.
    """
    (trial,) = (run / "trials").iterdir()
    steps = [row | {"size": "64x512+512", "mono": row["wall"]} for row in read_jsonl(trial / "steps.jsonl")]
    _write(trial / "steps.jsonl", steps)
    begin, end = steps[1]["mono"], steps[4]["mono"]
    samples = list(read_jsonl(trial / "devices.jsonl"))
    for line in samples:
        if line["kind"] == "sample":
            line["core_loop_s"] = 5e-5 if begin <= line["mono"] <= end else 9e-5
    _write(trial / "devices.jsonl", samples)


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as stream:
        for row in rows:
            append_jsonl(stream, row)


def test_predictions_are_compared_for_cores_as_fast_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launches on cores half as fast take longer by what the host does; for such cores the same was predicted."""
    whole = read_calibration(CALIBRATED)

    def launch(model: str, into: Path, *rest: object) -> bool:
        into.parent.mkdir(parents=True, exist_ok=True)
        loop_s = 4e-5 if "calibration" in into.name else 8e-5
        cases = tuple(case.model_copy(update={"core_loop_s": loop_s}) for case in whole.cases)
        into.write_text(whole.model_copy(update={"cases": cases}).model_dump_json(), encoding="utf-8")
        return True

    monkeypatch.setattr("predicted_here._launch", launch)
    folder = tmp_path / "0.5b"
    words = ["calibrate", "qwen2.5-0.5b:ppo:16384", "--point", "64x512+512", "--into", str(folder)]
    assert CliRunner().invoke(main, words).exit_code == 0
    done = CliRunner().invoke(main, ["measure", str(folder), "--into", str(tmp_path / "measured"), "--launches", "1"])
    assert done.exit_code == 0, done.output
    assert "with the cores as fast as they were:" in done.output
    plain, by_cores = (
        next(row for row in csv.DictReader((tmp_path / "measured/0.5b" / name).read_text().splitlines()))
        for name in ("errors.csv", "errors-cores.csv")
    )
    assert float(plain["predicted_s"]) == pytest.approx(float(plain["measured_s"]), rel=0.01)
    assert 1.05 < float(by_cores["predicted_s"]) / float(plain["predicted_s"]) < 2.0


def test_one_launch_goes_through_the_sizes_of_one_model(tmp_path: Path) -> None:
    _predict(tmp_path / "both", "qwen2.5-0.5b:ppo:16384", "qwen2.5-1.5b:grpo:8192")
    refused = _measure(tmp_path / "both", tmp_path / "measured")
    assert refused.exit_code == 1
    assert "has predictions of 2 models" in refused.output


def test_a_size_waits_for_no_time_that_its_last_step_does_not_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("sizes_launch.time.monotonic", lambda: now[0])
    job = SizesJob.__new__(SizesJob)
    job._took = {"short": 1.0, "long": 5.0}
    gone = []
    for point in job._go_through(["long", "short", "long", "short"], until=8.0):
        gone.append(point)
        now[0] += job._took[point]
    assert gone == ["long", "short", "short"]


@pytest.mark.slow
def test_a_calibration_predicts_what_is_then_measured(tmp_path: Path) -> None:
    words = ["tiny:ppo:16384", "--into", str(tmp_path / "tiny"), "--seconds", "600", "--steps", "2"]
    done = CliRunner().invoke(main, ["calibrate", *words])
    assert done.exit_code == 0, done.output
    words = [str(tmp_path / "tiny"), "--into", str(tmp_path / "measured"), "--seconds", "600", "--steps", "2"]
    done = CliRunner().invoke(main, ["measure", *words, "--launches", "1"])
    assert done.exit_code == 0, done.output
    names = ["errors-cores.csv", "errors-one.csv", "errors.csv", "launch-1-cores.jsonl", "launch-1-steps.jsonl"]
    names += ["launch-1.json", "predictions-cores.json"]
    assert sorted(path.name for path in (tmp_path / "measured" / "tiny").iterdir()) == names
    for name in names[:3]:
        with (tmp_path / "measured" / "tiny" / name).open(encoding="utf-8") as stream:
            assert all(float(row["measured_s"]) > 0 for row in csv.DictReader(stream) if row["phase"] == "step")
