import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from launching import wait_for

from placebench.host import child
from placebench.host.processes import (
    TOKEN_VARIABLE,
    LaunchMark,
    ProcessId,
    kill_processes,
    launch_processes,
    oom_kills,
    ray_temp_dir,
)
from placebench.host.shared_memory import remove_segments


def test_oom_kills_are_added_up_over_what_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("nr_free_pages 5\noom_kill 3\n")
    (tmp_path / "memory.events").write_text("low 0\noom 7\noom_kill 2\noom_group_kill 9\n")
    (tmp_path / "other").write_text("nothing\n")
    names = ("vmstat", "memory.events", "other", "missing")
    assert oom_kills([tmp_path / name for name in names]) == 5
    assert oom_kills() >= 0


@pytest.mark.parametrize(
    ("temporary", "parent"),
    [("/scratch/me", "/scratch/me"), ("/scratch/jos\xe9", "/tmp"), ("/scratch/" + "x" * 22, "/tmp")],
)
def test_ray_has_a_folder_whose_path_it_can_take(monkeypatch: pytest.MonkeyPatch, temporary: str, parent: str) -> None:
    monkeypatch.setattr("tempfile.tempdir", temporary)
    assert ray_temp_dir("0123456789abcdef") == Path(parent, "pb-01234567")


def test_a_child_becomes_its_command_and_dies_with_its_parent(tmp_path: Path) -> None:
    program = f"""
import os, subprocess, sys, time
sleeper = [sys.executable, "-c", "import time; time.sleep(300)"]
process = subprocess.Popen([sys.executable, {child.__file__!r}, str(os.getpid()), *sleeper])
open({str(tmp_path / "pid")!r}, "w").write(str(process.pid))
time.sleep(300)
"""
    parent = subprocess.Popen([sys.executable, "-c", program])
    try:
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        pid = int((tmp_path / "pid").read_text())
        # It has no words at all while it becomes the other program.
        wait_for(lambda: b"time.sleep" in b"".join(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[2:3]))
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    wait_for(lambda: not Path(f"/proc/{pid}").exists() or "State:\tZ" in Path(f"/proc/{pid}/status").read_text())


def test_a_child_whose_parent_is_gone_starts_nothing() -> None:
    command = [sys.executable, child.__file__, "1" if os.getpid() != 1 else "2", "touch", "/nowhere/file"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "the process that started this one is gone\n"


def test_a_process_is_known_by_pid_and_start_time() -> None:
    mine = ProcessId.of(os.getpid())
    assert mine is not None
    assert mine == ProcessId.of(os.getpid())
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert ProcessId.of(done.pid) is None


def test_a_process_is_found_also_while_it_becomes_another_program(tmp_path: Path) -> None:
    again = tmp_path / "again.sh"
    again.write_text('exec sh "$0"\n')
    mark = LaunchMark("a-word-of-this-test", tmp_path / "none")
    process = subprocess.Popen(["sh", str(again)], env={**os.environ, TOKEN_VARIABLE: mark.token})
    try:
        found = [[one.pid for one in launch_processes(mark)] for _ in range(100)]
    finally:
        process.kill()
        process.wait()
    assert found == [[process.pid]] * 100


SEGMENT = """
import os, sys, time
from multiprocessing import shared_memory
import mmap
segment = shared_memory.SharedMemory(create=True, size=1000)
def mapped(name):
    with open(f"/dev/shm/{name}", "w+b") as file:
        file.truncate(1000)
        return mmap.mmap(file.fileno(), 1000)
maps = [mapped(f"nccl-test{os.getpid()}"), mapped(f"weights-of-test-{os.getpid()}")]
print(segment.name, flush=True)
time.sleep(300)
"""


def test_segments_of_shared_memory_of_killed_processes_are_removed_and_no_others() -> None:
    killed, other = (subprocess.Popen([sys.executable, "-c", SEGMENT], stdout=subprocess.PIPE, text=True) for _ in "ab")
    with killed, other:
        names = {one: Path("/dev/shm", one.stdout.readline().strip()) for one in (killed, other) if one.stdout}
        queues = {process: Path(f"/dev/shm/nccl-test{process.pid}") for process in (killed, other)}
        weights = [Path(f"/dev/shm/weights-of-test-{process.pid}") for process in (killed, other)]
        try:
            family = [psutil.Process(killed.pid), *psutil.Process(killed.pid).children(recursive=True)]
            assert len(family) == 2, "Python's tracker of what is shared"
            assert (
                kill_processes(lambda: [one for one in family if one.is_running() and one.status() != "zombie"]) == []
            )
            assert not names[killed].exists()
            assert not queues[killed].exists()
            assert names[other].exists()
            assert queues[other].exists()
            assert all(path.exists() for path in weights)
            remove_segments({names[other], queues[other], *weights})
            assert queues[other].exists()
        finally:
            other.kill()
            for path in (*queues.values(), *weights):
                path.unlink(missing_ok=True)


def test_killing_gives_up_on_what_does_not_die() -> None:
    class Stubborn(psutil.Process):
        def kill(self) -> None:
            """The kernel waits for a disk."""

    process = Stubborn(os.getpid())
    assert kill_processes(lambda: [process], patience_s=0.1) == [process]


def test_killing_waits_for_what_is_ending_though_nothing_tells_whose_it_is_any_more() -> None:
    class Slow(psutil.Process):
        def kill(self) -> None:
            """It takes its time: what it holds of a GPU is given back by its last thread."""

    # A zombie as soon as its first thread has ended, with neither arguments nor environment.
    program = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1.5,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""
    process = subprocess.Popen([sys.executable, "-c", program])
    wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
    assert process.poll() is None
    found: list[list[psutil.Process]] = [[Slow(process.pid)]]
    assert kill_processes(lambda: found.pop() if found else []) == []
    assert process.poll() == 0


def test_what_is_started_while_others_are_looked_at_is_killed_too() -> None:
    process = subprocess.Popen(["sleep", "300"])
    found = [[psutil.Process(process.pid)], []]
    assert kill_processes(lambda: found.pop() if found else []) == []
    assert process.wait() == -signal.SIGKILL


ORPHANS = """
import os, sys, time
from pathlib import Path
import psutil
from placebench.host.ownership import own_run
from placebench.host.processes import adopt_orphans
from placebench.run.processes import LaunchProcesses
adopt_orphans()
with own_run(Path(sys.argv[1])) as record, LaunchProcesses(record) as processes:
    # A shell would end by itself once what it waits for is killed.
    job = processes.start(["sh", "-c", "for i in 1 2 3; do (sleep 300 &); done; exec sleep 300"], Path(sys.argv[2]))
    while [child.name() for child in psutil.Process().children()].count("sleep") < 4:
        time.sleep(0.02)
print([child.status() for child in psutil.Process().children()], job.returncode)
"""


def test_orphans_that_were_adopted_are_no_zombies_once_they_are_killed(tmp_path: Path) -> None:
    """As the first process of a container adopts them."""
    command = [sys.executable, "-c", ORPHANS, str(tmp_path), str(tmp_path / "log")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (0, "[] -9\n"), done.stderr
