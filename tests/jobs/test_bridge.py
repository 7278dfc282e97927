"""The bridge to a job of the user's: how its launch begins and ends, and what it starts beside it."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fake_jobs import PLAIN, TRL, is_gone, prepare, python, read_end, rows, write

from placebench.errors import JobExit
from placebench.host.network import free_port
from placebench.jobs import bridge
from placebench.jobs.job_ray import ray_head
from placebench.record.end_file import STOPPED
from placebench.record.job_record import Companion
from placebench.record.launch_file import LaunchFile
from placebench.record.tail import JsonlTail
from placebench.run.failures import lacks_only

pytestmark = pytest.mark.usefixtures("bridge_in_this_process")


def is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("raise ValueError('no such model')", "failed", "ValueError: no such model"),
        ("import sys; sys.exit(7)", "failed", "the command ended with exit code 7 after 0 of 3 steps"),
        ("import sys; sys.exit('no GPU\\x1b[2J')", "failed", "after 0 of 3 steps: no GPU"),
        ("import os; os.kill(os.getpid(), 9)", "failed", "the command ended with SIGKILL after 0 of 3 steps"),
        ("print('torch.OutOfMemoryError: CUDA out of memory'); raise SystemExit(1)", "oom", "OutOfMemoryError: CUDA"),
        ("print('step:1 - timing_s/step:1.0')", "failed", "ended with exit code 0 after 1 of 3 steps"),
        ("print('hello')", "failed", "no step of a known format in train.log; name its log"),
        ("print('step:1 - timing_s/gen:1.0\\n' * 2, end='')", "failed", "after 1 of 3 steps"),
    ],
)
def test_a_job_that_ends_too_early_says_why(tmp_path: Path, text: str, kind: str, message: str) -> None:
    trial = prepare(tmp_path, *python(tmp_path, text))
    assert bridge.main(str(trial.path)) in (JobExit.FAILED, JobExit.OOM)
    end = read_end(trial)
    assert end["kind"] == kind
    assert message in end["message"]


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"log": {"format": "csv"}}, "names no column of steps"),
        ({"env": {"RANK": ""}, "devices": 2}, "exit code 0 after 0 of 3 steps"),
    ],
)
def test_what_cannot_be_read_ends_the_launch_with_its_reason(tmp_path: Path, job: dict[str, Any], message: str) -> None:
    text = "from placebench_attach import span\nwith span('gen'):\n    print('hello')"
    trial = prepare(tmp_path, *python(tmp_path, text), **job)
    assert bridge.main(str(trial.path)) != JobExit.DONE
    assert message in read_end(trial)["message"]


def test_a_job_that_ignores_sigterm_and_leaves_children_is_ended(tmp_path: Path) -> None:
    text = f"""
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", {str(tmp_path)!r}])
for step in range(1, 4):
    print(f"step:{{step}} - timing_s/step:0.01", flush=True)
