"""Going on with a run: what is kept, and what may not have changed."""

import json
import os
import re
import shutil
from io import StringIO
from pathlib import Path

import pytest
from damage import DAMAGES
from launching import assert_nothing_left, job, plan, run, statuses

from placebench.compare.measure.precision import headline_width
from placebench.errors import UsageError
from placebench.host.ownership import own_run
from placebench.plan.request import RunRequest
from placebench.plan.resume import resume_plan
from placebench.record.folder import RunFolder
from placebench.record.run_file import RunFile
from placebench.run.display import PlainDisplay
from placebench.run.runner import MeasuredSoFar, RunResult, execute

pytestmark = pytest.mark.usefixtures("temp_here")


def interrupted(tmp_path: Path) -> RunResult:
    body = "steps()\nif case == '1 split': os.kill(os.getppid(), signal.SIGINT); time.sleep(300)"
    result, _ = run(plan(tmp_path), body)
    return result


def test_a_resumed_run_keeps_what_is_done(tmp_path: Path, temp: Path) -> None:
    first = interrupted(tmp_path)
    kept = RunFolder(first.folder).trial(1, "standard").steps.stat().st_mtime_ns
    request = RunRequest(rounds=2, placements="standard,split")
    result, said = run(resume_plan(first.folder, request), "steps()")
    assert (result.done, result.total) == (4, 4)
    assert RunFolder(first.folder).trial(1, "standard").steps.stat().st_mtime_ns == kept
    assert set(statuses(first.folder).values()) == {"done"}
    assert (first.folder / "trials/replaced/01-split.1/status").read_text() == "interrupted\n"
    content = json.loads((first.folder / "run.json").read_text())
    assert (content["status"], content["rounds"], len(content["launches"])) == ("done", 2, 4)
    assert content["wall"]["launches_s"] <= content["wall"]["total_s"]
    assert content["command"] == ["placebench", "run"]
    assert [set(one) for one in content["resumptions"]] == [{"started", "command"}]
    assert "[2/4] round 1 split: start" in said
    assert_nothing_left(temp)


@pytest.mark.parametrize("place", ["trials", "trials/replaced"])
@pytest.mark.parametrize("damage", ["empty", "fifo", "loop"])
def test_what_lies_in_place_of_a_folder_of_launches_is_refused(tmp_path: Path, place: str, damage: str) -> None:
    folder = interrupted(tmp_path).folder
    path = folder / place
    if path.exists():
        path.rename(folder / "aside")
    path.write_text("")
    DAMAGES[damage](path, b"")
    with pytest.raises(UsageError, match=f"^{path}: not a folder, where a run has one: move it away, then resume$"):
        resume_plan(folder, RunRequest())


def test_what_lies_in_place_of_a_launch_is_moved_away(tmp_path: Path) -> None:
    folder = interrupted(tmp_path).folder
    for damage in ("empty", "fifo", "loop"):
        path = folder / "trials" / "01-split"
        shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True)
        path.write_text("")
        DAMAGES[damage](path, b"")
        result, _ = run(resume_plan(folder, RunRequest()), "steps()")
        assert (result.done, result.total) == (2, 2), damage
    assert len(list(folder.glob("trials/replaced/01-split.*"))) == 3


def test_every_resumption_is_recorded_also_in_a_run_of_a_version_that_recorded_none(tmp_path: Path) -> None:
    folder = interrupted(tmp_path).folder
    content = json.loads((folder / "run.json").read_text())
    assert content.pop("resumptions") == []
    (folder / "run.json").write_text(json.dumps(content))
    commands = [["placebench", "run", "--resume", str(folder), *limit] for limit in ((), ("--time-limit", "900"))]
    for command in commands:
        execute(
            resume_plan(folder, RunRequest()),
            command,
            PlainDisplay(StringIO(), pause_s=0),
            MeasuredSoFar(headline_width),
            job("steps()"),
        )
    resumed = RunFile.read(folder / "run.json").resumptions
    assert [list(one.command) for one in resumed] == commands
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", one.started) for one in resumed)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"placements": ""}, "--placements '' has an empty entry"),
        ({"placements": "split,standard"}, "--placements is split,standard now and standard,split in the run"),
        ({"workload": {"batch": {"size": 64}}}, "batch.size is 64 now and 128 in the run"),
        ({"devices": "cpu:4"}, "--devices is cpu:4 now and cpu:0, cpu:1 in the run"),
        ({"name": "other"}, "--name is other now"),
        ({"allow_kill": True}, "the run is of placebench's own job; leave out --allow-kill"),
        ({"out": Path("elsewhere")}, "--out is elsewhere now and"),
        ({"sample_hz": 1.0}, "--sample-hz is 1.0 now and 0.0 in the run"),
        ({"launcher": "torchrun"}, "--launcher is torchrun now and ray in the run"),
    ],
)
def test_a_resumed_run_stays_comparable(tmp_path: Path, changes: dict[str, object], reason: str) -> None:
    folder = interrupted(tmp_path).folder
    with pytest.raises(UsageError, match=re.escape(reason)):
        resume_plan(folder, RunRequest(**changes))  # type: ignore[arg-type]  # one field each, of its type


