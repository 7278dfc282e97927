"""Every command of the README runs: `make` targets as a dry run, runs as `--dry-run`, everything else for real."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launching import wait_for
from pages import ROOT, checkout, commands
from synthetic_run import SyntheticRun

from placebench.gate.baseline import save_baseline

README = (ROOT / "README.md").read_text(encoding="utf-8")


def small(command: str) -> list[str]:
    """The same command with less to do."""
    words = shlex.split(command)
    if words[0] == "make":
        return [*words, "--dry-run"]
    if words[:2] in (["placebench", "run"], ["placebench", "attach"]):
        of_gpus = ["--devices", "gpu:4x1"] if "verl" in words else []
        return [*words[:2], "--dry-run", *of_gpus, *words[2:]]
    return words


def test_commands_run_from_top_to_bottom(tmp_path: Path) -> None:
    environment = checkout(tmp_path)
    (tmp_path / "run.sh").write_text('python -m verl.trainer.main_ppo "$@"\n')
    for name, seconds in (("before", 1.25), ("after", 1.0)):
        (tmp_path / f"{name}.log").write_text("".join(f"step:{n} - timing_s/step:{seconds}\n" for n in range(1, 9)))
    save_baseline(SyntheticRun(started="2025-12-01T10:00:00Z").write(tmp_path / "measured"), tmp_path / "baseline.json")
    found = commands(README)
    assert {"make demo", "make test"} <= set(found)
    for command in found:
        done = subprocess.run(
            small(command), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def test_it_is_read_in_a_few_minutes() -> None:
    assert len(README.split()) <= 700


def test_demo_hands_on_the_exit_code(tmp_path: Path) -> None:
    environment = checkout(tmp_path)
    command = ["bash", "demo_split.sh", "--steps", "0"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "steps" in (tmp_path / "runs/demo_split.log").read_text()


@pytest.mark.parametrize(("words", "code"), [(["--steps", "0"], 2), (["--no-such-option"], 2), (["--dry-run"], 0)])
def test_a_demo_without_a_launch_leaves_the_log_of_the_last_one(tmp_path: Path, words: list[str], code: int) -> None:
    environment = checkout(tmp_path)
    log = tmp_path / "runs/demo.log"
    log.write_text("step:1 - timing_s/step:1.0\n")
    command = ["bash", "demo.sh", *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert done.stdout.endswith("log: runs/demo.log is that of an earlier demo: no launch was started\n")
    assert log.read_text() == "step:1 - timing_s/step:1.0\n"
    assert [path.name for path in (tmp_path / "runs").glob("demo*")] == ["demo.log"]


def test_the_log_of_a_demo_replaces_that_of_the_last_one(tmp_path: Path) -> None:
    environment = checkout(tmp_path)
    (tmp_path / "runs/demo.log").write_text("step:1 - timing_s/step:1.0\n")
    program = tmp_path / "bin/placebench"
    trial = "runs/20300101T000000Z-demo/trials/001-standard"
    program.write_text(
        f"#!/bin/sh\necho planned\nsleep 0.01\nmkdir -p {trial}\necho step:2 >{trial}/train.log\nexit 1\n"
    )
    command = ["bash", "demo.sh"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    assert (tmp_path / "runs/demo.log").read_text() == f"planned\n\n== {trial}/train.log\nstep:2\n"
    assert sorted(path.name for path in (tmp_path / "runs").glob("demo*")) == ["demo.log"]


STOPPABLE = """
import signal, sys, time

def stop(*_):
    time.sleep(0.2)  # as a run ends its processes: a shell that does not wait is gone before
    print("ended in order")
    sys.exit(130)

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, stop)
print("ready", flush=True)
time.sleep(300)  # goes on until a signal ends it
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("to_all", [False, True])
def test_a_signal_to_the_shell_of_a_demo_ends_its_run_first(
    tmp_path: Path, number: signal.Signals, to_all: bool
) -> None:
    environment = checkout(tmp_path)
    (tmp_path / "bin/placebench").write_text(f"#!{sys.executable}\n{STOPPABLE}")
    log = tmp_path / "runs/demo.log"
    command = ["bash", "demo.sh"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True) as demo:
        wait_for(lambda: log.exists() and log.read_text() == "ready\n")
        (os.killpg if to_all else os.kill)(demo.pid, number)
        assert demo.wait() == 130
        assert log.read_text() == "ready\nended in order\n"
        with pytest.raises(ProcessLookupError):
            os.killpg(demo.pid, 0)


def test_demo_says_how_to_install(tmp_path: Path) -> None:
    checkout(tmp_path)
    done = subprocess.run(
        ["bash", "demo.sh"], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "make demo" in done.stderr


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", README)
    assert targets
    missing = [target for target in targets if "://" not in target and not (ROOT / target).exists()]
    assert not missing


def test_make_names_an_unsuitable_python(tmp_path: Path) -> None:
    checkout(tmp_path)
    false = shutil.which("false")
    done = subprocess.run(["make", "demo", f"PYTHON={false}"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"{false} is not Python 3.11 or 3.12" in done.stderr
    assert not (tmp_path / ".venv").exists()