time.sleep(300)
"""
    trial = prepare(tmp_path, *python(tmp_path, text))
    assert bridge.main(str(trial.path)) == JobExit.DONE
    assert is_gone(tmp_path)


def test_before_and_after_run_in_the_job_s_folder(tmp_path: Path) -> None:
    trial = prepare(
        tmp_path,
        *python(tmp_path, PLAIN, "0.01"),
        before="touch before-{round}",
        after=["sh", "-c", "touch after; rm {folder}/progress.json"],
    )
    assert bridge.main(str(trial.path)) == JobExit.DONE
    assert (tmp_path / "before-1").exists()
    assert (tmp_path / "after").exists()
    assert not trial.progress.exists()


def test_a_job_whose_before_fails_is_not_started(tmp_path: Path) -> None:
    trial = prepare(tmp_path, *python(tmp_path, PLAIN, "0.01"), before=["sh", "-c", "echo no cache; exit 3"])
    assert bridge.main(str(trial.path)) == JobExit.FAILED
    assert read_end(trial)["message"] == "before ended with exit code 3: no cache"
    assert rows(trial) == []


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (["sh", "-c", "echo no checkpoint; exit 1"], "after ended with exit code 1: no checkpoint"),
        (["sh", "-c", "exit 1", "a b"], "after ended with exit code 1: sh -c 'exit 1' 'a b'"),
    ],
)
def test_an_after_that_fails_is_told_behind_what_ended_the_launch(tmp_path: Path, after: list[str], why: str) -> None:
    failing = "print('torch.OutOfMemoryError: CUDA out of memory'); raise SystemExit(1)"
    trial = prepare(tmp_path, *python(tmp_path, failing), after=after)
    assert bridge.main(str(trial.path)) == JobExit.OOM
    assert read_end(trial)["message"] == f"OutOfMemoryError: CUDA out of memory; {why}"
    assert lacks_only(trial) is None
    done = prepare(tmp_path / "b", *python(tmp_path / "b", PLAIN, "0.01"), after=after)
    assert bridge.main(str(done.path)) == JobExit.FAILED
    assert (read_end(done)["message"], read_end(done)["after"]) == (None, why)
    assert lacks_only(done) == "its after command"


def test_a_signal_ends_the_job_too(tmp_path: Path) -> None:
    trial = prepare(tmp_path, *python(tmp_path, TRL), steps=900, warmup_steps=1)

    def stop() -> None:
        while not trial.steps.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    assert bridge.main(str(trial.path)) == 128 + signal.SIGINT
    assert not trial.end.exists()
    assert is_gone(tmp_path)


@pytest.mark.parametrize("which", range(3))
def test_a_signal_while_a_file_is_read_loses_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    marked = """
import time
from placebench_attach import span
while True:
    with span("step"), span("gen"):
        time.sleep(0.01)
"""
    read_lines, read = JsonlTail.read_lines, list[bytes]()

    def pressed(tail: JsonlTail) -> list[bytes]:
        lines = read_lines(tail)
        if len(read) <= which < len(read) + len(lines):
            os.kill(os.getpid(), signal.SIGTERM)
        read.extend(lines)
        return lines

    monkeypatch.setattr(JsonlTail, "read_lines", pressed)
    trial = prepare(tmp_path, *python(tmp_path, marked), devices=1, until_end=True, steps=9999)
    assert bridge.main(str(trial.path)) == JobExit.DONE
    assert read_end(trial)["message"] == STOPPED
    (written,) = trial.attached.glob("*.jsonl")
    assert len(rows(trial)) == written.read_text().count('"name": "step"') > 0
    assert is_gone(tmp_path)


def test_a_launch_counts_before_what_is_left_of_it_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial, seen = prepare(tmp_path, *python(tmp_path, PLAIN, "0.01")), list[tuple[Any, str | None]]()

    def look(*_: object) -> None:
        seen.append((read_end(trial)["kind"], lacks_only(trial)))

    monkeypatch.setattr(bridge, "kill_processes", look)
    assert bridge.main(str(trial.path)) == JobExit.DONE
    assert seen == [("done", "its end")]


def test_the_environment_is_the_job_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:1")
    text = """
import os
for step in range(1, 4):
    print(f"step:{step} - timing_s/step:0.01")
