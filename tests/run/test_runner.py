import errno
import json
import os
import pty
import re
import signal
from contextlib import AbstractContextManager, ExitStack
from io import StringIO
from pathlib import Path
from typing import NoReturn

import psutil
import pytest
from click.testing import CliRunner
from launching import Screen, assert_nothing_left, drive, job, pass_time, plan, run, running, statuses, wait_for

from placebench.cli import main
from placebench.compare.comparison import compare_run
from placebench.compare.measure.precision import headline_width
from placebench.errors import InterruptedRunError, PlacebenchError, TimeLimitError, UsageError
from placebench.host import guardian
from placebench.host.ownership import own_run
from placebench.plan.request import RunRequest
from placebench.plan.resume import resume_plan
from placebench.record import writing
from placebench.record.folder import RunFolder, Status
from placebench.record.run_file import read_run_file
from placebench.record.writing import read_jsonl
from placebench.report.summary import summarize
from placebench.run.display import PlainDisplay
from placebench.run.runner import MeasuredSoFar, execute

pytestmark = pytest.mark.usefixtures("temp_here")


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


def test_a_damaged_file_of_an_earlier_launch_ends_no_run(tmp_path: Path, temp: Path) -> None:
    def unreadable(*_: object) -> NoReturn:
        raise UsageError("trials/01-split/steps.jsonl, line 2: cannot read it as JSON")

    said = StringIO()
    a_plan = plan(tmp_path, rounds="auto", max_rounds=4, workload={"warmup_steps": 0})
    display = PlainDisplay(said, pause_s=0)
    result = execute(a_plan, ["run"], display, MeasuredSoFar(unreadable, best_steps=unreadable), job("steps()"))
    assert (result.done, result.total, result.failures) == (8, 8, ())
    assert json.loads((result.folder / "run.json").read_text())["status"] == "done"
    assert said.getvalue().count("launches keep 6 steps, which cannot be chosen: trials/01-split/steps.jsonl") == 1
    assert said.getvalue().count("no round is added after 4: trials/01-split/steps.jsonl, line 2: cannot read") == 1
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


def test_what_a_finished_job_leaves_is_ended(tmp_path: Path, temp: Path) -> None:
    result, _ = run(plan(tmp_path), "leave_daemon(); steps(); os.mkdir(launch['ray_temp_dir'] + '/session_x')")
    assert result.done == 2
    assert_nothing_left(temp)


