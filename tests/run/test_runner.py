import errno
import json
import os
import re
import signal
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from launching import assert_nothing_left, drive, plan, run, running, statuses, wait_for

from placebench.errors import InterruptedRunError, JobExit, LaunchError, PlacebenchError, TimeLimitError
from placebench.plan.request import RunRequest
from placebench.plan.resume import resume_plan
from placebench.record import folder as runfolder
from placebench.record.folder import RunFolder, Status
from placebench.run import launch as launches
from placebench.run.display import PlainDisplay
from placebench.sessions.ray_cluster.discovery import Cluster


@pytest.fixture(autouse=True)
def _isolated(temp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temp))
    monkeypatch.setenv("TMPDIR", str(temp))


def test_a_run_is_rounds_in_alternating_order(tmp_path: Path, temp: Path) -> None:
    body = """
    progress("start ray")
    while not os.path.exists(f"{trial}/devices.jsonl") or not os.path.getsize(f"{trial}/devices.jsonl"):
        time.sleep(0.05)
    steps()
    """
    result, said = run(plan(tmp_path, rounds=2, sample_hz=5.0), body)
    assert (result.done, result.total, result.failures, result.stopped_by) == (4, 4, (), None)
    content = json.loads((result.folder / "run.json").read_text())
    assert content["status"] == "done"
    assert content["order"] == [["standard", "split"], ["split", "standard"]]
    assert [launch["trial"] for launch in content["launches"]] == [
        "trials/01-standard",
        "trials/01-split",
        "trials/02-split",
        "trials/02-standard",
    ]
    assert set(statuses(result.folder).values()) == {"done"}
    assert re.findall(r"\[(\d)/4\] round (\d) (\w+): done", said) == [
        ("1", "1", "standard"),
        ("2", "1", "split"),
        ("3", "2", "split"),
        ("4", "2", "standard"),
    ]
    samples = (RunFolder(result.folder).trial(1, "split").device_samples).read_text()
    assert '"kind": "footer"' in samples
    assert_nothing_left(temp)


def test_wall_time_is_split_without_a_rest(tmp_path: Path) -> None:
    result, _ = run(plan(tmp_path, placements="standard"), "time.sleep(0.2); steps(); time.sleep(0.2)")
    content = json.loads((result.folder / "run.json").read_text())
    wall = content["launches"][0]["wall"]
    parts = [wall[part] for part in ("before_steps_s", "steps_s", "after_steps_s", "cleanup_s")]
    assert sum(parts) == pytest.approx(wall["total_s"])
    assert wall["before_steps_s"] > 0.2
    assert wall["after_steps_s"] > 0.2
    assert content["wall"]["launches_s"] == pytest.approx(wall["total_s"])
    assert content["wall"]["total_s"] >= content["wall"]["launches_s"]


def test_a_clock_that_is_set_meanwhile_changes_no_wall_time(tmp_path: Path) -> None:
    body = """
    true_time = time.time
    time.time = lambda: true_time() + 3600
    steps()
    """
    result, _ = run(plan(tmp_path, placements="standard"), body)
    wall = json.loads((result.folder / "run.json").read_text())["launches"][0]["wall"]
    assert all(0 <= seconds < 600 for seconds in wall.values())


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ("sys.exit(11)", "oom", "exit code 11"),
        ("sys.exit(12)", "device_lost", "exit code 12"),
        ("sys.exit(7)", "failed", "exit code 7"),
        ("end_step(1); sys.exit(0)", "failed", "after 1 of 2 steps"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "failed", "killed by SIGKILL"),
        (
            "open(f'{trial}/error.txt', 'w').write('Traceback\\n  x\\na.b.SomeError: it broke\\n'); sys.exit(10)",
            "failed",
            "SomeError: it broke",
        ),
    ],
)
def test_one_failing_launch_does_not_end_the_run(
    tmp_path: Path, temp: Path, body: str, status: str, reason: str
) -> None:
    result, said = run(plan(tmp_path), f"print('last words', flush=True)\nif case == '1 standard': {body}\nsteps()")
    assert statuses(result.folder) == {"01-split": "done", "01-standard": status}
    assert json.loads((result.folder / "run.json").read_text())["status"] == "failed"
    error = RunFolder(result.folder).trial(1, "standard").error.read_text()
    first, advice = error.splitlines()[:2]
    assert first.startswith(f"{status}: ")
    assert reason in first
    assert advice.startswith("what to do: ")
    assert "last words" in error
    assert f"standard: {status}" in said
    with pytest.raises(LaunchError, match=rf"1 of 2 launches failed.*{reason}.*error\.txt.*--resume"):
        result.raise_unless_done()
    assert_nothing_left(temp)


