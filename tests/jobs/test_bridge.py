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
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_jobs import PLAIN, TRL, VERL, VERL_WITH_SPANS, prepare, read_end, write

from placebench.errors import JobExit
from placebench.host.network import free_port
from placebench.jobs import bridge, log_steps
from placebench.jobs.places import ray_head
from placebench.record.folder import Trial, read_jsonl
from placebench.record.job_record import Companion, LogRecord
from placebench.record.launch_file import LaunchFile


@pytest.fixture(autouse=True)
def _same_signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The bridge is a process of its own and takes SIGTERM; here it is a function."""
    monkeypatch.setattr(bridge, "_GRACE_S", 0.1)
    monkeypatch.setattr(bridge, "_END_S", 0.3)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def python(folder: Path, text: str, *arguments: str) -> list[str]:
    return [sys.executable, str(write(folder, "job.py", text)), *arguments]


def rows(trial: Trial) -> list[dict[str, float]]:
    return [row["metrics"] for row in read_jsonl(trial.steps)]


def is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def is_gone(folder: Path) -> bool:
    """Whether no process of a launch is left that names its folder."""
    return not [one for one in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(one.info["cmdline"] or ())]


def test_steps_of_a_job_become_rows_and_spans(tmp_path: Path) -> None:
    trial = prepare(tmp_path, *python(tmp_path, VERL), job="verl", steps=4)
    assert bridge.main(str(trial.path)) == JobExit.DONE
    assert read_end(trial)["kind"] == "done"
    found = list(read_jsonl(trial.steps))
    assert [row["step"] for row in found] == [1, 2, 3, 4]
    assert found[2]["metrics"]["timing_s/step"] == pytest.approx(0.011)
    assert found[2]["metrics"]["actor/grad_norm"] == 0.5
    assert found[2]["metrics"]["perf/total_num_tokens"] == 1000
    spans = list(read_jsonl(trial.spans))
    assert [(span["step"], span["phase"], span["device"]) for span in spans] == [
        (step, "step", "controller") for step in (1, 2, 3, 4)
    ]
    assert all(span["end_mono"] - span["start_mono"] == pytest.approx(0.011) for span in spans)
    assert all(one["end_mono"] <= other["end_mono"] for one, other in pairwise(spans))
    record = LogRecord.read(trial)
    assert record
    assert (record.framework, record.format) == ("verl", "verl-jsonl")


def test_a_job_that_trains_on_is_ended_after_its_steps(tmp_path: Path) -> None:
    trial = prepare(tmp_path, *python(tmp_path, TRL), job="trl", devices=1, steps=5)
    assert bridge.main(str(trial.path)) == JobExit.DONE
    found = rows(trial)
    assert len(found) == 5
    # The log counts from the start of the run, and its first line has none before it.
    assert [row.get("perf/total_num_tokens") for row in found] == [None, 500, 500, 500, 500]
    record = LogRecord.read(trial)
    assert record
    assert {flag.name for flag in record.flags} >= {"trl-step-time", "trl-cumulative-tokens"}
    assert is_gone(tmp_path)


def test_steps_that_the_hooks_time_count_as_they_are_and_what_the_log_lacks_is_not_told(tmp_path: Path) -> None:
    text = """
from placebench_attach.spans import emit
for line in range(1, 4):
    emit("step", "timer", 10.0 * line, 10.0 * line + 5.0)
    print({"loss": 0.1, "num_tokens": 500.0 * line, "step_time": 0.01, "epoch": 0.1 * line}, flush=True)
"""
    trial = prepare(tmp_path, *python(tmp_path, text), job="trl", devices=1)
    assert bridge.main(str(trial.path)) == JobExit.DONE
    assert [row["timing_s/step"] for row in rows(trial)] == [5.0] * 3
    record = LogRecord.read(trial)
    assert record
    assert {flag.name for flag in record.flags} == {"trl-cumulative-tokens"}


@pytest.mark.parametrize(("steps", "logged", "tokens"), [(4, [2, 4], [4]), (1, [], []), (5, [2, 4], [4])])
def test_a_trainer_that_logs_every_other_step_has_all_of_them(
    tmp_path: Path, steps: int, logged: list[int], tokens: list[int]
) -> None:
    text = f"""
import pathlib, time
from placebench_attach.spans import emit
written = pathlib.Path({str(tmp_path / "trial" / "steps.jsonl")!r})
for step in range(1, {steps + 1}):
    emit("trainer_step", "timer", 10.0 * step, 10.0 * step + 5.0)
    if step % 2 == 0:
        emit("logged", "timer", 10.0 * step + 5.5, 10.0 * step + 5.5)
        print({{"loss": 0.1, "num_tokens": 250.0 * step, "step_time": 0.01, "epoch": 0.1 * step}}, flush=True)
