"""Jobs of the user's that do not come to their end: what the user is told, and that nothing is left of them."""

import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fake_jobs import PLAIN, write

from placebench.cli import main

BASE = ("--devices", "cpu:2", "--sample-hz", "0")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_temp: None) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "plain.py", PLAIN)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), prog_name="placebench")


def test_a_job_that_trains_on_ends_with_the_time_limit() -> None:
    asked = ("--devices", "cpu:1", "--sample-hz", "0", "--rounds", "1", "--time-limit", "2", "--steps", "900")
    result = invoke("run", *asked, "--job", "command", "--", sys.executable, "plain.py", "1")
    assert result.exit_code == 124
    assert "0 of 1 launches are done; go on with placebench run --resume" in result.stderr
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and _runs_here(pid)]


def test_a_job_that_fails_ends_in_one_line() -> None:
    write(Path(), "plain.py", "raise RuntimeError('no data')")
    result = invoke("run", *BASE, "--rounds", "1", "--job", "command", "--", sys.executable, "plain.py")
    assert result.exit_code == 3
    last = result.stderr.splitlines()[-1]
    assert last.startswith(
        "placebench: 1 of 1 launches failed, the first with: failed, RuntimeError: no data (see runs/"
    )


def test_a_job_that_says_nothing_is_given_up() -> None:
    write(Path(), "plain.py", "import time; time.sleep(300)")
    result = invoke(
        "run", *BASE, "--rounds", "1", "--step-timeout", "0.5", "--job", "command", "--", sys.executable, "plain.py"
    )
    assert result.exit_code == 3
    assert "timeout, no progress for" in result.stderr
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and _runs_here(pid)]


def _runs_here(pid: str) -> bool:
    try:
        return "plain.py" in Path(f"/proc/{pid}/cmdline").read_text() and os.readlink(f"/proc/{pid}/cwd") == os.getcwd()
    except OSError:
        return False
