"""Runs real launches of small scripted jobs, and looks at what processes they leave."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
import pytest

from placebench.compare.measure.precision import choose_steps, compared_so_far, headline_width
from placebench.plan.plan import Plan, make_plan
from placebench.plan.request import RunRequest
from placebench.record.folder import RunFolder, Trial
from placebench.record.progress import LaunchState
from placebench.run.display import PlainDisplay
from placebench.run.runner import MeasuredSoFar, RunResult, execute
from placebench.run.watch import TrialWatch

# What a job does, as far as the runner sees it. `end_step(n)` ends the n-th step; `case` is "<round> <placement>".
_PRELUDE = """
import json, os, signal, subprocess, sys, time
trial = sys.argv[1]
launch = json.load(open(f"{trial}/launch.json"))
case = f"{launch['round']} {launch['placement']['name']}"
count = launch["workload"]["steps"]

def progress(stage, step=0, running=()):
    content = {"stage": stage, "step": step, "steps": count, "running": list(running), "wall": time.time()}
    with open(f"{trial}/.progress", "w") as stream:
        json.dump(content, stream)
    os.replace(f"{trial}/.progress", f"{trial}/progress.json")

def end_step(step, seconds=0.01):
    with open(f"{trial}/steps.jsonl", "a") as stream:
        row = {"step": step, "wall": time.time(), "mono": time.monotonic(), "metrics": {"timing_s/step": seconds}}
        stream.write(json.dumps(row) + "\\n")
    span = {"step": step, "phase": "step", "role": None, "pool": None, "device": "controller"}
    with open(f"{trial}/spans.jsonl", "a") as stream:
        stream.write(json.dumps({**span, "start_mono": row["mono"] - seconds, "end_mono": row["mono"]}) + "\\n")

def steps(seconds=0.01):
    for step in range(1, count + 1):
        progress("step", step, ["gen"])
        end_step(step, seconds)

def fail(code, kind, message, text, **facts):
    open(f"{trial}/error.txt", "w").write(text)
    json.dump({"schema_version": 1, "kind": kind, "message": message, **facts}, open(f"{trial}/end.json", "w"))
    sys.exit(code)

def leave_daemon():
    # A grandchild in a session of its own that ignores SIGTERM: what a raylet's worker may look like.
    program = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(300)"
    child = subprocess.Popen([sys.executable, "-c", program], start_new_session=True, stdout=subprocess.PIPE)
    child.stdout.readline()
"""


def job(body: str) -> tuple[str, ...]:
    """The command of a scripted job."""
    return (sys.executable, "-c", _PRELUDE + textwrap.dedent(body))


def plan(out: Path, **changes: Any) -> Plan:
    """A small plan on two CPU devices."""
    steps = {"steps": 2, "warmup_steps": 0}
    request = {"rounds": 1, "devices": "cpu:2", "workload": steps, "sample_hz": 0.0, "step_timeout_s": 30.0}
    return make_plan(RunRequest(out=out, **{**request, **changes}))


def run(a_plan: Plan, body: str) -> tuple[RunResult, str]:
    """Execute a plan with a scripted job; returns the result and what the display said."""
    said = StringIO()
    display = PlainDisplay(said, pause_s=0)
    so_far = MeasuredSoFar(headline_width, compared_so_far, choose_steps)
    result = execute(a_plan, ["placebench", "run"], display, so_far, job(body))
    return result, said.getvalue()


def drive(out: Path, body: str, **changes: Any) -> tuple[str, ...]:
    """A command that runs a plan in a process of its own and exits as `placebench run` would."""
    program = """
    import sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from launching import job, plan
    from placebench.compare.measure.precision import headline_width
    from placebench.run.display import open_display
    from placebench.errors import PlacebenchError
    from placebench.run.runner import MeasuredSoFar, execute
    try:
        changes = eval(sys.argv[4])
        a_plan = plan(Path(sys.argv[2]), **changes)
        execute(a_plan, ["run"], open_display(), MeasuredSoFar(headline_width), job(sys.argv[3])).raise_unless_done()
    except PlacebenchError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    """
    here = str(Path(__file__).parent)
    return (sys.executable, "-c", textwrap.dedent(program), here, str(out), body, repr(changes))


@contextmanager
def running(command: Sequence[str], temp: Path, **options: Any) -> Iterator["subprocess.Popen[str]"]:
    """A command that runs beside the test, with a temporary folder of its own; killed at the end if need be."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        **{"stderr": subprocess.STDOUT, "env": {**os.environ, "TMPDIR": str(temp)}, **options},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()


def count_silence(monkeypatch: pytest.MonkeyPatch, when: Callable[[Trial, LaunchState], object]) -> None:
    """Let launches be silent only when something is true of them, so that no start is too slow for a short limit."""
    read = TrialWatch.read

    def gated(self: TrialWatch) -> LaunchState:
        state = read(self)
        return state if when(self._trial, state) else replace(state, silent_s=0.0)

    monkeypatch.setattr(TrialWatch, "read", gated)


def pass_time(monkeypatch: pytest.MonkeyPatch, when: Callable[[], object], seconds: float = 3600) -> None:
    """Let so much time have passed once something is true: nothing is too slow for a limit, and none is waited for."""
    true_time = time.monotonic
    monkeypatch.setattr("time.monotonic", lambda: true_time() + (seconds if when() else 0))


def wait_for(condition: Callable[[], object], seconds: float = 300) -> None:
    """Wait until something is true; it is given up when it hangs, not when it is slow."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def processes_of(folder: Path) -> list[str]:
    """Live processes that name a folder in arguments or environment, or have it or one of its files open."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # it is ending
            words = [*process.cmdline(), *process.environ().values(), process.cwd(), *open_files(process.pid)]
            is_other = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if is_other and any(str(folder) in word for word in words):
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
    return found


def open_files(pid: int) -> Iterator[str]:
    """Paths of a process's open files."""
    for number in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            yield os.readlink(f"/proc/{pid}/fd/{number}")


def assert_nothing_left(temp: Path) -> None:
    """No process, no Ray folder and no record of a run that had `temp` as its temporary folder."""
    assert processes_of(temp) == []
    assert [path.name for path in temp.glob("pb-*")] == []
    assert list(temp.glob("placebench-*")) == []


def statuses(folder: Path) -> dict[str, str]:
    """The status of every launch of a run, by its folder's name."""
    return {trial.path.name: str(trial.status) for trial in RunFolder(folder).trials()}


class Screen:
    """What a terminal has been sent."""

    def __init__(self, ours: int) -> None:
        self._ours, self._sent = ours, b""
        os.set_blocking(ours, False)

    def _read(self) -> str:
        with suppress(OSError):  # nothing more is there, or nobody writes any more
            while more := os.read(self._ours, 65536):
                self._sent += more
        return self._sent.decode()

    def shows(self, text: str) -> bool:
        """Whether a text is among it, in however many lines."""
        return text.replace(" ", "") in re.sub(r"\s", "", re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", self._read()))

    def cursor_is_shown(self) -> bool:
        """Whether the cursor was last shown, not hidden."""
        sent = self._read()
        return sent.rfind("\x1b[?25h") > sent.rfind("\x1b[?25l") > -1