while not written.exists() or written.read_text().count("\\n") < {steps}:
    time.sleep(0.01)  # all of them are known before it ends
"""
    trial = prepare(tmp_path, *python(tmp_path, text), job="trl", devices=1, steps=steps)
    assert bridge.main(str(trial.path)) == JobExit.DONE
    found = rows(trial)
    assert [row["timing_s/step"] for row in found] == [5.0] * steps
    assert [step for step, row in enumerate(found, 1) if "loss" in row] == logged
    record = LogRecord.read(trial)
    assert (record.format, record.is_one_step) == ("trl" if logged else "spans", False)
    # Tokens are counted from line to line, and are those of a step, not of all since the last line.
    assert [step for step, row in enumerate(found, 1) if row.get("perf/total_num_tokens") == 250.0] == tokens


def test_steps_without_a_time_last_from_line_to_line(tmp_path: Path) -> None:
    text = f"""
import pathlib, time
steps = pathlib.Path({str(tmp_path / "trial" / "steps.jsonl")!r})
for n in range(1, 4):
    time.sleep(0.12)
    print(f"step:{{n}} - loss:0.5", flush=True)
    while n < 3 and (not steps.exists() or steps.read_text().count("\\n") < n):
        time.sleep(0.01)  # a line that is read late would make the next step short
"""
    trial = prepare(tmp_path, *python(tmp_path, text), log={"format": "verl"})
    assert bridge.main(str(trial.path)) == JobExit.DONE
    assert all(row["timing_s/step"] > 0.12 for row in rows(trial)[1:])


def test_what_is_printed_counts_where_the_named_file_does_not_come(tmp_path: Path) -> None:
    trial = prepare(tmp_path, *python(tmp_path, PLAIN, "0.01"), log={"files": ["{folder}/never.jsonl"]})
    assert bridge.main(str(trial.path)) == JobExit.DONE
    assert len(rows(trial)) == 3


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("raise ValueError('no such model')", "failed", "ValueError: no such model"),
        ("import sys; sys.exit(7)", "failed", "the command ended with exit code 7 after 0 of 3 steps"),
        ("import sys; sys.exit('no GPU\\x1b[2J')", "failed", "after 0 of 3 steps: no GPU"),
        ("import os; os.kill(os.getpid(), 9)", "failed", "the command ended with SIGKILL after 0 of 3 steps"),
        ("print('torch.OutOfMemoryError: CUDA out of memory'); raise SystemExit(1)", "oom", "OutOfMemoryError: CUDA"),
        ("print('step:1 - timing_s/step:1.0')", "failed", "ended with exit code 0 after 1 of 3 steps"),
        ("print('hello')", "failed", "no step of a known format in train.log; say where"),
        ("print('step:1 - timing_s/gen:1.0\\n' * 2, end='')", "failed", "after 1 of 3 steps"),
    ],
)
def test_a_job_that_ends_too_early_says_why(tmp_path: Path, text: str, kind: str, message: str) -> None:
    trial = prepare(tmp_path, *python(tmp_path, text))
    assert bridge.main(str(trial.path)) in (JobExit.FAILED, JobExit.OOM)
    end = read_end(trial)
    assert end["kind"] == kind
    assert message in end["message"]


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


# The signal may come between the opening of a file and the block that closes it: its process ends then, this one not.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
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


def test_phases_are_on_the_devices_whose_processes_write_their_spans(tmp_path: Path) -> None:
    command = python(tmp_path, VERL_WITH_SPANS)
    trial = prepare(tmp_path, *command, job="verl", word="split:1+1", log={"files": [], "format": "verl"}, quiet=False)
    assert bridge.main(str(trial.path)) == JobExit.DONE, trial.log.read_text()
    spans = list(read_jsonl(trial.spans))
    second = [span for span in spans if span["step"] == 2]
    assert {(span["phase"], span["device"], span["pool"], span["role"]) for span in second} == {
        ("step", "controller", None, None),
        ("gen", "controller", "actor_pool", "rollout"),
        ("gen", "cpu:0", "actor_pool", "rollout"),
        *((phase, where, "actor_pool", "actor") for phase in ("old_log_prob", "update_actor") for where in BOTH[0]),
        *((phase, where, "critic_pool", "critic") for phase in ("values", "update_critic") for where in BOTH[1]),
    }
    (whole,) = (span for span in second if span["phase"] == "step")
    assert all(whole["start_mono"] <= span["start_mono"] <= span["end_mono"] <= whole["end_mono"] for span in second)
    # Each process is held to the cores of its device.
    assert {row["device"] for row in read_jsonl(trial.processes)} == {"cpu:0", "cpu:1"}


BOTH = (("controller", "cpu:0"), ("controller", "cpu:1"))


def test_a_loop_of_one_s_own_is_its_controller_and_works_on_its_device(tmp_path: Path) -> None:
    text = """
