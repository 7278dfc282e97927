"""Figures that are drawn in forked processes, which only a process of a single thread may do: scripts of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launching import wait_for
from synthetic_run import SyntheticRun

from placebench.report.build import build_report

FORKED = """
import os, sys
from placebench.report.drawing import can_fork, forked, start_no_threads
start_no_threads()
import pandas
assert can_fork(), os.listdir("/proc/self/task")
"""

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one core, all is drawn in one process")


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "error", "-c", FORKED + code], capture_output=True, text=True)


def test_figures_of_forked_processes_are_those_of_one(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=2).write(tmp_path / "run")
    build_report(path, with_png=True)
    files = [path / "report.html", path / "report.md", *sorted((path / "plots").iterdir())]
    assert len(files) > 10
    before = [file.read_bytes() for file in files]
    for allowed in (2, 1, 0):
        for file in files:
            file.unlink()
        seen = tmp_path / f"forks-{allowed}"
        code = f"""
tried = []
def fork(fork=os.fork):
    tried.append(None)
    open({str(seen)!r}, "a").write("fork\\n")
    if len(tried) > {allowed}:
        raise BlockingIOError("no process more")
    return fork()
os.fork = fork
from placebench.cli import main
main(["report", {str(path)!r}, "--png"])
"""
        done = run(code)
        assert done.returncode == 0, done.stderr
        assert len(seen.read_text().splitlines()) == min(allowed + 1, 2)
        assert [file.read_bytes() for file in files] == before


@pytest.mark.parametrize(
    "host",
    [
        "",
        "del os.memfd_create  # as in a Python that was built for an old glibc",
        "def memfd_create(name):\n    raise PermissionError('not here')\nos.memfd_create = memfd_create",
    ],
)
def test_what_is_sent_arrives_with_and_without_files_in_memory(host: str) -> None:
    code = f"""
{host}
with forked(lambda receive: receive()) as other:
    other.send(("ink" * 1_000_000, True))
    print(other.result() == ("ink" * 1_000_000, True))
"""
    done = run(code)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_what_goes_wrong_in_a_forked_process_is_told() -> None:
    code = """
def fail(receive):
    raise ValueError(f"no {receive()}")
with forked(fail) as other:
    other.send("ink")
    try:
        other.result()
    except ValueError as error:
        print(error, *error.__notes__)
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no ink Traceback")
    assert "in fail" in done.stdout


def test_a_forked_process_that_is_killed_is_told() -> None:
    code = """
with forked(lambda receive: os.kill(os.getpid(), 9)) as other:
    other.send("nothing")
    try:
        other.result()
    except RuntimeError as error:
        print(error)
"""
    assert "ended early" in run(code).stdout


def test_no_forked_process_outlives_what_it_draws_for() -> None:
    code = """
import multiprocessing
try:
    with forked(lambda receive: receive()) as other:
        assert len(multiprocessing.active_children()) == 1
        raise KeyboardInterrupt
except KeyboardInterrupt:
    print(multiprocessing.active_children())
"""
    assert run(code).stdout.strip() == "[]"


def test_no_forked_process_outlives_one_that_is_killed(tmp_path: Path) -> None:
    code = f"""
import time
def wait(receive):
    open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
    time.sleep(300)
with forked(wait):
    time.sleep(300)
"""
    parent = subprocess.Popen([sys.executable, "-c", FORKED + code])
    try:
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    finally:
        parent.kill()
        parent.wait()
    status = Path(f"/proc/{(tmp_path / 'pid').read_text()}/status")
    wait_for(lambda: not status.exists() or "State:\tZ" in status.read_text(), seconds=60)


def test_a_process_with_threads_is_not_forked() -> None:
    code = """
import threading
done = threading.Event()
thread = threading.Thread(target=done.wait)
thread.start()
print(can_fork())
done.set()
thread.join()
"""
    assert run(code).stdout.strip() == "False"
