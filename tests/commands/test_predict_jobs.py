"""`placebench predict` from runs of a job of the user's: by its spans or its log alone, and by its own command."""

import json
from pathlib import Path

import pytest
from invoking import invoke as invoke_any
from layouts import SPLIT, STANDARD
from predicting import REFERENCE, deciding, invoke, predicted
from synthetic_run import SyntheticRun

from placebench.record.calibration_file import read_calibration
from placebench.record.folder import Trial
from placebench.record.job_record import LogRecord

pytestmark = pytest.mark.usefixtures("here")


def write_run_of_job(*names: str, is_placed: bool = True, has_spans: bool = True) -> None:
    """A run of a job of the user's, with placements of words, or without roles; spans or its log alone tell phases."""
    layouts = dict(zip(names or ("standard", "split"), (STANDARD, SPLIT), strict=True))
    folder = SyntheticRun(layouts, rounds=1, pace=lambda *_: 1.0).write(Path("runs/20260101T000000Z-a"))
    job = {"framework": "verl", "spec": {"job": "verl", "command": ["bash", "run.sh"]}}
    record = json.loads((folder / "run.json").read_text()) | {"workload": {}, "models": None, "job": job}
    for placement in () if is_placed else record["placements"]:
        placement["roles"] = {}
    (folder / "run.json").write_text(json.dumps(record))
    for trial in folder.glob("trials/*"):
        LogRecord(framework="verl", format="verl").write(Trial(trial))
        if not has_spans:
            spans = Trial(trial).spans
            lines = [line for line in spans.read_text().splitlines(True) if json.loads(line)["phase"] == "step"]
            spans.write_text("".join(lines))


