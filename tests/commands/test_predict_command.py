"""`placebench predict`: what it says of runs, shared runs, files and shipped calibrations."""

import json
import os
import re
import shutil
import threading
from math import log
from pathlib import Path

import pytest
from click.testing import CliRunner
from layouts import SPLIT, STANDARD
from pages import ROOT
from predicting import REFERENCE, WORKLOAD, invoke, predicted
from synthetic_run import SyntheticRun

from placebench.cli import main
from placebench.host.devices import discover
from placebench.host.gpus import Gpu, GpuInventory
from placebench.predict.known import shipped_calibrations
from placebench.record.calibration_file import read_calibration
from placebench.spec.devices import parse_devices
from placebench.spec.workload_reading import build_workload

pytestmark = pytest.mark.usefixtures("here")


def test_the_newest_run_tells_of_its_placements_and_others() -> None:
    SyntheticRun(rounds=2, workload=WORKLOAD, pace=lambda *_: 1.0).write(Path("runs/20260101T000000Z-a"))
    result = invoke("--from", "latest", "--placements", "standard,split,split/overlap=none", "--price", "2")
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80
    content = predicted("--from", "latest", "--placements", "standard,split,split/overlap=none")
    standard, split, blocking = content.placements
    assert standard.step_s == pytest.approx(STANDARD.step_s, rel=0.02)
    assert split.step_s == pytest.approx(SPLIT.step_s, rel=0.02)
    assert blocking.step_s > split.step_s
    assert {one.prediction_class for one in content.placements} == {"same run"}
    assert blocking.waits_s["critic_pool"] > split.waits_s["critic_pool"]
    assert split.memory_bytes.keys() == {"actor_pool", "critic_pool"}
    assert any("no kernels were traced" in note for note in content.notes)


def test_a_run_whose_launches_differ_by_more_than_its_placements_tells_no_faster_one() -> None:
    paces = {(1, "standard"): 1.3, (2, "standard"): 0.7, (1, "split"): 0.8, (2, "split"): 1.4}
    folder = Path("runs/20260101T000000Z-a")
    SyntheticRun(rounds=2, workload=WORKLOAD, pace=lambda *launch: paces[launch]).write(folder)
    standard, split = predicted("--from", folder, "--placements", "standard,split", "--out", "c.json").placements
    assert split.step_s / standard.step_s > 1.4
    assert split.is_tied
    assert (split.ratio_low or 0) < 1
    # Pooled over both placements, with one degree of freedom each.
    sd = ((log(1.3 / 0.7) ** 2 + log(1.4 / 0.8) ** 2) / 4) ** 0.5
    pairs = log(1.3 * 1.4 / 0.7 / 0.8) / 2
    assert log((split.ratio_high or 0) / split.ratio) == pytest.approx(max(2.92 * sd, 6.3138 * pairs), rel=1e-3)
    result = CliRunner().invoke(main, ["search", "--from", str(folder)])
    assert "split" in [line.split(" ")[0] for line in result.output.splitlines()]
    # A file that says of no launch how far it was off its placement's mean is read, and its noise is the usual.
    content = read_calibration(Path("c.json"))
    cases = tuple(case.model_copy(update={"launch_sd": None, "round_steps": {}}) for case in content.cases)
    content.model_copy(update={"cases": cases}).write(Path("c.json"))
    _, split = predicted("--from", "c.json", "--placements", "standard,split").placements
    assert not split.is_tied


def test_what_no_prediction_of_its_kind_was_tested_for_is_not_said_to_be_a_tie() -> None:
    words = ("--from", REFERENCE / "ppo-7b", "--placements", "standard,split", "--devices", "gpu:8x2@141GiB")
    said = " ".join(invoke(*words).output.split())
    assert "Cannot say whether split is faster than standard: a step of the latter is predicted to take " in said
    assert "Tie: " not in said
    assert "unknown, as no prediction of this kind was compared with runs" in said


