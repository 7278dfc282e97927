"""What killed runs have left on the host: found again, ended, and nothing else touched."""

import errno
import json
import os
import pty
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from launching import Screen, assert_nothing_left, drive, processes_of, running, statuses, wait_for

from placebench.errors import PlacebenchError
from placebench.host import guardian
from placebench.host.ownership import live_runs, own_run, sweep
from placebench.host.signals import ENDING
from placebench.record.folder import RunFolder, Status, Trial
from placebench.record.writing import write_json

pytestmark = pytest.mark.usefixtures("temp_here")


def guardian_of(runner: "subprocess.Popen[str]") -> psutil.Process:
    return next(one for one in psutil.Process(runner.pid).children() if guardian.__file__ in one.cmdline())


def test_a_killed_runner_is_cleaned_up_by_its_guardian(tmp_path: Path, temp: Path) -> None:
    body = """
    leave_daemon()
    os.mkdir(launch["ray_temp_dir"] + "/session_x")
    progress("step", 1)
    time.sleep(300)
    """
    ours, terminal = pty.openpty()
    screen = Screen(ours)
    environment = {**os.environ, "TMPDIR": str(temp), "CI": "", "TERM": "xterm"}
    command = drive(tmp_path / "runs", body)
    with running(command, temp, start_new_session=True, stderr=terminal, env=environment) as runner:
        wait_for(lambda: list(tmp_path.glob("runs/*/trials/01-standard/progress.json")))
        folder = next((tmp_path / "runs").iterdir())
        wait_for(lambda: screen.shows("launch 1 of 2"))
        assert not screen.cursor_is_shown()
        waiting = guardian_of(runner)
        assert waiting.memory_info().rss < 32 << 20
        # What batch systems and terminals send to all processes before they kill: it waits on.
        for number in ENDING:
            waiting.send_signal(number)
        os.killpg(runner.pid, signal.SIGKILL)
        wait_for(lambda: not list(temp.glob("placebench-*")))
        wait_for(lambda: not waiting.is_running())
        assert screen.cursor_is_shown()
        os.close(ours)
        os.close(terminal)
    assert statuses(folder) == {"01-standard": "interrupted"}
    assert json.loads((folder / "run.json").read_text())["status"] == "interrupted"
    assert_nothing_left(temp)