def started_by(*words: str) -> None:
    """Record that the run was started by such a command."""
    path = Path("runs/20260101T000000Z-a/run.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"command": ["/bin/placebench", "run", *words]}))


def test_the_command_that_decides_of_a_job_of_the_users_is_its_own() -> None:
    write_run_of_job()
    own = ["--job", "verl", "--devices=cpu:2", "--", "bash", "my run.sh", "--rounds", "7"]
    started_by("--placements", "a,b", "--rounds=2", "--name", "x", *own)
    arguments = ("--from", "latest", "--placements", "split,split:1+1")
    result = invoke(*arguments, "--out", "c.json")
    assert deciding(result.output) == ["run", "--placements", "split,split:1+1", "--rounds", "3", *own]
    content = read_calibration(Path("c.json"))
    # The second is that of a run which was shared.
    for unknown in ((), ("placebench", "run", "--placements", "split")):
        content.model_copy(update={"command": unknown}).write(Path("c.json"))
        shown = " ".join(invoke("--from", "c.json", "--placements", "split,split:1+1").output.split())
        assert "(by the job's own command, which is not known here, with): --placements split,split:1+1" in shown


def planned(words: list[str]) -> str:
    """What a dry run of a command says."""
    end = words.index("--")
    result = invoke_any(*words[:end], "--dry-run", *words[end:])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(("asked", "size"), [((), 4), (("--devices", "gpu:8"), 8)])
def test_the_command_that_decides_of_a_job_on_gpus_that_are_not_here_can_be_planned(
    asked: tuple[str, ...], size: int
) -> None:
    result = invoke("--from", REFERENCE / "verl", "--placements", "standard,split:3+1", *asked)
    hint = f"(add --dry-run to plan it here; on such devices write --devices gpu:{size}):"
    assert hint in " ".join(result.output.split())
    words = deciding(result.output)
    assert words.count("--devices") == 1
    assert f"{size} × GPU, 139 GiB each" in planned(words)


@pytest.mark.parametrize("address", [("--ray-address", "head:6379"), ("--ray-address=head:6379",)])
def test_a_plan_of_a_job_asks_no_cluster_that_is_not_here(address: tuple[str, ...]) -> None:
    predicted("--from", REFERENCE / "verl", "--out", "gpus.json")
    content = read_calibration(Path("gpus.json"))
    job = ("--job", "verl", "--devices", "gpu:4", *address, "--", "python3", "-m", "verl.trainer.main_ppo")
    content.model_copy(update={"command": ("placebench", "run", *job)}).write(Path("c.json"))
    for devices, described in ("gpu:8", "8 × GPU"), ("gpu:8x2", "2 × 8 GPU"):
        result = invoke("--from", "c.json", "--placements", "standard,split", "--devices", devices)
        told = " ".join(result.output.split())
        assert "on such devices write --ray-address head:6379 --devices gpu:8):" in told
        assert described in planned(deciding(result.output))


def test_a_job_of_the_users_tells_of_its_other_placements_by_its_spans() -> None:
    write_run_of_job()
    standard, blocking = predicted("--from", "latest", "--placements", "standard,split/overlap=none").placements
    assert standard.step_s == pytest.approx(STANDARD.step_s, rel=0.02)
    assert blocking.step_s > SPLIT.step_s
    assert (standard.memory_bytes, standard.tokens_per_s_per_device) == ({}, None)
    result = invoke("--from", "latest", "--batch-size", "8")
    assert "a job of yours, whose work is not known" in result.stderr


def test_a_job_whose_log_alone_tells_phases_has_them_where_its_words_ask_for_them() -> None:
    write_run_of_job(has_spans=False)
    standard, split = predicted("--from", "latest", "--placements", "standard,split").placements
    phases = [{phase.name: phase.total_s for phase in one.phases} for one in (standard, split)]
    assert [one["update_actor"] for one in phases] == pytest.approx([0.24, 0.48])
    assert split.waits_s["critic_pool"] > 0.5


def test_a_job_whose_placements_are_names_of_its_own_tells_of_no_other() -> None:
    write_run_of_job("plain", "fast", is_placed=False, has_spans=False)
    for words in ((), ("--placements", "standard")):
        result = invoke("--from", "latest", *words)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
        assert "it is not known which roles of 'plain' and 'fast' work on which devices" in result.stderr


TRL = ("--job", "trl", "--", "torchrun", "train.py", "--model_name_or_path", "m")
NO_CRITIC = "placement 'split': TRL's trainers have no critic, and keep reference and reward in the trainer's ranks;"


def test_placements_that_the_jobs_framework_cannot_have_are_refused_as_by_a_run() -> None:
    write_run_of_job()
    started_by("--placements", "standard,split", *TRL)
    words = ("--devices", "cpu:4", "--placements", "standard,split,ddp:2")
    result, of_run = invoke("--from", "latest", *words), invoke_any("run", *words, *TRL, "--dry-run")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 2), result.output
    assert NO_CRITIC in result.stderr
    assert "placement 'ddp:2': TRL's own configuration (DDP, FSDP, DeepSpeed) decides how a model" in result.stderr
    for line in result.stderr.splitlines():
        assert line in of_run.stderr


def test_placements_that_the_jobs_framework_cannot_have_are_left_out_where_none_is_named() -> None:
    write_run_of_job()
    started_by(*TRL)
    content = predicted("--from", "latest", "--devices", "cpu:4")
    assert [one.placement for one in content.placements] == ["standard"]
    assert any(note.startswith(f"left out: {NO_CRITIC}") for note in content.notes)
    # A placement that the job had on as many devices is possible, whatever its scripts, which may be elsewhere, say.
    assert [one.placement for one in predicted("--from", "latest").placements] == ["standard", "split"]


@pytest.mark.parametrize(
    "words", [("--job", "there.yaml"), ("--job", "trl", "--unknown", "--", "torchrun"), ("--job", "gone")]
)
def test_of_a_job_whose_file_or_version_is_not_here_any_placement_is_predicted(words: tuple[str, ...]) -> None:
    write_run_of_job()
    started_by(*words)
    predicted("--from", "latest", "--devices", "cpu:4", "--placements", "split,standard/staleness=1")
