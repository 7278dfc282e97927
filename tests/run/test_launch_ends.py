"""How launches that fail end, and what is said of them."""

import json
import resource
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from launching import assert_nothing_left, count_silence, pass_time, plan, run, statuses

from placebench.errors import JobExit, LaunchError
from placebench.jobs.job import Job
from placebench.jobs.spec import JobSpec
from placebench.record.end_file import EndFile
from placebench.record.folder import ENDED, TRACING, RunFolder, Status, Trial
from placebench.record.progress import Progress
from placebench.run import launch as launches
from placebench.run.failures import LaunchEnd, explain, write_end
from placebench.sessions.ray_cluster.discovery import Cluster
from placebench.spec.bound import bind
from placebench.spec.devices import with_labels

pytestmark = pytest.mark.usefixtures("temp_here")


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ("sys.exit(11)", "oom", "exit code 11"),
        ("sys.exit(12)", "device_lost", "exit code 12"),
        ("sys.exit(7)", "failed", "exit code 7"),
        ("end_step(1); sys.exit(0)", "failed", "after 1 of 2 steps"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "failed", "killed by SIGKILL"),
        ("os.kill(os.getpid(), 40)", "failed", "killed by signal 40"),
        (
            "fail(10, 'failed', 'SomeError: it broke', 'Traceback\\n  x\\na.b.SomeError: it broke\\n')",
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
    cluster = Cluster(address="10.0.0.1:6379", placement_timeout_s=60.0, nodes=())
    result, _ = run(replace(plan(tmp_path), cluster=cluster), NO_HEAD)
    assert statuses(result.folder) == {"01-standard": "device_lost"}
    with pytest.raises(LaunchError, match=r"Ray cluster no longer answers \(--ray-address 10\.0\.0\.1:6379\)"):
        result.raise_unless_done()


def test_the_error_names_the_device_and_shows_a_traceback_once(tmp_path: Path) -> None:
    body = """
    text = "Traceback (most recent call last):\\n  File x\\nray.exceptions.ActorDiedError: it died\\n  pid: 42\\n"
    print("step:1 - a:1\\n" + text, flush=True)
    fail(10, "failed", "ActorDiedError: it died (worker of cpu:1)", text + "advice of the job", device="cpu:1")
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


@pytest.mark.parametrize(
    ("printed", "limit", "said"),
    [
        ("MemoryError", (resource.RLIMIT_AS, 3 << 30), "the address space of a process is limited to 3,072 MiB by"),
        ("OSError: [Errno 27] File too large", (resource.RLIMIT_FSIZE, 600 << 20), "the size of a file is limited to"),
        (
            "OSError: [Errno 24] Too many open files",
            (resource.RLIMIT_NOFILE, 99),
            "the number of open files is limited to 99",
        ),
        ("RuntimeError: can't start new thread", (resource.RLIMIT_NPROC, 200), "the number of processes and threads"),
    ],
)
def test_a_limit_that_a_launch_has_run_into_is_its_headline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, limit: tuple[int, int], said: str
) -> None:
    get = resource.getrlimit
    monkeypatch.setattr(resource, "getrlimit", lambda number: (limit[1],) * 2 if number == limit[0] else get(number))
    code, kind = (JobExit.OOM, "oom") if printed == "MemoryError" else (JobExit.FAILED, "failed")
    result, _ = run(plan(tmp_path, placements="standard"), f"fail({code}, {kind!r}, {printed!r}, 'Traceback')")
    assert result.failures[0][1].startswith(f"{kind}, {said}")
    assert result.failures[0][1].endswith(f": {printed}")
    advice = RunFolder(result.folder).trial(1, "standard").error.read_text().splitlines()[1]
    assert advice.startswith("what to do: run ulimit -")


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("OutOfMemoryError: Task was killed due to the node running low on memory", "the memory of the host ran out"),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "lower batch.micro_batch_tokens"),
    ],
)
def test_what_to_do_about_memory_fits_whose_it_was(tmp_path: Path, message: str, advice: str) -> None:
    trial = Trial(tmp_path)
    a_plan = plan(tmp_path / "runs")
    devices = tuple(replace(device, kind="gpu") for device in a_plan.devices)
    bound = bind(a_plan.placements[0].placement, devices)
    write_end(trial, LaunchEnd(Status.OOM, message), replace(a_plan, devices=devices, placements=(bound,)), bound)
    lines = trial.error.read_text().splitlines()
    assert lines[1].startswith(f"what to do: {advice}")
    assert ("--- memory by device ---" in lines) == ("CUDA" in message)


@pytest.mark.parametrize("kind", [JobExit.DONE, JobExit.OOM, JobExit.FAILED])
def test_what_never_ends_after_a_failure_does_not_hide_it(tmp_path: Path, kind: JobExit) -> None:
    trial, silent = Trial(tmp_path), LaunchEnd(Status.TIMEOUT, "no progress")
    assert explain(trial, silent, ()) == silent
    EndFile(kind=kind, message="Error: bad").write(trial)
    failed = LaunchEnd(Status.OOM if kind is JobExit.OOM else Status.FAILED, "Error: bad")
    assert explain(trial, silent, ()) == (silent if kind is JobExit.DONE else failed)


@pytest.mark.parametrize(
    ("status", "why"),
    [(Status.TIMEOUT, "no progress for 9 s (after the end)"), (Status.INTERRUPTED, "the time limit has passed")],
)
def test_an_after_that_is_cut_off_is_told_beside_why_the_command_failed(
    tmp_path: Path, status: Status, why: str
) -> None:
    trial, cut = Trial(tmp_path), LaunchEnd(status, why)
    Progress(stage=ENDED, step=2, steps=3).write(trial)
    assert explain(trial, cut, ()) == cut  # that of a command which this end has ended
    EndFile(kind=JobExit.FAILED, message="Error: bad").write(trial)
    assert explain(trial, cut, ()) == LaunchEnd(Status.FAILED, f"Error: bad; the after command was cut off: {why}")


def test_a_job_that_is_stopped_is_not_said_to_have_failed_by_it(tmp_path: Path) -> None:
    trial, stopped = Trial(tmp_path), LaunchEnd(Status.INTERRUPTED, "stopped by SIGTERM")
    EndFile(kind=JobExit.FAILED, message="Error: stopped").write(trial)
    assert explain(trial, stopped, ()) == stopped


@pytest.mark.parametrize("whose", ["CUDA", "HIP", "NCCL"])
def test_a_job_of_the_user_s_out_of_memory_has_the_figures_that_there_are(tmp_path: Path, whose: str) -> None:
    trial = Trial(tmp_path)
    a_plan = plan(tmp_path / "runs")
    devices = tuple(replace(device, kind="gpu") for device in a_plan.devices)
    bound = bind(a_plan.placements[0].placement, devices)
    sample = {"kind": "sample", "device": devices[0].id, "memory_bytes": 900 << 20}
    trial.device_samples.write_text(json.dumps(sample) + "\n")
    job = replace(a_plan, work=Job(JobSpec(command=("true",))), devices=devices, placements=(bound,))
    write_end(trial, LaunchEnd(Status.OOM, f"RuntimeError: {whose} error: out of memory"), job, bound)
    lines = trial.error.read_text().splitlines()
    assert "batch.micro_batch_tokens" not in lines[1]
    assert lines[1].endswith("; figures below")
    assert lines[3:] == [
        "--- memory by device ---",
        f"{with_labels(devices[0].id, devices)}: in use 900 MiB at the last sample, 900 MiB at most",
    ]


def test_a_launch_out_of_memory_says_who_held_it_and_what_would_help(tmp_path: Path) -> None:
    body = """
    rows = [{"kind": "sample", "device": "cpu:0", "util": 1.0, "memory_bytes": size << 20} for size in (300, 900, 700)]
    open(f"{trial}/devices.jsonl", "w").write("".join(json.dumps(row) + "\\n" for row in rows))
    span = {"device": "cpu:1", "memory_peak_bytes": 5 << 20, "memory_reserved_bytes": 6 << 20}
    open(f"{trial}/spans.jsonl", "w").write(json.dumps(span) + "\\n")
    allocator = {"process": "139.10 GiB", "allocated": "90.50 GiB", "reserved": "1.25 GiB"}
    message = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    fail(11, "oom", message, f"torch.{message}", allocator=allocator, held="cpu:1 in ref: actor: weights 1 MiB")
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
    assert "held by cpu:1 in ref: actor: weights 1 MiB" in lines
    assert "would lower the estimate: --set batch.micro_batch_tokens=192: about " in error


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("steps.jsonl", "no JSON\n"),
        ("steps.jsonl", '{"step": 1, "metrics": 3}\n'),
        ("devices.jsonl", "null\n"),
        ("devices.jsonl", '{"kind": "sample"}\n'),
        ("progress.json", "[3]"),
        ("progress.json", '{"step": null}'),
    ],
)
def test_a_file_that_something_else_writes_into_costs_no_more_than_its_launch(
    tmp_path: Path, temp: Path, name: str, text: str
) -> None:
    body = f"""
    steps()
    if case == "1 standard":
        open(f"{{trial}}/{name}", "w").write({text!r})
    """
    result, _ = run(plan(tmp_path), body)
    is_only_unknown = name == "progress.json" and "step" not in text
    assert statuses(result.folder) == {"01-split": "done", "01-standard": "done" if is_only_unknown else "failed"}
    assert all("holds what no job writes" in reason for _, reason in result.failures)
    assert_nothing_left(temp)


