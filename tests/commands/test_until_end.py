"""`placebench run` and `calibrate` of a job that lasts until its command ends: how ends out of order are told."""

import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import Result
from fake_jobs import pressed_once_begun, write
from invoking import invoke, run_folder

from placebench.commands import start
from placebench.compare.comparison import compare_run
from placebench.compare.explain.caveats import caveats

BASE = ("--devices", "cpu:1", "--sample-hz", "0", "--name", "x")
KEYS = "job: command\nuntil_end: true\nwarmup_steps: 0\nplacements: {a: {}}\n"
STEPS = """
import sys, time
for step in range(1, 4):
    print(f"step:{step} - timing_s/step:0.5", flush=True)
"""
LASTS = f"{STEPS}open('begun', 'w').close()\ntime.sleep(600)\n"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_temp: None) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(start, "_report", lambda folder, *, verbose: None)


def run_job(text: str, *options: str, command: str = "run", keys: str = KEYS) -> Result:
    write(Path(), "own.py", text)
    write(Path(), "job.yaml", f"{keys}command: {sys.executable} own.py\n")
    return invoke(command, *BASE, *options, "--job", "job.yaml")


def last_line(result: Result) -> str:
    return result.stderr.splitlines()[-1]


def test_launches_without_steps_that_fail_are_failures_also_when_resumed() -> None:
    result = run_job("import sys; sys.exit(7)", "--rounds", "2")
    for one in (result, invoke("run", "--resume", "latest")):
        assert one.exit_code == 3, one.output
        said = "placebench: 2 of 2 launches failed, the first with: failed, the command ended with exit code 7"
        assert last_line(one).startswith(said)


@pytest.mark.parametrize(("command", "options"), [("run", ("--rounds", "2")), ("calibrate", ("--pairs", "2"))])
def test_commands_that_fail_after_their_steps_are_failures_also_when_resumed(
    command: str, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[Path] = []
    monkeypatch.setattr(start, "_report", lambda folder, *, verbose: reported.append(folder))
    options += ("--placement", "a") if command == "calibrate" else ()
    result = run_job(f"{STEPS}sys.exit(9)\n", *options, command=command)
    many = 4 if command == "calibrate" else 2
    for one in (result, invoke("run", "--resume", "latest")):
        assert one.exit_code == 3, one.output
        assert last_line(one) == (
            f"placebench: {many} of {many} launches failed, the first with: the command ended with exit code 9 after"
            f" 3 steps: step:3 - timing_s/step:0.5 (its folder is {run_folder()}/trials/01-a); the report covers"
            " what was recorded until then"
        )
    assert reported == [run_folder()] * 2


def test_a_time_limit_has_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 1e6 * Path("begun").exists())
    monkeypatch.setattr("placebench.run.asked.time", clock)
    result = run_job(LASTS, "--rounds", "1", "--time-limit", "100000")
    assert result.exit_code == 124, result.output
    assert last_line(result).startswith("placebench: the time limit has passed: 1 of 1 launches are done; the report")
    # Nothing is left to do, and this start has stopped nothing.
    assert invoke("run", "--resume", "latest").exit_code == 0


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("", 0, ""),
        ("sys.exit(9)", 3, "the command ended with exit code 9 after 3 steps: step:3 - timing_s/step:0.5; "),
    ],
)
def test_an_after_that_is_cut_off_is_in_the_report(
    end: str, code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 1e6 * Path("begun").exists())
    monkeypatch.setattr("placebench.run.asked.time", clock)
    after = "after: sh -c 'touch begun; sleep 600'"
    result = run_job(f"{STEPS}{end}\n", "--rounds", "1", "--time-limit", "100000", keys=f"{KEYS}{after}\n")
    # How the command ended counts, and not what comes after it.
    assert result.exit_code == code, result.output
    told = f"round 1 a did not end cleanly: {said}the after command was cut off: the time limit has passed."
    assert told in caveats(compare_run(run_folder()))


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [("", 0, ""), ("sys.exit(9)", 3, "the command ended with exit code 9 after 3 steps: step:3 - timing_s/step:0.5; ")],
)
def test_an_after_that_fails_changes_nothing_of_how_the_command_ended(end: str, code: int, said: str) -> None:
    result = run_job(f"{STEPS}{end}\n", "--rounds", "1", keys=f"{KEYS}after: sh -c 'echo no disk; exit 1'\n")
    assert result.exit_code == code, result.output
    why = "after ended with exit code 1: no disk"
    assert f"round 1 a did not end cleanly: {said}{why}." in caveats(compare_run(run_folder()))
    assert f"note: the launch counts, though its after command failed: {said}{why} (see" in result.stderr.replace(
        "\n", " "
    )


def test_an_attached_run_that_goes_on_has_a_time_limit_too() -> None:
    words = ("attach", *BASE, "--time-limit", "0.5", "--", "sleep", "600")
    assert invoke(*words).exit_code == 124
    changed = invoke("run", "--resume", str(run_folder()), "--steps", "3")
    assert last_line(changed).startswith("placebench: --resume: steps is 3 now and as many as the command has in the")
    result = invoke("run", "--resume", str(run_folder()), "--time-limit", "0.5")
    assert result.exit_code == 124, result.output
    assert last_line(result).startswith("placebench: the time limit has passed: 0 of 1 launches are done; go on with")


def test_a_signal_has_its_exit_code() -> None:
    with pressed_once_begun(signal.SIGTERM):
        result = run_job(LASTS, "--rounds", "1")
    assert result.exit_code == 130, result.output
    assert last_line(result).startswith("placebench: stopped by SIGTERM: ")


def test_a_warm_up_that_leaves_no_step_is_a_failure() -> None:
    write(Path(), "own.py", STEPS)
    result = invoke("attach", *BASE, "--warmup-steps", "50", "--", sys.executable, "own.py")
    assert result.exit_code == 3, result.output
    assert last_line(result) == (
        "placebench: failed, the command had 3 steps, and --warmup-steps 50 leaves none to measure (its folder is"
        f" {run_folder()}/trials/01-job)"
    )
