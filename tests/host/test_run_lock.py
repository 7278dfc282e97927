"""One process at a time works on a run, and a killed one keeps nobody out."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from invoking import invoke
from launching import plan, run, statuses
from synthetic_run import SyntheticRun, read_json

from placebench.errors import UsageError
from placebench.host.run_lock import is_held, lock_run
from placebench.record.folder import RunFolder
from placebench.record.writing import write_json

HOLD = """
import sys
from pathlib import Path
from placebench.host.run_lock import lock_run
from placebench.record.folder import RunFolder
with lock_run(RunFolder(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_resume_ends_with_one_line_until_the_first_is_killed(tmp_path: Path, own_temp: None) -> None:
    path = SyntheticRun(rounds=1).write(tmp_path / "run")
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        (path / "run.json").write_text("damaged")  # which nobody reads before the lock is held
        second = invoke("run", "--resume", path, "--dry-run")
        assert second.exit_code == 2
        said = f"placebench: {path}: process {holder.pid} on {os.uname().nodename} has worked on this run since 2"
        assert second.stderr.startswith(said)
        assert second.stderr.endswith("Z; stop that first\n")
        assert second.stderr.count("\n") == 1
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert "cannot read it as JSON" in invoke("run", "--resume", path, "--dry-run").stderr
    assert not (path / "lock").exists()


def test_a_new_run_is_locked_while_it_goes_on(tmp_path: Path, own_temp: None) -> None:
    body = """
    import fcntl
    with open(f"{trial}/../../lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            steps()
    """
    result, _ = run(plan(tmp_path, placements="standard"), body)
    assert statuses(result.folder) == {"01-standard": "done"}
    assert not (result.folder / "lock").exists()


def test_reading_needs_no_lock(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=1).write(tmp_path / "run")
    with lock_run(RunFolder(path)):
        assert invoke("show", path).exit_code == 0


def test_a_disk_without_locks_is_told_and_one_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    def read_only(*_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with lock_run(folder) as note:
        assert note == (
            f"{tmp_path / 'lock'}: this disk has no locks (No locks available): do not start a second --resume of"
            " the run while this one works"
        )
    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(UsageError, match="lock: cannot lock the run: Read-only file system"), lock_run(folder):
        pass


def test_who_holds_a_run_is_known_whatever_the_clock_is_set_to(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with lock_run(folder):
        assert is_held(folder)
        holder = read_json(folder.lock_file)
        write_json(folder.lock_file, holder | {"since": "2000-01-01T00:00:00+00:00"})
        assert is_held(folder)
        write_json(folder.lock_file, holder | {"start": holder["start"] - 1})
        assert is_held(folder) is False
    assert is_held(folder) is None