@pytest.mark.parametrize(
    ("number", "action"), [(signal.SIGINT, "SIG_IGN"), (signal.SIGTERM, "SIG_DFL"), (signal.SIGUSR1, "SIG_DFL")]
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
        runner.send_signal(number)
        output, _ = runner.communicate(timeout=60)
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


def test_the_time_limit_ends_the_run(tmp_path: Path, temp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
    steps()
    if case == "1 split":
        print("working\\nTraceback (most recent call last):\\n  of being stopped", flush=True)
        time.sleep(300)
    """
    pass_time(monkeypatch, lambda: any("working" in log.read_text() for log in tmp_path.rglob("train.log")))
    result, _ = run(plan(tmp_path, time_limit_s=600.0), body)
    assert statuses(result.folder) == {"01-standard": "done", "01-split": "interrupted"}
    error = RunFolder(result.folder).trial(1, "split").error.read_text()
    assert "working" in error
    assert "Traceback" not in error
    with pytest.raises(TimeLimitError, match="1 of 2 launches are done"):
        result.raise_unless_done()
    assert_nothing_left(temp)


def test_a_run_that_ends_early_tells_what_had_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
    if case == "1 standard":
        sys.exit(7)
    print("working", flush=True)
    time.sleep(300)  # the limit ends it at once
    """
    pass_time(monkeypatch, lambda: any("working" in log.read_text() for log in tmp_path.rglob("train.log")))
    result, _ = run(plan(tmp_path, time_limit_s=600.0), body)
    why = r"0 of 2 launches are done, 1 failed, the first with: failed, the job ended with exit code 7 \(see .*; go on"
    with pytest.raises(TimeLimitError, match=why):
        result.raise_unless_done()


def test_no_space_left_is_one_line_and_loses_nothing(
    tmp_path: Path, temp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replacing = writing.replacing

    def fill(path: Path) -> AbstractContextManager[Path]:
        if "01-split" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replacing(path)

    monkeypatch.setattr(writing, "replacing", fill)
    a_plan = plan(tmp_path)
    with pytest.raises(PlacebenchError, match=r"no space left for .*--resume") as caught:
        run(a_plan, "steps()")
    assert len(str(caught.value).splitlines()) == 1
    assert RunFolder(a_plan.folder.path).trial(1, "standard").status is Status.DONE
    assert json.loads(a_plan.folder.run_file.read_text())["status"] == "failed"
    assert_nothing_left(temp)


def test_what_an_error_ends_does_not_say_that_it_runs(tmp_path: Path, temp: Path) -> None:
    a_plan = plan(tmp_path)
    with pytest.raises(PlacebenchError, match=r"error\.txt: Is a directory: check the disk, then go on with"):
        run(a_plan, "os.mkdir(f'{trial}/error.txt'); sys.exit(1)")
    assert statuses(a_plan.folder.path) == {"01-standard": "interrupted"}
    assert_nothing_left(temp)


def test_a_disk_that_becomes_read_only_is_one_line(tmp_path: Path, temp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replacing = writing.replacing

    def refuse(path: Path) -> AbstractContextManager[Path]:
        if "01-split" in str(path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return replacing(path)

    monkeypatch.setattr(writing, "replacing", refuse)
    with pytest.raises(PlacebenchError, match=r"01-split.*: Read-only file system: check the disk.*--resume") as caught:
        run(plan(tmp_path), "steps()")
    assert caught.value.exit_code == 3
    assert_nothing_left(temp)


def test_a_disk_that_is_full_before_the_run_begins_leaves_nothing_to_go_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(path: Path) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writing, "replacing", fill)
    a_plan = plan(tmp_path)
    with pytest.raises(PlacebenchError, match=r"no space left for .*: free some, then start the run again$"):
        run(a_plan, "steps()")
    assert not a_plan.folder.path.exists()


@pytest.mark.parametrize(
    ("lost", "then", "said"),
    [
        (
            "trial",
            "time.sleep(300)",
            r"/01-standard was moved or removed while the run went on: go on with .* --resume",
        ),
        ("trial", "sys.exit(1)", r"/01-standard was moved or removed while the run went on: go on with .* --resume"),
        ("trial", "steps()", r"/01-standard was moved or removed while the run went on: go on with .* --resume"),
        ("trials", "time.sleep(300)", r"/trials was moved or removed while the run went on: go on with .* --resume"),
        (
            "folder",
            "time.sleep(300)",
            r"-split was moved or removed while the run went on: go on with placebench run --resume where",
        ),
    ],
)
def test_a_folder_that_vanishes_meanwhile_is_one_line(
    tmp_path: Path, temp: Path, lost: str, then: str, said: str
) -> None:
    body = f"""
    import shutil
    leave_daemon()
    trials = os.path.dirname(trial)
    folder = os.path.dirname(trials)
    shutil.rmtree({lost})
    {then}
    """
    with pytest.raises(PlacebenchError, match=said) as caught:
        run(plan(tmp_path), body)
    assert caught.value.exit_code == 3
    assert len(str(caught.value).splitlines()) == 1
    assert_nothing_left(temp)


def test_a_run_started_in_a_folder_that_is_gone_starts_nothing(
    tmp_path: Path, own_temp: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    for out in ([], ["--out", str(tmp_path / "runs")]):
        done = CliRunner().invoke(main, ["run", "--devices", "cpu:2", *out])
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr == "placebench: the working directory no longer exists: cd to one that does\n"
    assert list(tmp_path.iterdir()) == []


def test_a_working_directory_that_vanishes_meanwhile_is_one_line(
    tmp_path: Path, temp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    with pytest.raises(PlacebenchError, match=r"^the working directory was moved or removed .*: cd to one that exists"):
        run(plan(tmp_path / "runs"), f"steps(); os.rmdir({str(here)!r})")
    assert set(statuses(next((tmp_path / "runs").iterdir())).values()) == {"done"}
    assert_nothing_left(temp)


def test_ctrl_z_stops_the_launch_with_the_runner_and_gives_the_cursor_back(tmp_path: Path, temp: Path) -> None:
    body = f"""
    leave_daemon()
    for step in range(1, count + 1):
        progress("step", step, ["gen"])
        while step == 1 and not os.path.exists({str(tmp_path / "go")!r}):
            time.sleep(0.02)
        end_step(step)
    """
    ours, terminal = pty.openpty()
    changes = {"placements": "standard", "sample_hz": 20.0, "step_timeout_s": 600.0, "time_limit_s": 600.0}
    environment = {**os.environ, "TMPDIR": str(temp), "CI": "", "TERM": "xterm"}
    with running(drive(tmp_path / "runs", body, **changes), temp, stderr=terminal, env=environment) as runner:
        screen = Screen(ours)
        wait_for(lambda: screen.shows("step 1/2: gen"))
        one = psutil.Process(runner.pid)
        of_launch = [other for other in one.children(recursive=True) if guardian.__file__ not in other.cmdline()]
        os.kill(runner.pid, signal.SIGTSTP)
        wait_for(lambda: one.status() == psutil.STATUS_STOPPED)
        assert {other.status() for other in of_launch} == {psutil.STATUS_STOPPED}
        assert screen.cursor_is_shown()
        os.kill(runner.pid, signal.SIGCONT)
        (tmp_path / "go").touch()
        assert runner.wait(60) == 0
        assert screen.shows("by Ctrl-Z in step 1/2: gen: steps during which it was stopped are not compared")
        assert screen.cursor_is_shown()
        os.close(ours)
        os.close(terminal)
    trial = RunFolder(next((tmp_path / "runs").iterdir())).trial(1, "standard")
    (pause,) = read_jsonl(trial.pauses)
    assert 0 < pause["end_mono"] - pause["start_mono"] < 60
    assert_nothing_left(temp)


def test_a_folder_that_is_moved_meanwhile_is_one_line_and_goes_on_where_it_is(tmp_path: Path, temp: Path) -> None:
    a_plan = plan(tmp_path, placements="standard")
    moved = tmp_path / "moved"
    with pytest.raises(
        PlacebenchError, match=r"removed while the run went on: .* placebench run --resume where it is now$"
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
        assert said.count("another run is going on here") == 1
        assert [launch.other_runs for launch in read_run_file(RunFolder(result.folder)).launches] == [1, 1]
        assert other.poll() is None
        other.send_signal(signal.SIGTERM)
        other.communicate(timeout=60)
    assert_nothing_left(temp)


def test_another_run_is_kept_with_the_launches_that_it_went_on_beside(tmp_path: Path, temp: Path) -> None:
    with ExitStack() as other:
        starts = iter([lambda: other.enter_context(own_run(tmp_path / "other")), other.close])

        def after_a_launch(*_: object) -> None:
            next(starts, lambda: None)()

        said = StringIO()
        a_plan, display = plan(tmp_path / "runs", rounds=2), PlainDisplay(said, pause_s=0)
        result = execute(a_plan, ["run"], display, MeasuredSoFar(headline_width, after_a_launch), job("steps()"))
    assert said.getvalue().count(f"another run is going on here ({tmp_path / 'other'}): each slows the other down") == 1
    assert [launch.other_runs for launch in read_run_file(RunFolder(result.folder)).launches] == [0, 1, 0, 0]
    told = "Another run of placebench went on beside split in round 1: each slows the other down."
    assert told in summarize(compare_run(result.folder)).warnings