def test_placements_that_were_both_run_are_told_apart_as_their_launches_tell_them() -> None:
    words = ("--from", REFERENCE / "ppo-7b", "--placements", "standard,split")
    _, split = predicted(*words).placements
    assert (split.is_tied, round(split.ratio, 2)) == (False, 1.08)
    assert (split.ratio_low or 0) > 1.04
    said = invoke(*words).output
    # Nobody traced its kernels; by what is known of the model they are what generation waits for.
    assert "waits for the host " not in said
    assert split.host_bound_share is None
    assert "(same run, generation does not wait for the host)" in " ".join(said.split())


def test_of_another_gpu_every_phase_is_scaled() -> None:
    words = ("--from", REFERENCE / "ppo-7b-traced", "--placements", "standard,split")
    own, other = (predicted(*words, *more).placements for more in ((), ("--gpu", "B200")))
    assert {one.prediction_class for one in other} == {"other GPU"}
    for placement, faster in zip(own, other, strict=True):
        assert 1.5 < placement.step_s / faster.step_s < 2.5
    assert other[0].step_s == pytest.approx(other[1].step_s, rel=0.2)


def test_a_shared_run_of_gpus_tells_of_other_sizes_models_and_nodes() -> None:
    run = REFERENCE / "ppo-7b"
    (same,) = predicted("--from", run, "--placements", "split").placements
    assert same.prediction_class == "same run"
    assert same.step_s == pytest.approx(8.2, rel=0.05)
    (larger,) = predicted("--from", run, "--placements", "standard", "--batch-size", "128").placements
    assert larger.prediction_class == "other size"
    assert 1.5 < larger.step_s / 7.55 < 2
    assert "gen" in larger.extrapolated
    (smaller,) = predicted("--from", run, "--placements", "standard", "--model", "qwen2.5-1.5b").placements
    assert smaller.prediction_class == "other model"
    (many,) = predicted("--from", run, "--placements", "standard", "--devices", "gpu:8x2@141GiB").placements
    assert (many.prediction_class, many.devices) == ("more nodes", 16)
    words = ("--placements", "split,split@nodes", "--devices", "gpu:4x2@141GiB", "--batch-size", "64")
    one_node, two_nodes = predicted("--from", run, *words).placements
    assert two_nodes.prediction_class == "more nodes"
    assert two_nodes.low_s is None
    assert one_node.prediction_class == "more nodes"


def test_a_calibration_is_written_and_taken_again() -> None:
    first = predicted("--from", REFERENCE / "ppo-1.5b-traced", "--placements", "split", "--out", "c.json")
    content = read_calibration(Path("c.json"))
    assert (content.device, content.device_count, content.is_traced) == ("NVIDIA H200", 4, True)
    assert {phase.name for phase in content.cases[0].phases} >= {"gen", "update_actor"}
    second = predicted("--from", "c.json", "--placements", "split")
    assert second.placements == first.placements


def test_a_shipped_calibration_says_that_it_is_one_and_that_the_host_is_another() -> None:
    assert "h200" in shipped_calibrations()
    content = predicted("--gpu", "H200", "--model", "qwen2.5-0.5b", "--placements", "standard")
    (standard,) = content.placements
    assert standard.prediction_class == "other host"
    assert content.notes[0].startswith("shipped calibration h200")
    # The points of a benchmark in it are no placements that anybody could want, or that could be left out.
    assert not any("left out" in note for note in predicted("--gpu", "H100").notes)
    result = invoke("--from", "h100", "--model", "qwen2.5-0.5b", "--batch-size", "32", "--placements", "standard")
    assert "Cannot say" in result.output
    assert "placebench run --placements standard" in " ".join(result.output.split())