NO_HEAD = """
print("[E 1 2] rpc_client.h:204: Failed to connect to GCS within 10 seconds. GCS may have been killed.", flush=True)
sys.exit(1)
"""


def test_a_launch_whose_ray_lost_its_head_says_so_and_the_next_one_runs(tmp_path: Path) -> None:
    result, _ = run(plan(tmp_path), f'if case == "1 standard":{indent(NO_HEAD, "    ")}\nsteps()')
    assert statuses(result.folder) == {"01-standard": "failed", "01-split": "done"}
    assert result.failures[0][1] == "failed, the head of the launch's own Ray (gcs_server) was killed"


def test_a_run_ends_when_the_head_of_its_cluster_is_gone(tmp_path: Path) -> None:
    result, _ = run(replace(plan(tmp_path), cluster=Cluster("10.0.0.1:6379", (), 60.0)), NO_HEAD)
    assert statuses(result.folder) == {"01-standard": "device_lost"}
    with pytest.raises(LaunchError, match=r"Ray cluster does not answer any more \(--ray-address 10\.0\.0\.1:6379\)"):
        result.raise_unless_done()


def test_the_error_names_the_device_and_shows_a_traceback_once(tmp_path: Path) -> None:
    body = """
    with open(f"{trial}/processes.jsonl", "w") as stream:
        stream.write('{"pid": 41, "device": "cpu:0"}\\n{"pid": 42, "device": "cpu:1"}\\n')
    text = "Traceback (most recent call last):\\n  File x\\nray.exceptions.ActorDiedError: it died\\n  pid: 42\\n"
    print("step:1 - a:1\\n" + text, flush=True)
    open(f"{trial}/error.txt", "w").write(text + "advice of the job")
    sys.exit(10)
    """
    result, _ = run(plan(tmp_path, placements="standard"), body)
    error = RunFolder(result.folder).trial(1, "standard").error.read_text()
    assert error.startswith("failed: ActorDiedError: it died (worker of cpu:1)\nwhat to do: ")
    assert error.count("Traceback") == 1
    assert error.index("advice of the job") < error.index("step:1 - a:1")


def test_a_kill_for_want_of_memory_is_told_by_the_kernels_counter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter((4, 5))
    monkeypatch.setattr(launches, "oom_kills", lambda: next(counts))
    result, _ = run(plan(tmp_path, placements="standard"), "os.kill(os.getpid(), signal.SIGKILL)")
    assert statuses(result.folder) == {"01-standard": "oom"}


def test_a_launch_out_of_memory_says_who_held_it_and_what_would_help(tmp_path: Path) -> None:
    body = """
    rows = [{"kind": "sample", "device": "cpu:0", "util": 1.0, "memory_bytes": size << 20} for size in (300, 900, 700)]
    open(f"{trial}/devices.jsonl", "w").write("".join(json.dumps(row) + "\\n" for row in rows))
    span = {"device": "cpu:1", "memory_peak_bytes": 5 << 20, "memory_reserved_bytes": 6 << 20}
    open(f"{trial}/spans.jsonl", "w").write(json.dumps(span) + "\\n")
    text = ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. Including non-PyTorch memory, this"
        " process has 139.10 GiB memory in use. Of the allocated memory 90.50 GiB is allocated by PyTorch, and"
        " 1.25 GiB is reserved by PyTorch but unallocated.")
    open(f"{trial}/error.txt", "w").write(text)
    sys.exit(11)
    """
    result, _ = run(plan(tmp_path, placements="standard"), body)
    error = RunFolder(result.folder).trial(1, "standard").error.read_text()
    assert error.startswith("oom: OutOfMemoryError: CUDA out of memory")
    lines = error.splitlines()
    assert any(
        line.startswith("cpu:0: in use 700 MiB at the last sample, 900 MiB at most; estimated ") for line in lines
    )
    assert any(line.startswith("cpu:1: torch allocated 5 MiB and reserved 6 MiB at most") for line in lines)
    assert "the process held 139.10 GiB, torch had 90.50 GiB allocated and 1.25 GiB reserved but free" in error
    assert "would lower the estimate: --set batch.micro_batch_tokens=192: about " in error