names = ("RAY_ADDRESS", "RAY_TMPDIR", "MINE", "OTHER")
open("seen", "w").write(" ".join(str(os.environ.get(name)) for name in names))
"""
    trial = prepare(
        tmp_path,
        *python(tmp_path, text),
        ray="own",
        env={"MINE": "{n_devices}", "OTHER": 1},
        placements={"standard": {"env": {"OTHER": "2"}}},
    )
    assert bridge.main(str(trial.path)) == JobExit.DONE
    assert (tmp_path / "seen").read_text() == f"None {tmp_path / 'ray'} 2 2"


HEAD = """#!{python}
import socket, sys, time
assert sys.argv[1:4] == ["start", "--head", "--block"], sys.argv
server = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
time.sleep(300)
"""


def test_a_ray_is_started_for_a_job_that_wants_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = write(tmp_path / "bin", "ray", HEAD.format(python=sys.executable))
    ray.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    text = f"import os, socket\nsocket.create_connection(os.environ['RAY_ADDRESS'].split(':'))\n{PLAIN}"
    command = python(tmp_path, text, "0.01", "{ray_address}")
    trial = prepare(tmp_path, *command, ray="own", address=f"127.0.0.1:{free_port()}")
    assert bridge.main(str(trial.path)) == JobExit.DONE, trial.log.read_text()
    assert is_gone(tmp_path)
    reaches = "import socket, sys; socket.create_connection(sys.argv[1].split(':'))"
    before = [sys.executable, "-c", reaches, "{ray_address}"]
    command = python(tmp_path / "d", PLAIN, "0.01")
    early = prepare(tmp_path / "d", *command, ray="own", before=before, address=f"127.0.0.1:{free_port()}")
    assert bridge.main(str(early.path)) == JobExit.DONE, early.log.read_text()
    ray.write_text(f"#!{sys.executable}\nprint('and more')\nraise OSError('no such host')\n")
    other = prepare(tmp_path / "b", *python(tmp_path / "b", text, "0.01", "{ray_address}"), ray="own")
    assert bridge.main(str(other.path)) == JobExit.FAILED
    assert read_end(other)["message"] == "ray start has ended: OSError: no such host: see ray.log"
    ray.unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    third = prepare(tmp_path / "c", *python(tmp_path / "c", text, "0.01", "{ray_address}"), ray="own")
    assert bridge.main(str(third.path)) == JobExit.FAILED
    assert read_end(third)["message"].startswith("there is no program ray on PATH to start the job's own Ray: ")


@pytest.mark.slow
def test_a_head_of_ray_starts_where_the_port_of_its_client_is_taken(tmp_path: Path) -> None:
    folder, log, port = tempfile.mkdtemp(), tmp_path / "log", free_port()  # a path that Ray's sockets have room for
    words = [str(Path(sys.executable).with_name("ray")), *ray_head(f"127.0.0.1:{port}", folder)[1:], "--num-cpus", "1"]
    with contextlib.ExitStack() as taken, log.open("wb") as stream:
        taken.callback(shutil.rmtree, folder)
        with contextlib.suppress(OSError):  # taken by another one already: as good
            taken.enter_context(socket.create_server(("127.0.0.1", 10001)))
        head = taken.enter_context(subprocess.Popen(words, stdout=stream, stderr=stream))
        taken.callback(head.terminate)
        client = int(words[words.index("--ray-client-server-port") + 1])
        while not is_listening(client):  # it ends in its first seconds where it cannot have that port
            assert head.poll() is None, log.read_text()
            time.sleep(0.05)


def test_a_job_whose_server_ends_is_ended_too(tmp_path: Path) -> None:
    trial = prepare(tmp_path, *python(tmp_path, "import time; time.sleep(300)"))
    asked = LaunchFile.read(trial.launch_file)
    assert asked.job
    server = Companion(name="server", command=(sys.executable, "-c", "import sys; sys.exit('no model')"), env={})
    asked.model_copy(update={"job": asked.job.model_copy(update={"companions": (server,)})}).write(trial.launch_file)
    assert bridge.main(str(trial.path)) == JobExit.FAILED
    assert read_end(trial)["message"] == "server ended with exit code 1: see server.log"
    assert (trial.path / "server.log").read_text() == "no model\n"
    assert is_gone(tmp_path)


@pytest.mark.parametrize("change", ["os.mkfifo(log)", "os.symlink('/dev/zero', log)", "os.mkdir(log)"])
@pytest.mark.parametrize("code", [0, 3])
def test_a_job_that_puts_something_else_in_place_of_its_log_is_told(tmp_path: Path, change: str, code: int) -> None:
    text = f"""
import os, sys
log = {str(tmp_path / "trial" / "train.log")!r}
os.unlink(log)
{change}
sys.exit({code})
"""
    trial = prepare(tmp_path, *python(tmp_path, text))
    assert bridge.main(str(trial.path)) == JobExit.FAILED
    assert "after 0 of 3 steps; something else is now in place of train.log" in read_end(trial)["message"]