import time
from placebench_attach import span
for step in range(1, 4):
    with span("step"):
        with span("gen"):
            time.sleep(0.01)
        with span("my_update"):
            time.sleep(0.01)
    print(f"step:{step} - timing_s/step:0.02", flush=True)
"""
    trial = prepare(tmp_path, *python(tmp_path, text), devices=1, phases={"my_update": "update_actor"})
    assert bridge.main(str(trial.path)) == JobExit.DONE
    found = [(span["phase"], span["device"]) for span in read_jsonl(trial.spans) if span["step"] == 3]
    both = ("controller", "cpu:0")
    assert sorted(found) == sorted(
        [("step", "controller"), *((phase, where) for phase in ("gen", "update_actor") for where in both)]
    )


OWN_LOOP = """
import sys, time
from placebench_attach import span
for step in range(int(sys.argv[1])):
    with span("step"), span("update_actor"):
        time.sleep(0.02)
time.sleep(float(sys.argv[2]))
"""


def test_steps_that_a_loop_marks_count_where_it_logs_none(tmp_path: Path) -> None:
    done = prepare(tmp_path, *python(tmp_path, OWN_LOOP, "5", "0"), steps=4, devices=1)
    assert bridge.main(str(done.path)) == JobExit.DONE
    assert [row["timing_s/step"] for row in rows(done)] == pytest.approx([0.02] * 4, rel=0.5)
    phases = [(span["step"], span["phase"]) for span in read_jsonl(done.spans) if span["device"] == "controller"]
    assert sorted(phases) == sorted((step, name) for step in (1, 2, 3, 4) for name in ("step", "update_actor"))
    assert LogRecord.read(done).format == "spans"
    short = prepare(tmp_path / "short", *python(tmp_path / "short", OWN_LOOP, "2", "0"), devices=1)
    assert bridge.main(str(short.path)) == JobExit.FAILED
    assert read_end(short)["message"] == "the command ended with exit code 0 after 2 of 3 steps"


NESTED = """
import os, time
from placebench_attach import span
is_other = os.fork() == 0
for step in range(4):
    with span("step"):
        time.sleep(0.02)
        with span("step"):
            time.sleep(0.02)
"""


def test_steps_within_steps_and_those_of_a_second_process_count_once(tmp_path: Path) -> None:
    trial = prepare(tmp_path, *python(tmp_path, NESTED), steps=4, devices=1)
    assert bridge.main(str(trial.path)) == JobExit.DONE
    assert [row["timing_s/step"] for row in rows(trial)] == pytest.approx([0.04] * 4, rel=0.5)
    flags = [flag.text for flag in LogRecord.read(trial).flags]
    assert [text.split(",")[0] for text in flags] == [
        "steps are marked within steps: the outermost of them count",
        "several processes mark steps",
    ]


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


def test_a_loop_that_logs_no_steps_and_trains_on_is_ended_after_those_that_it_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_steps, "_PATIENCE_S", 0.2)
    trial = prepare(tmp_path, *python(tmp_path, OWN_LOOP, "4", "300"), devices=1)
    assert bridge.main(str(trial.path)) == JobExit.DONE
    assert len(rows(trial)) == 3
    assert is_gone(tmp_path)


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
    ray.write_text(f"#!{sys.executable}\nprint('and more')\nraise OSError('no such host')\n")
    other = prepare(tmp_path / "b", *python(tmp_path / "b", text, "0.01", "{ray_address}"), ray="own")
    assert bridge.main(str(other.path)) == JobExit.FAILED
    assert read_end(other)["message"] == "ray start has ended: OSError: no such host: see ray.log"
    ray.unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    third = prepare(tmp_path / "c", *python(tmp_path / "c", text, "0.01", "{ray_address}"), ray="own")
    assert bridge.main(str(third.path)) == JobExit.FAILED
    assert read_end(third)["message"].startswith("there is no program ray on PATH to start the job's own Ray with: ")


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
    assert "after 0 of 3 steps; it has put something else in place of train.log" in read_end(trial)["message"]