@pytest.mark.parametrize("gpus", [(), (Gpu(0, "GPU-0", "NVIDIA H100", 80 << 30, "0000:01:00.0"),)])
def test_versions_are_compared_where_a_run_could_be_on_such_devices(
    gpus: tuple[Gpu, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placebench.host.gpus.list_gpus", lambda: GpuInventory(gpus=gpus))
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.0.1")
    notes = predicted("--gpu", "H200", "--placements", "standard").notes
    told = [note for note in notes if "0.0.1 is installed here" in note]
    assert any("with torch" in note for note in told) == bool(gpus)
    assert any("with placebench" in note for note in told)


def test_a_figure_shows_a_step_of_each_placement() -> None:
    result = invoke("--from", REFERENCE / "ppo-7b", "--placements", "standard,split", "--plot", "steps.svg")
    assert result.exit_code == 0, result.output
    text = Path("steps.svg").read_text()
    assert "update_critic" in text
    assert "critic_pool" in text


def test_replicas_are_predicted_with_whole_models() -> None:
    (two,) = predicted("--from", ROOT / "runs/reference/4x-h200/grpo", "--placements", "ddp:2").placements
    assert two.step_s == pytest.approx(4.03, rel=0.05)
    assert two.memory_bytes["replicas"] / 2**30 == pytest.approx(75.1, rel=0.05)
    job = ("--set", "algorithm.name=grpo", "--set", "batch.group_size=4", "--model", "qwen2.5-1.5b")
    replicas = predicted("--gpu", "H200", "--devices", "gpu:4", *job, "--placements", "ddp:1,ddp:4,ddp:4/scaling=weak")
    memory = [one.memory_bytes["replicas"] / 2**30 for one in replicas.placements]
    assert memory == [pytest.approx(76, rel=0.02)] * 3


def test_a_dry_run_tells_the_step_that_an_earlier_run_lets_expect() -> None:
    folder = SyntheticRun(rounds=2, workload=WORKLOAD, pace=lambda *_: 1.0).write(Path("runs/20260101T000000Z-a"))
    assert CliRunner().invoke(main, ["report", str(folder)]).exit_code == 0
    written = read_calibration(folder / "phases.json")
    device = discover(parse_devices("cpu:2"))[0]
    here = {"device": device.name, "device_cores": len(device.cores), "hostname": device.node}
    written.model_copy(update=here).write(folder / "phases.json")
    words = ["run", "--dry-run", "--devices", "cpu:2", "--batch-size", "64", "--mini-batch-size", "32"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    steps = re.findall(r"step: about (\d\.\d\d) s .*predicted, (same run)", result.output)
    assert [float(step) for step, _ in steps] == pytest.approx([STANDARD.step_s, SPLIT.step_s], rel=0.02)
    assert "(predicted from 20260101T000000Z-a)" in result.output
    # A later run of a job of the user's is no measure of placebench's own.
    of_job = written.cases[0].model_copy(update={"workload": {}, "models": None})
    later = Path("runs/20260102T000000Z-job/phases.json")
    later.parent.mkdir()
    written.model_copy(update={**here, "cases": (of_job,)}).write(later)
    # The first line has the second in which the run would begin.
    assert CliRunner().invoke(main, words).output.splitlines()[1:] == result.output.splitlines()[1:]
    (folder / "phases.json").write_text("{")
    assert "step: about" not in CliRunner().invoke(main, words).output


def test_a_shared_run_of_cpu_devices_tells_as_the_run_does() -> None:
    folder = SyntheticRun(rounds=2, workload=WORKLOAD, pace=lambda *_: 1.0).write(Path("runs/20260101T000000Z-a"))
    assert CliRunner().invoke(main, ["report", str(folder)]).exit_code == 0
    for path in (folder / "run.json", folder / "phases.json"):
        path.unlink()
    shutil.rmtree(folder / "trials")
    standard, split = predicted("--from", folder, "--placements", "standard,split").placements
    assert (standard.step_s, split.step_s) == pytest.approx((STANDARD.step_s, SPLIT.step_s), rel=0.02)
    result = invoke("--from", folder, "--gpu", "H100")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
    assert "the calibration is of cpu devices (Example CPU), which say nothing about GPUs" in result.stderr


def test_a_calibration_goes_into_a_fifo_which_stays_one() -> None:
    os.mkfifo("pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(Path("pipe").read_text()), daemon=True)
    reader.start()
    result = invoke("--gpu", "H200", "--devices", "gpu:4", "--out", "pipe")
    assert result.exit_code == 0, result.output
    assert Path("pipe").is_fifo()
    reader.join(30)
    assert json.loads(*read)["cases"]


def test_a_shipped_calibration_may_be_named_in_capitals_where_no_run_is() -> None:
    words = ("--placements", "standard", "--devices", "gpu:4")
    assert "Note: shipped calibration " in invoke("--from", "H200", *words).output
    assert "given twice" in invoke("--from", "H200,H200").stderr
    SyntheticRun(rounds=1).write(Path("runs/H200-of-mine"))
    assert "calibrated by H200-of-mine" in " ".join(invoke("--from", "H200").output.split())
    assert "Note: shipped calibration " in invoke("--from", "h200", *words).output


@pytest.mark.parametrize("first", ["ddp:4", "standard"])
def test_a_run_of_replicas_tells_of_the_work_that_it_asked_for(first: str) -> None:
    others = {"ddp:4", "standard", "ddp:2"} - {first}
    content = predicted("--from", REFERENCE / "grpo", "--placements", ",".join([first, *sorted(others)]))
    found = {one.placement: one for one in content.placements}
    assert [found[word].prediction_class for word in ("ddp:2", "ddp:4", "standard")] == [
        "same run",
        "same run",
        "other size",
    ]
    assert found["ddp:4"].step_s == pytest.approx(3.16, rel=0.01)
    assert max(found["standard"].memory_bytes.values()) < 0.8 * max(found["ddp:4"].memory_bytes.values())


def test_settings_that_were_measured_otherwise_are_told() -> None:
    words = ("--gpu", "H200", "--model", "qwen2.5-1.5b", "--devices", "gpu:4", "--set", "torch_compile=false")
    assert "torch_compile false was not measured: times are those of true" in predicted(*words).notes


def test_the_answer_says_which_job_it_is_of_and_what_decides_it() -> None:
    content = predicted("--from", REFERENCE / "grpo", "--placements", "standard,ddp:4")
    assert content.job == (
        "qwen2.5-1.5b, grpo, 128 sequences (32 prompts × 4 responses) of up to 512 + 512 tokens, 2 mini-batches ×"
        " 1 epoch; on 4 × NVIDIA H200"
    )
    one_prompt = predicted("--from", REFERENCE / "grpo", "--placements", "standard", "--set", "batch.group_size=128")
    assert "128 sequences (1 prompt × 128 responses)" in one_prompt.job
    assert content.workload is not None
    assert content.workload["batch"]["size"] == 128
    assert any(one.is_tied for one in content.placements)
    assert content.deciding is not None
    assert content.deciding.startswith("placebench run --placements standard,ddp:4 --rounds 3")
    apart = predicted("--gpu", "H200", "--placements", "standard", "--devices", "gpu:8x2")
    assert apart.job.endswith("on 2 × 8 × NVIDIA H200")


def test_another_algorithm_has_its_own_settings() -> None:
    content = predicted("--from", REFERENCE / "ppo-1.5b", "--set", "algorithm.name=grpo", "--placements", "standard")
    assert content.workload is not None
    usual = build_workload({"model": "qwen2.5-1.5b", "algorithm": {"name": "grpo"}})
    assert content.workload["algorithm"] == usual.algorithm.model_dump(mode="json")
    assert content.workload["batch"]["group_size"] == usual.batch.group_size


def test_pools_across_nodes_take_longer_than_those_within_one() -> None:
    words = ("--gpu", "H200", "--model", "qwen2.5-7b", "--batch-size", "256", "--devices", "gpu:8x2")
    apart, within = predicted(*words, "--placements", "learners:4,4+engines:8,learners:8+engines:8").placements
    assert apart.step_s > within.step_s


@pytest.mark.parametrize(("devices", "is_told"), [("gpu:16", True), ("gpu:16x2", True), ("gpu:8x2", False)])
def test_more_gpus_than_a_server_has_are_told_to_be_of_one(devices: str, is_told: bool) -> None:
    notes = predicted("--from", "h200", "--devices", devices, "--placements", "standard").notes
    assert any("16 GPUs are taken to share the links of one node" in note for note in notes) is is_told


def test_a_dry_run_expects_nothing_of_work_of_another_kind() -> None:
    words = ["run", "--dry-run", "--devices", "gpu:4@139GiB", "--model", "qwen2.5-1.5b", "--placements", "standard"]
    words += ["--set", "activation_checkpointing=true", "--set"]
    told, rough = (CliRunner().invoke(main, [*words, f"precision={one}"]) for one in ("bfloat16", "float32"))
    assert "predicted from h200" in told.output
    assert "predicted from" not in rough.output
    assert "rough, from the number of operations" in rough.output
