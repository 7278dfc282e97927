"""What a page is told of a run while it goes on, and what not again."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from growing_run import GrowingRun, Reader
from layouts import span_line
from showing import write_report
from synthetic_run import GPU_SAMPLES, SyntheticRun, gpu_run

from placebench.record.folder import Status
from placebench.record.writing import append_jsonl, write_json
from placebench.serve import launch_files

NASTY = '<img src=x onerror="alert(1)">\x1b[31m\u202e'


@pytest.fixture
def run(tmp_path: Path) -> GrowingRun:
    return GrowingRun(tmp_path / "20260301T100000Z-demo")


def bars(section: dict[str, Any]) -> dict[str, list[list[Any]]]:
    return dict(section["rows"])


def test_the_step_that_runs_is_told_phase_by_phase_on_its_devices(run: GrowingRun) -> None:
    run.add_step()
    run.be_at(2, ("gen", 101.9, 103.0), ("reward", 103.0, 103.1), ("values", 103.1, None), ("ref", 103.2, None))
    reader = Reader(run.folder.path)
    reader.look()
    step = reader.known["timeline"]
    # The step began when the one before it ended; the job's last word was a second after its last change.
    assert step["step"] == 2
    assert step["now"] == pytest.approx(104.2 - 101.83, abs=1.0)
    assert bars(step) == {
        "cpu:0": [["gen", 0.07, 1.17], ["ref", 1.37, None]],
        "cpu:1": [["reward", 1.17, 1.27], ["values", 1.27, None]],
    }
    assert step["colors"]["gen"] == "#332288"
    assert reader.known["now"]["doing"] == "step 2/6: values + ref"
    assert (reader.known["now"]["round"], reader.known["now"]["number"], reader.known["now"]["runs"]) == (2, 3, True)
    finished = reader.known["finished"]
    assert (finished["step"], finished["now"]) == (1, 1.83)
    assert ["gen", 0.01, 0.91] in bars(finished)["cpu:0"]
    assert [phase for phase, *_ in bars(finished)["controller"]] == ["adv"]


def test_what_processes_do_at_once_on_one_device_has_lanes(run: GrowingRun) -> None:
    run.add_step()
    with run.trial.spans.open("a") as stream:  # a second process beside the one that trains
        append_jsonl(stream, span_line(1, "update_actor", "actor", "actor_pool", "cpu:0", 101.0, 101.2))
    reader = Reader(run.folder.path)
    reader.look()
    row = bars(reader.known["finished"])["cpu:0"]
    assert [bar for bar in row if bar[1] in (1.0, 0.91, 1.11, 0.01)] == [
        ["gen", 0.01, 0.91],
        ["old_log_prob", 0.91, 1.11, 0, 2],
        ["ref", 1.11, 1.31, 0, 2],
        ["update_actor", 1.0, 1.2, 1, 2],
    ]


def test_what_goes_on_has_lanes_beside_what_has_begun_since(run: GrowingRun) -> None:
    run.add_step()
    run.be_at(2, ("gen", 101.9, 103.0), ("ref", 103.2, None), ("old_log_prob", 103.4, None))
    reader = Reader(run.folder.path)
    reader.look()
    assert bars(reader.known["timeline"])["cpu:0"] == [
        ["gen", 0.07, 1.17],
        ["ref", 1.37, None, 0, 2],
        ["old_log_prob", 1.57, None, 1, 2],
    ]


def test_only_what_is_new_is_told_and_a_new_reader_is_told_all(run: GrowingRun) -> None:
    run.trial.log.write_text("first\nsecond\n")
    run.add_step(1.5)
    run.sample(100.0)
    reader = Reader(run.folder.path)
    reader.look()
    assert reader.series["steps"]["2/split"] == {"at": [1], "seconds": [1.5], "tokens_s": [None]}
    assert reader.series["steps"]["1/standard"]["seconds"][0] == pytest.approx(2.6104)
    assert reader.log == ["first", "second"]
    run.add_step(1.25)
    run.sample(100.2)
    with run.trial.log.open("a") as stream:
        stream.write("third\nfou")
    news = reader.look()
    assert news["series"]["steps"] == {"2/split": {"from": 1, "at": [2], "seconds": [1.25], "tokens_s": [None]}}
    assert news["series"]["devices"]["02-split/cpu:0"]["load"] == [0.5]
    assert news["log"] == {"anew": False, "lines": ["third"]}
    assert not {"run", "ratio"} & set(news)
    again = Reader(run.folder.path)
    again.look()
    assert (again.series, again.log) == (reader.series, reader.log)


def test_a_line_of_a_step_is_told_whole_and_a_longer_one_says_that_it_is_cut(run: GrowingRun) -> None:
    step = (
        " - ".join(f"timing_s/part_of_the_step_{number}:1.23456789" for number in range(150)) + " - perf/throughput:1"
    )
    run.trial.log.write_text(f"{step}\n{'é' * 9000}\n")
    reader = Reader(run.folder.path)
    reader.look()
    assert len(step) > 5000
    assert reader.log == [step, "é" * 8000 + "…"]


def test_the_ratio_narrows_round_by_round_and_the_next_launch_takes_the_page(run: GrowingRun) -> None:
    reader = Reader(run.folder.path)
    reader.look()
    ratio = reader.known["ratio"]
    assert (ratio["first"], ratio["done"]) == ("standard", 1)
    [[number, value, low, high, verdict]] = ratio["of"]["split"]
    assert (number, low, high, verdict) == (1, None, None, "undecided")
    assert value == pytest.approx(1.83 / 1.3, rel=1e-3)
    for _ in range(6):
        run.add_step(1.8)
    run.end(Status.DONE)
    other = run.folder.trial(2, "standard")
    other.path.mkdir()
    write_json(other.launch_file, {})
    other.steps.write_text((run.folder.trial(1, "standard").path / "steps.jsonl").read_text())
    other.set_status(Status.DONE)
    reader.look()
    assert reader.known["now"]["placement"] == "standard"
    assert [row[0] for row in reader.known["ratio"]["of"]["split"]] == [1, 2]
    assert reader.known["ratio"]["of"]["split"][1][2] is not None
    launches = {(one["round"], one["placement"]): one for one in reader.known["run"]["launches"]}
    assert launches[2, "split"]["step_time"] == pytest.approx(1.8)
    assert launches[1, "standard"]["warmup"] == 2


def test_a_run_that_was_killed_is_told_from_one_that_goes_on(run: GrowingRun) -> None:
    reader = Reader(run.folder.path)
    reader.look()
    assert reader.known["run"]["status"] == "running"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    run.hold(ended.pid)
    reader.look()
    assert reader.known["run"]["status"] == "killed"
    assert reader.known["now"]["runs"] is False


def test_a_launch_that_failed_says_why(run: GrowingRun) -> None:
    run.end(Status.OOM)
    run.trial.error.write_text(f"oom: {NASTY}\n")
    reader = Reader(run.folder.path)
    reader.look()
    [failed] = [one for one in reader.known["run"]["launches"] if one["status"] == "oom"]
    assert failed["error"] == 'oom: <img src=x onerror="alert(1)">\\x1b[31m\\u202e'


def test_a_launch_that_is_run_again_begins_anew(run: GrowingRun) -> None:
    run.add_step(9.0)
    reader = Reader(run.folder.path)
    reader.look()
    run.trial.path.rename(run.folder.path / "trials" / "replaced")
    run.trial.path.mkdir()
    write_json(run.trial.launch_file, {"again": True})
    run.trial.set_status(Status.RUNNING)
    run.steps = 0
    run.add_step(1.0)
    reader.look()
    assert reader.series["steps"]["2/split"]["seconds"] == [1.0]


def test_what_cannot_be_read_is_counted_and_nothing_is_waited_for(run: GrowingRun, tmp_path: Path) -> None:
    run.add_step()
    with run.trial.steps.open("a") as stream:
        stream.write('{"step": "x"}\n[1, 2]\n')
    (tmp_path / "secret").write_text("SECRET\n")
    run.trial.log.symlink_to(tmp_path / "secret")
    os.mkfifo(run.trial.spans.with_name("pipe"))
    run.trial.spans.unlink()
    run.trial.spans.with_name("pipe").rename(run.trial.spans)
    run.trial.progress.write_text('{"step": null}')
    reader = Reader(run.folder.path)
    reader.look()
    assert reader.log == []
    assert reader.known["run"]["errors"] == ["2 lines of the launches' files cannot be read and are left out"]
    run.folder.run_file.write_text("{")
    reader.look()
    assert "run.json" in reader.known["run"]["errors"][0]


def test_devices_tell_load_memory_power_clock_and_what_held_them_down(tmp_path: Path) -> None:
    held = {**GPU_SAMPLES, "event_reasons": 0x4 | 0x40, "temperature_c": 71}
    path = gpu_run(rounds=1, samples=held).write(tmp_path / "run")
    reader = Reader(path)
    reader.look()
    [first, _] = reader.known["devices"]
    assert (first["load"], first["power"], first["clock"], first["temperature"]) == (0.5, 400, 1900, 71)
    assert first["held"] == ["the power cap", "a thermal slowdown by the hardware"]
    assert {one["name"] for one in reader.known["run"]["devices"]} == {"NVIDIA H200"}


def test_who_sits_where_is_told_as_asked_and_as_seen(tmp_path: Path) -> None:
    path = gpu_run(rounds=1).write(tmp_path / "run")
    [file] = path.glob("trials/01-split/devices.jsonl")
    with file.open("a") as stream:
        processes = [{"pid": 7, "memory_bytes": 2**30}, {"pid": 8, "memory_bytes": None}]
        line = {"kind": "processes", "wall": 1e3, "mono": 1e3, "device": "cpu:1", "processes": processes}
        append_jsonl(stream, line)
    (file.parent / "processes.jsonl").write_text(json.dumps({"pid": 7, "device": "cpu:1"}) + "\n")
    reader = Reader(path)
    reader.look()
    one, other = reader.known["seats"]
    assert (one["asked"], other["asked"]) == (["actor", "rollout", "ref"], ["critic", "reward"])
    assert [seat["role"] for seat in other["seen"]] == ["critic", "reward"]
    assert {seat["role"]: seat["share"] for seat in one["seen"]}["rollout"] == pytest.approx(0.5, abs=0.02)
    assert [(process["pid"], process["memory"], process["is_ours"]) for process in other["processes"]] == [
        (7, 2**30, True),
        (8, None, False),
    ]


def test_a_job_whose_devices_tell_of_a_step_when_the_next_is_over_is_shown_to_the_last_step_they_have_told(
    run: GrowingRun,
) -> None:
    run.add_step()
    run.add_step()
    late = [line for line in run.trial.spans.read_text().splitlines() if json.loads(line)["step"] == 2]
    whole = late.pop()
    assert json.loads(whole)["phase"] == "step"
    known = [line for line in run.trial.spans.read_text().splitlines() if json.loads(line)["step"] == 1]
    run.trial.spans.write_text("".join(f"{line}\n" for line in (*known, whole)))
    reader = Reader(run.folder.path)
    reader.look()
    assert reader.known["finished"]["step"] == 1
    shares = {seat["role"]: seat["share"] for seat in reader.known["seats"][0]["seen"]}
    assert shares["rollout"] == pytest.approx(0.5, abs=0.02)
    with run.trial.spans.open("a") as stream:
        stream.write("".join(f"{line}\n" for line in late))
    reader.look()
    assert reader.known["finished"]["step"] == 2
    assert bars(reader.known["finished"])["cpu:0"]


def test_times_of_a_folder_that_was_copied_begin_with_its_samples(run: GrowingRun) -> None:
    run.be_at(1, ("gen", 100.0, None))
    os.utime(run.trial.launch_file, (time.time() + 500.0,) * 2)
    run.sample(100.0)
    run.sample(101.0)
    reader = Reader(run.folder.path)
    reader.look()
    assert reader.series["devices"]["02-split/cpu:0"]["at"] == pytest.approx([0.0, 1.0])


def test_queues_tell_what_waits_and_how_fast_each_side_is(run: GrowingRun) -> None:
    metrics = {
        "perf/total_num_tokens": 1300.0,
        "training/queue_mean": 12.5,
        "training/queue_max": 16.0,
        "training/trainer_wait_s": 0.2,
        "training/generating_s": 1.0,
        "training/generated_tokens": 900.0,
        "training/lag_mean": 1.0,
        "training/dropped_sequences": 0.0,
    }
    run.add_step(1.5, **metrics)
    reader = Reader(run.folder.path)
    reader.look()
    queue = reader.series["queue"]["02-split"]
    assert {name: column[0] for name, column in queue.items()} == {
        "at": 1, "waiting": 12.5, "most": 16, "trainer_tokens_s": 1000, "engine_tokens_s": 900, "lag": 1, "dropped": 0,
    }  # fmt: skip


def test_a_long_file_of_samples_is_known_from_its_start_without_being_read(
    run: GrowingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_files, "LONG_BYTES", 100_000)
    monkeypatch.setattr(launch_files, "_TAIL_BYTES", 5_000)
    monkeypatch.setattr(launch_files, "_PLACE_BYTES", 1_000)
    for tick in range(2000):
        run.sample(100.0 + tick)
    size = run.trial.device_samples.stat().st_size
    assert size > 100_000
    reader = Reader(run.folder.path)
    reader.look()
    at = reader.series["devices"]["02-split/cpu:0"]["at"]
    assert at == sorted(at)
    assert len(at) < 400
    assert at[-1] - at[0] == pytest.approx(2000, rel=0.02)


def test_a_finished_run_links_its_report_and_tells_its_verdict(tmp_path: Path) -> None:
    path = SyntheticRun().write(tmp_path / "run")
    write_report(path)
    reader = Reader(path)
    reader.look()
    assert reader.known["run"]["files"] == ["report.html", "summary.json", "trace.json.gz"]
    assert "split is slower" in reader.known["run"]["headlines"][0]


def test_a_run_that_is_resumed_has_no_verdict_until_it_is_over(tmp_path: Path) -> None:
    path = SyntheticRun().write(tmp_path / "run")
    write_report(path)
    record = path / "run.json"
    done = json.loads(record.read_text())
    record.write_text(json.dumps(done | {"status": "running", "ended": None}))
    reader = Reader(path)
    reader.look()
    assert reader.known["run"]["headlines"] == []
    record.write_text(json.dumps(done))
    reader.look()
    assert "split is slower" in reader.known["run"]["headlines"][0]


def test_of_a_run_without_its_raw_files_the_verdict_and_the_report_are_told(tmp_path: Path) -> None:
    path = SyntheticRun().write(tmp_path / "run")
    write_report(path)
    (path / "run.json").unlink()
    shutil.rmtree(path / "trials")
    reader = Reader(path)
    reader.look()
    told = reader.known["run"]
    assert (told["name"], told["status"], told["errors"]) == ("demo", "done", [])
    assert told["files"] == ["report.html", "summary.json", "trace.json.gz"]
    assert "split is slower" in told["headlines"][0]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, None),
        ({"cluster": {"address": "10.0.0.1:6379"}}, "ray status --address 10.0.0.1:6379"),
        ({"job": {"framework": "trl", "spec": {"ray": "head:6379"}}}, "ray status --address head:6379"),
    ],
)
def test_the_page_says_how_to_reach_ray(tmp_path: Path, more: dict[str, Any], said: str | None) -> None:
    path = SyntheticRun(rounds=1).write(tmp_path / "run")
    write_json(path / "run.json", json.loads((path / "run.json").read_text()) | more)
    reader = Reader(path)
    reader.look()
    ray = reader.known["run"]["ray"]
    assert ray is None if said is None else said in ray