def test_a_job_without_progress_is_given_up(tmp_path: Path, temp: Path) -> None:
    body = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    leave_daemon()
    progress("step", 1, ["update_actor"])
    while case == "1 standard":
        print("still here", flush=True)
        time.sleep(0.1)
    steps()
    """
    begun = time.monotonic()
    result, _ = run(plan(tmp_path, step_timeout_s=3.0), body)
    assert time.monotonic() - begun < 60
    assert statuses(result.folder) == {"01-split": "done", "01-standard": "timeout"}
    error = RunFolder(result.folder).trial(1, "standard").error.read_text()
    assert "no progress for" in error.splitlines()[0]
    assert "step 1/2: update_actor" in error.splitlines()[0]
    assert "still here" in error
    assert_nothing_left(temp)


def test_the_folder_that_torch_makes_does_not_outlast_a_killed_job(tmp_path: Path, temp: Path) -> None:
    body = """
    import getpass, tempfile
    os.mkdir(f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}")
    os.kill(os.getpid(), signal.SIGKILL)
    """
    run(plan(tmp_path, placements="standard"), body)
    assert list(temp.iterdir()) == []


@pytest.mark.parametrize(
    ("end", "changes", "reason"),
    [
        ("error = 'OutOfMemoryError: CUDA out of memory'", {}, "OutOfMemoryError: CUDA out of memory"),
        ("time.sleep(60)", {"step_timeout_s": 0.5}, "no progress for 0."),
        ("time.sleep(60)", {"time_limit_s": 5.0}, "the time limit has passed"),
    ],
)
def test_a_trace_that_fails_costs_only_the_trace(
    tmp_path: Path, temp: Path, end: str, changes: dict[str, Any], reason: str
) -> None:
    body = f"""
    steps()
    progress("trace kernels", count)
    {end}
    open(f"{{trial}}/error.txt", "w").write("Traceback\\n" + error + "\\n")
    sys.exit(11)
    """
    result, said = run(plan(tmp_path, placements="standard", **changes), body)
    result.raise_unless_done()
    assert statuses(result.folder) == {"01-standard": "done"}
    (note,) = (line for line in said.splitlines() if line.startswith("note: "))
    assert note.startswith(f"note: the launch is done but for the trace of its kernels: {reason}")
    assert note.endswith("/trials/01-standard)")
    assert_nothing_left(temp)


def test_a_cluster_that_changes_while_kernels_are_traced_ends_the_run(tmp_path: Path) -> None:
    body = f"steps()\nprogress('trace kernels', count)\nsys.exit({JobExit.NODE_LOST})"
    result, _ = run(plan(tmp_path), body)
    assert statuses(result.folder) == {"01-standard": "device_lost"}
    with pytest.raises(LaunchError, match="1 of 2 launches failed"):
        result.raise_unless_done()


def test_what_a_finished_job_leaves_is_ended(tmp_path: Path, temp: Path) -> None:
    result, _ = run(plan(tmp_path), "leave_daemon(); steps(); os.mkdir(launch['ray_temp_dir'] + '/session_x')")
    assert result.done == 2
    assert_nothing_left(temp)


@pytest.mark.parametrize(
    ("number", "action"), [(signal.SIGINT, "SIG_IGN"), (signal.SIGTERM, "SIG_DFL"), (signal.SIGHUP, "SIG_DFL")]
)
def test_a_signal_ends_the_run_and_keeps_what_is_done(
    tmp_path: Path, temp: Path, number: signal.Signals, action: str
) -> None:
    body = f"""
    leave_daemon()
    if case == "1 split":
        signal.signal(signal.SIGTERM, signal.{action})
        progress("step", 1, ["gen"])
        time.sleep(300)
    steps()
    """
    with running(drive(tmp_path, body, rounds=2), temp) as runner:
        wait_for(lambda: list(tmp_path.glob("*/trials/01-split/progress.json")))
        begun = time.monotonic()
        runner.send_signal(number)
        output, _ = runner.communicate(timeout=60)
    assert time.monotonic() - begun < 10
    assert runner.returncode == InterruptedRunError.exit_code
    folder = next(tmp_path.iterdir())
    assert f"stopped by {number.name}: 1 of 4 launches are done" in output
    assert statuses(folder) == {"01-standard": "done", "01-split": "interrupted"}
    assert json.loads((folder / "run.json").read_text())["status"] == "interrupted"
    assert_nothing_left(temp)


def test_a_signal_that_ends_the_job_first_stops_the_run_too(tmp_path: Path, temp: Path) -> None:
    body = """
    os.kill(os.getppid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    """
    with running(drive(tmp_path, body), temp) as runner:
        output, _ = runner.communicate(timeout=60)
    assert runner.returncode == InterruptedRunError.exit_code
    folder = next(tmp_path.iterdir())
    assert "stopped by SIGTERM: 0 of 2 launches are done" in output
    assert statuses(folder) == {"01-standard": "interrupted"}
    assert_nothing_left(temp)


@pytest.mark.parametrize("moment", ["end", "__exit__"])
def test_a_signal_after_the_last_launch_is_told_to_who_makes_the_report(tmp_path: Path, moment: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlainDisplay, moment, lambda *_: signal.raise_signal(signal.SIGTERM))
        result, _ = run(plan(tmp_path, placements="standard"), "steps()")
    assert (result.done, result.stopped_by, result.late_signal) == (1, None, signal.SIGTERM)
    assert json.loads((result.folder / "run.json").read_text())["status"] == "done"
    again, _ = run(resume_plan(result.folder, RunRequest()), "raise SystemExit")
    assert (again.done, again.total, again.late_signal) == (1, 1, None)


def test_the_time_limit_ends_the_run(tmp_path: Path, temp: Path) -> None:
    body = """
    steps()
    if case == "1 split":
        print("working\\nTraceback (most recent call last):\\n  of being stopped", flush=True)
        time.sleep(300)
    """
    result, _ = run(plan(tmp_path, time_limit_s=5.0), body)
    assert statuses(result.folder) == {"01-standard": "done", "01-split": "interrupted"}
    error = RunFolder(result.folder).trial(1, "split").error.read_text()
    assert "working" in error
    assert "Traceback" not in error
    with pytest.raises(TimeLimitError, match="1 of 2 launches are done"):
        result.raise_unless_done()
    assert_nothing_left(temp)


def test_no_space_left_is_one_line_and_loses_nothing(
    tmp_path: Path, temp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = runfolder.write_atomically

    def fill(path: Path, text: str) -> None:
        if "01-split" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, text)

    monkeypatch.setattr(runfolder, "write_atomically", fill)
    a_plan = plan(tmp_path)
    with pytest.raises(PlacebenchError, match=r"no space left for .*--resume") as caught:
        run(a_plan, "steps()")
    assert len(str(caught.value).splitlines()) == 1
    assert RunFolder(a_plan.folder.path).trial(1, "standard").status is Status.DONE
    assert json.loads(a_plan.folder.run_file.read_text())["status"] == "failed"
    assert_nothing_left(temp)


def test_a_disk_that_becomes_read_only_is_one_line(tmp_path: Path, temp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = runfolder.write_atomically

    def refuse(path: Path, text: str) -> None:
        if "01-split" in str(path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        write(path, text)

    monkeypatch.setattr(runfolder, "write_atomically", refuse)
    with pytest.raises(
        PlacebenchError, match=r"01-split.*: Read-only file system: see to the disk.*--resume"
    ) as caught:
        run(plan(tmp_path), "steps()")
    assert caught.value.exit_code == 3
    assert_nothing_left(temp)


def test_a_disk_that_is_full_before_the_run_begins_leaves_nothing_to_go_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(runfolder, "write_atomically", fill)
    a_plan = plan(tmp_path)
    with pytest.raises(PlacebenchError, match=r"no space left for .*: free some, then start the run again$"):
        run(a_plan, "steps()")
    assert not a_plan.folder.path.exists()


def test_a_folder_that_is_moved_meanwhile_is_one_line_and_goes_on_where_it_is(tmp_path: Path, temp: Path) -> None:
    a_plan = plan(tmp_path, placements="standard", step_timeout_s=2.0)
    moved = tmp_path / "moved"
    with pytest.raises(
        PlacebenchError, match=r"was moved or removed while the run went on: .* placebench run --resume$"
    ):
        run(a_plan, f"os.rename(os.path.dirname(os.path.dirname(trial)), {str(moved)!r}); time.sleep(300)")
    assert_nothing_left(temp)
    result, _ = run(resume_plan(moved, RunRequest()), "steps()")
    assert (result.done, result.total) == (1, 1)


def test_a_full_disk_ends_the_run_at_the_launch_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_plan = plan(tmp_path)
    monkeypatch.setattr("placebench.plan.checks.LEAST_FREE_BYTES", 1 << 60)
    with pytest.raises(PlacebenchError, match=r"no space left in .* MiB are needed.*--resume"):
        run(a_plan, "sys.exit(1)")
    assert statuses(a_plan.folder.path) == {"01-standard": "failed"}


def test_runs_beside_each_other_are_named_and_left_alone(tmp_path: Path, temp: Path) -> None:
    with running(drive(tmp_path / "a", "progress('step', 1); time.sleep(300)"), temp) as other:
        wait_for(lambda: list(tmp_path.glob("a/*/trials/01-standard/progress.json")))
        result, said = run(plan(tmp_path / "b"), "steps()")
        assert result.done == 2
        assert "another run goes on here" in said
        assert other.poll() is None
        other.send_signal(signal.SIGTERM)
        other.communicate(timeout=60)
    assert_nothing_left(temp)
