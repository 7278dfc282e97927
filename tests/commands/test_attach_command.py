"""`placebench attach`: a command of the user's, watched once."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fake_jobs import pressed_once_begun, write
from invoking import run_folder
from showing import printed

from placebench.cli import main
from placebench.record.folder import Trial

# A loop of the user's own, whose log has no steps.
LOOP = """
import time
from placebench_attach import span
for _ in range(3):
    with span("gen"):
        time.sleep(0.02)
    with span("update_actor"):
        time.sleep(0.01)
"""
STEPS = """
import pathlib, time
from placebench_attach import span
while True:
    with span("step"):
        with span("gen"):
            time.sleep(0.01)
    pathlib.Path("begun").touch()
"""
LOGGED = """
for step in range(1, 4):
    print(f"step:{step} - timing_s/step:0.5", flush=True)
raise RuntimeError("boom")
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_temp: None) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("placebench.report.plots.draw_plots", lambda *_: iter(()))


def attach(script: str, *options: str, text: str) -> Result:
    write(Path(), script, text)
    words = ["attach", "--devices", "cpu:1", "--sample-hz", "0", *options, "--", sys.executable, script]
    return CliRunner().invoke(main, words, prog_name="placebench")


def summary() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run_folder() / "summary.json").read_text())
    return content


def values() -> dict[str, float]:
    return {found["key"]: found["value"] for found in summary()["placements"][0]["quantities"]}


def test_a_loop_without_steps_is_shown_as_one() -> None:
    result = attach("loop.py", text=LOOP)
    assert (result.exit_code, result.stdout) == (0, printed(run_folder(), verbose=False))
    assert run_folder().name.endswith("-attach-loop.py")
    assert values()["phase/gen"] >= 0.05
    content = summary()
    assert content["placements"][0]["critical_path"] == []
    assert "steps: neither log nor spans tell steps apart: all time counts as one step" in content["warnings"]
    assert [(one["role"], one["device"]) for one in content["placements"][0]["observed"][0]["roles"]] == [
        ("actor", "cpu:0"),
        ("rollout", "cpu:0"),
    ]
    assert json.loads((run_folder() / "run.json").read_text())["steps"] == 1
    # Nothing of what it has not: steps that were asked for, a warm-up, a second placement.
    report = (run_folder() / "report.md").read_text()
    assert "job steps" not in report
    assert "is left out: its steps up to a change" in report
    assert not [line for line in report.splitlines() if line.startswith(("- Ratio:", "- Verdict:"))]


def test_a_script_of_any_name_gives_the_run_a_name() -> None:
    result = attach("jöb.py", "--dry-run", text=LOOP)
    assert (result.exit_code, result.stderr) == (0, "")


def test_spans_that_name_no_phase_are_told() -> None:
    text = LOOP.replace('"gen"', '"generate"').replace('"update_actor"', '"reward"')
    text += "    with span('adv'), span('part of adv'):\n        time.sleep(0.01)\n"
    assert attach("loop.py", text=text).exit_code == 0
    (told,) = (line for line in summary()["warnings"] if "no phase" in line)
    assert told.startswith("span('generate') belongs to no phase, so this time counts as waiting: use names of phases")


def test_spans_of_threads_that_cross_are_told() -> None:
    text = """
import threading
from placebench_attach import span
for _ in range(3):
    begun, done = threading.Event(), threading.Event()
    def generate():
        with span("gen"):
            begun.set()
            done.wait()
    with span("step"):
        with span("update_actor"):
            thread = threading.Thread(target=generate)
            thread.start()
            begun.wait()
        done.set()
        thread.join()
"""
    assert attach("threads.py", text=text).exit_code == 0
    told = (
        "span('update_actor') and span('gen') of one process overlap in part: each moment counts for the span that"
        " began last"
    )
    assert told in summary()["warnings"]


def test_a_command_that_fails_has_its_report_and_exit_code() -> None:
    result = attach("logged.py", text=LOGGED)
    assert result.exit_code == 3
    assert result.stderr.splitlines()[-1] == (
        "placebench: RuntimeError: boom: the report covers what was recorded until then"
    )
    assert values()["step_time"] == pytest.approx(0.5)
    assert len(summary()["launches"]) == 1
    assert "round 1 job did not end cleanly: RuntimeError: boom." in summary()["warnings"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_and_leaves_the_report(number: signal.Signals) -> None:
    with pressed_once_begun(number):
        result = attach("steps.py", text=STEPS)
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == (
        f"placebench: stopped by {number.name}: the report covers what was recorded until then"
    )
    assert values()["step_time"] >= 0.01
    assert summary()["placements"][0]["critical_path"]
    assert "round 1 job did not end cleanly: it was stopped before its command ended." in summary()["warnings"]
    (trial,) = run_folder().glob("trials/*")
    (pid,) = {json.loads(line)["pid"] for line in Trial(trial).processes.read_text().splitlines()}
    assert not Path(f"/proc/{pid}").exists()


def test_its_steps_can_be_limited() -> None:
    result = attach("logged.py", "--steps", "2", text=LOGGED)
    assert result.exit_code == 0, result.stderr
    assert summary()["launches"][0]["steps"] == 2


def test_a_command_that_says_nothing_ends_in_a_line() -> None:
    result = attach("silent.py", text="print('hello')")
    assert result.exit_code == 3
    (trial,) = run_folder().glob("trials/*")
    assert result.stderr.splitlines()[-1] == (
        "placebench: failed, the command ended with exit code 0 after 0 steps: no step of a known format in train.log,"
        " nor have its processes written a span; name its log and format under log in a job file of"
        " placebench run, print for each step a line such"
        f" as 'step:3 - timing_s/step:1.25', or mark it by span(\"step\") (its folder is {trial})"
    )
    assert not (run_folder() / "report.md").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "there is no command: write it after --"),
        (["--job", "vrel", "--", "python", "x"], "placebench: --job: unknown framework 'vrel': use verl, "),
        (["--job", "own.yaml", "--", "python", "x"], ", command; a file is for placebench run --job"),
        (["--", "pyhton", "x"], "command: there is no program 'pyhton' on PATH"),
        (["--devices", "tpu:1", "--", "python", "x"], "tpu:1"),
        (["--steps", "2", "--warmup-steps", "2", "--", "python", "x"], "warmup_steps 2 leaves none of 2 steps"),
    ],
)
def test_wrong_calls_are_refused_in_a_line(words: list[str], said: str) -> None:
    result = CliRunner().invoke(main, ["attach", *words], prog_name="placebench")
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert said in line
    assert "job file" not in line
    assert not Path("runs").exists()


def test_a_dry_run_prints_the_command_as_it_is() -> None:
    result = attach("loop.py", "--job", "verl", "--dry-run", text=LOOP)
    assert result.exit_code == 0
    assert "as many as the command has" in result.stdout
    assert next(line for line in result.stdout.splitlines() if line.startswith("cd ")).endswith(" loop.py")
    assert not Path("runs").exists()


def test_a_time_limit_has_its_report_and_its_exit_code() -> None:
    text = LOGGED.replace('raise RuntimeError("boom")', "import time\ntime.sleep(600)")
    result = attach("logged.py", "--time-limit", "4", text=text)
    assert result.exit_code == 124, result.stderr
    assert result.stderr.splitlines()[-1] == (
        "placebench: the time limit has passed: the report covers what was recorded until then"
    )
    assert (run_folder() / "report.md").exists()