def test_a_job_without_progress_is_given_up(tmp_path: Path, temp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    leave_daemon()
    print("still here", flush=True)
    progress("step", 1, ["update_actor"])
    while case == "1 standard":
        print("still here", flush=True)
        time.sleep(0.1)
    steps()
    """
    count_silence(monkeypatch, lambda trial, state: trial.path.name == "01-standard" and state.step)
    result, _ = run(plan(tmp_path, step_timeout_s=0.5), body)
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
        ("time.sleep(300)", {"step_timeout_s": 0.5}, "no progress for "),
        ("time.sleep(300)", {"time_limit_s": 600.0}, "the time limit has passed"),
    ],
)
def test_a_trace_that_fails_costs_only_the_trace(
    tmp_path: Path, temp: Path, monkeypatch: pytest.MonkeyPatch, end: str, changes: dict[str, Any], reason: str
) -> None:
    count_silence(monkeypatch, lambda trial, state: state.stage == TRACING)
    if "time_limit_s" in changes:
        pass_time(monkeypatch, lambda: any(TRACING in file.read_text() for file in tmp_path.rglob("progress.json")))
    body = f"""
    steps()
    progress("trace kernels", count)
    {end}
    fail(11, "oom", error, "Traceback\\n" + error + "\\n")
    """
    result, said = run(plan(tmp_path, placements="standard", **changes), body)
    result.raise_unless_done()
    assert statuses(result.folder) == {"01-standard": "done"}
    (note,) = (line for line in said.splitlines() if line.startswith("note: the launch"))
    assert note.startswith(f"note: the launch counts, though the trace of its kernels failed: {reason}")
    assert note.endswith("/trials/01-standard)")
    assert_nothing_left(temp)


@pytest.mark.parametrize("end", ["signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)", "sys.exit(10)"])
def test_a_launch_counts_whose_steps_are_done_though_its_job_does_not_end_in_order(
    tmp_path: Path, temp: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(launches, "_STOP_PATIENCE_S", 0.3)
    monkeypatch.setattr(launches, "_JOB_GRACE_S", 0.1)
    body = f"leave_daemon(); steps(); progress('stop', count); {end}"
    result, said = run(plan(tmp_path, placements="standard", step_timeout_s=600.0), body)
    result.raise_unless_done()
    assert statuses(result.folder) == {"01-standard": "done"}
    assert "note: the launch counts, though its end failed: " in said
    assert_nothing_left(temp)


def test_a_cluster_that_changes_while_kernels_are_traced_ends_the_run(tmp_path: Path) -> None:
    body = f"steps()\nprogress('trace kernels', count)\nsys.exit({JobExit.NODE_LOST})"
    result, _ = run(plan(tmp_path), body)
    assert statuses(result.folder) == {"01-standard": "device_lost"}
    with pytest.raises(LaunchError, match="1 of 2 launches failed"):
        result.raise_unless_done()