def test_what_killed_a_runner_and_its_guardian_is_cleaned_up_by_the_next_command_and_nothing_else_is(
    tmp_path: Path, temp: Path
) -> None:
    foreign_ray = (sys.executable, "-c", "import time; time.sleep(300)", "gcs_server", "/tmp/ray/session_1/logs")
    with (
        running(foreign_ray, tmp_path / "elsewhere") as foreign,
        running(
            drive(tmp_path / "runs", "leave_daemon(); progress('step', 1); time.sleep(300)", sample_hz=5.0), temp
        ) as runner,
    ):
        wait_for(lambda: list(tmp_path.glob("runs/*/trials/01-standard/progress.json")))
        folder = next((tmp_path / "runs").iterdir())
        assert live_runs() == [folder]
        assert sweep() == []
        guardian_of(runner).kill()
        runner.kill()
        runner.wait()
        wait_for(lambda: not any("launch.json" in process for process in processes_of(temp)))
        assert len(processes_of(temp)) > 0, "the daemon outlives its parents"
        done = subprocess.run(
            [sys.executable, "-m", "placebench", "show", str(tmp_path / "nothing")],
            env={**os.environ, "TMPDIR": str(temp)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert f"cleaned up after {folder}" in done.stderr
        assert foreign.poll() is None
    assert statuses(folder) == {"01-standard": "interrupted"}
    assert json.loads((folder / "run.json").read_text())["status"] == "interrupted"
    assert_nothing_left(temp)


def test_a_recorded_pid_that_another_process_has_now_is_left_alone(tmp_path: Path, temp: Path) -> None:
    with running((sys.executable, "-c", "import time; time.sleep(300)"), tmp_path) as other:
        state = temp / f"placebench-{os.getuid()}" / "some-run-1"
        state.mkdir(parents=True)
        launch = {
            "token": secrets.token_hex(16),
            "ray_temp_dir": str(temp / "pb-00000000"),
            "processes": [[other.pid, 12345.0]],
        }
        content = {"schema_version": 1, "pid": 1, "run": str(tmp_path / "gone"), "launch": launch}
        (state / "owner.json").write_text(json.dumps(content))
        assert sweep() == [tmp_path / "gone"]
        assert other.poll() is None
    assert_nothing_left(temp)


@pytest.mark.parametrize(
    "content",
    ['{"x', "3", '"x"', '{"run": 3, "launch": null}', '{"run": "/x", "launch": {"token": 1}}', '{"run": "/x"}'],
)
def test_a_damaged_record_is_removed_and_stops_nothing(temp: Path, content: str) -> None:
    state = temp / f"placebench-{os.getuid()}" / "some-run-1"
    state.mkdir(parents=True)
    (state / "owner.json").write_text(content)
    assert live_runs() == []
    assert sweep() == []
    assert_nothing_left(temp)


def ended_by_a_full_disk(tmp_path: Path) -> tuple[RunFolder, Trial]:
    """A run and its launch that still say that they are running."""
    folder = RunFolder(tmp_path / "run")
    trial = folder.trial(1, "standard")
    trial.path.mkdir(parents=True)
    trial.set_status(Status.RUNNING)
    write_json(folder.run_file, {"status": "running"})
    with pytest.raises(OSError, match="full"), own_run(folder.path):
        raise OSError(errno.ENOSPC, "full")
    return folder, trial


def test_a_run_whose_end_could_not_be_written_is_marked_by_the_next_command(tmp_path: Path, temp: Path) -> None:
    folder, trial = ended_by_a_full_disk(tmp_path)
    assert live_runs() == []
    assert sweep() == [folder.path]
    assert trial.status is Status.INTERRUPTED
    assert json.loads(folder.run_file.read_text())["status"] == "interrupted"
    assert_nothing_left(temp)


def test_the_record_is_kept_whole_by_many_at_once(tmp_path: Path, temp: Path) -> None:
    program = """
import sys
from pathlib import Path
from placebench.host import guardian
from placebench.host.ownership import live_runs, own_run, sweep
for number in range(150):
    with own_run(Path(sys.argv[1])) as record:
        assert Path(sys.argv[1]) in live_runs()
        assert sweep() == []
"""
    commands = [(sys.executable, "-c", program, str(tmp_path / str(number))) for number in range(6)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    assert [process.communicate(timeout=540)[1] for process in processes] == [""] * 6
    assert_nothing_left(temp)


def test_only_a_rays_own_folder_is_removed(tmp_path: Path, temp: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    state = temp / f"placebench-{os.getuid()}" / "some-run-1"
    state.mkdir(parents=True)
    launch = {"token": secrets.token_hex(16), "ray_temp_dir": str(precious), "processes": []}
    (state / "owner.json").write_text(json.dumps({"run": str(tmp_path / "gone"), "launch": launch}))
    sweep()
    assert precious.is_dir()


def test_a_state_folder_of_another_user_is_refused(tmp_path: Path, temp: Path) -> None:
    (temp / f"placebench-{os.getuid()}").symlink_to(tmp_path)
    with pytest.raises(PlacebenchError, match="belongs to another user"), own_run(tmp_path / "run"):
        raise AssertionError


def test_a_run_that_a_full_disk_keeps_from_being_marked_is_marked_later(
    tmp_path: Path, temp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, trial = ended_by_a_full_disk(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr("placebench.host.ownership.mark_interrupted", full)
        assert sweep() == []
    assert sweep() == [folder.path]
    assert trial.status is Status.INTERRUPTED
    assert_nothing_left(temp)