def test_all_that_does_not_agree_with_a_run_is_told_at_once(tmp_path: Path) -> None:
    folder = interrupted(tmp_path).folder
    request = RunRequest(
        placements="spilt",
        devices="tpu:1",
        name="other",
        workload={"batch": {"size": 0}, "seed": 1},
        placement_timeout_s=5,
        precision=0.05,
        wrong=("--rounds 'many': no number",),
        unknown=frozenset({"rounds"}),
    )
    with pytest.raises(UsageError) as caught:
        resume_plan(folder, request)
    found = str(caught.value)
    for reason in (
        "--rounds 'many': no number",
        "--placement-timeout is for a Ray cluster",
        "batch.size: must be greater than 0",
        "seed is 1 now and 0 in the run",
        "--name is other now",
        "--devices 'tpu:1': write",
        "unknown placement 'spilt'",
    ):
        assert reason in found
    assert "batch.size is" not in found
    assert "--precision" not in found  # it depends on rounds that nobody could read
    (folder / "run.json").unlink()
    os.mkfifo(folder / "run.json")
    with pytest.raises(UsageError, match="it is a pipe or a device"):
        resume_plan(folder, RunRequest())


def test_a_device_whose_memory_is_told_otherwise_is_still_the_same(tmp_path: Path) -> None:
    folder = interrupted(tmp_path).folder
    content = json.loads((folder / "run.json").read_text())
    for device in content["devices"]:
        device["memory_bytes"] += 645 << 20
    (folder / "run.json").write_text(json.dumps(content))
    assert len(resume_plan(folder, RunRequest(devices="cpu:2")).devices) == 2


def test_a_run_from_before_a_key_goes_on_with_its_default(tmp_path: Path) -> None:
    folder = interrupted(tmp_path).folder
    content = json.loads((folder / "run.json").read_text())
    del content["workload"]["rollout"]["memory_share"]
    (folder / "run.json").write_text(json.dumps(content))
    assert resume_plan(folder, RunRequest(workload={"batch": {"size": 128}})).workload.rollout.memory_share is None


def test_a_run_goes_on_with_its_launcher_which_was_ray_where_it_is_not_written_down(tmp_path: Path) -> None:
    folder = run(plan(tmp_path, placements="ddp:1", launcher="torchrun"), "sys.exit(1)")[0].folder
    assert resume_plan(folder, RunRequest()).launcher == "torchrun"
    with pytest.raises(UsageError, match="--launcher is ray now and torchrun in the run"):
        resume_plan(folder, RunRequest(launcher="ray"))
    content = json.loads((folder / "run.json").read_text())
    del content["launcher"]
    (folder / "run.json").write_text(json.dumps(content))
    assert resume_plan(folder, RunRequest(launcher="ray")).launcher == "ray"


def test_fewer_rounds_or_another_device_cannot_be_resumed(tmp_path: Path) -> None:
    folder = interrupted(tmp_path).folder
    content = json.loads((folder / "run.json").read_text())
    content["rounds"] = 3
    content["devices"][1]["node"] = "elsewhere"
    (folder / "run.json").write_text(json.dumps(content))
    with pytest.raises(UsageError) as caught:
        resume_plan(folder, RunRequest(rounds=2))
    lines = str(caught.value).splitlines()
    assert any("cpu:1" in line and "is not here, or has changed" in line for line in lines)
    assert any("--rounds is 2 now and already 3 in the run" in line for line in lines)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("name", None),
        ("status", None),
        ("status", "sleeping"),
        ("workload", "small"),
        ("launches", None),
        ("launches", [{"round": 1, "placement": "standard", "status": "done"}]),
        ("wall", {"total_s": "long"}),
        ("placements", [{"name": "standard", "pools": None}]),
        ("checkpoint_every", "often"),
        ("rounds", float("inf")),
        ("resumed_from", "a checkpoint"),
        ("cluster", {}),
        ("launcher", "mpi"),
        ("resumptions", "often"),
        ("resumptions", ["placebench run --resume RUN"]),
        ("resumptions", [{"started": "2026-03-01T10:00:00Z", "command": "placebench run"}]),
        ("resumptions", [{"started": None, "command": ["placebench", "run"]}]),
    ],
)
def test_a_run_of_another_version_is_refused_in_one_line_and_left_as_it_is(
    tmp_path: Path, where: str, value: object
) -> None:
    folder = interrupted(tmp_path).folder
    content = json.loads((folder / "run.json").read_text())
    del content[where]
    (folder / "run.json").write_text(json.dumps(content | ({} if value is None else {where: value})))
    before = (folder / "run.json").read_bytes()
    with pytest.raises(UsageError, match=r"run\.json: not as placebench writes it") as caught:
        resume_plan(folder, RunRequest())
    assert len(str(caught.value).splitlines()) == 1
    assert (folder / "run.json").read_bytes() == before


def test_a_launch_with_a_damaged_status_runs_again(tmp_path: Path) -> None:
    folder = interrupted(tmp_path).folder
    (RunFolder(folder).trial(1, "standard").path / "status").write_text("")
    result, _ = run(resume_plan(folder, RunRequest()), "steps()")
    assert (result.done, result.total) == (2, 2)


def test_a_run_that_still_goes_on_cannot_be_resumed(tmp_path: Path) -> None:
    folder = interrupted(tmp_path).folder
    with own_run(folder), pytest.raises(UsageError, match="still goes on in another process"):
        resume_plan(folder, RunRequest())
