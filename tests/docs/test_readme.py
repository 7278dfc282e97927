"""Every command of the README runs: `make` targets as a dry run, runs as `--dry-run`, everything else for real."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

from pages import ROOT, checkout, commands
from synthetic_run import SyntheticRun

README = (ROOT / "README.md").read_text(encoding="utf-8")


def small(command: str) -> list[str]:
    """The same command with less to do."""
    words = shlex.split(command)
    if words[0] == "make":
        return [*words, "--dry-run"]
    if words[:2] == ["placebench", "run"]:
        return [*words, "--dry-run"]
    return words


def test_commands_run_from_top_to_bottom(tmp_path: Path) -> None:
    environment = checkout(tmp_path)
    found = commands(README)
    assert {"make demo", "make test"} <= set(found)
    for command in found:
        done = subprocess.run(
            small(command), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        if "baseline save latest" in command:  # the README says to change the code and to run again
            SyntheticRun(started="2026-03-02T10:00:00Z").write(tmp_path / "runs" / "20260302T100000Z-standard-split")
    steps = re.findall(r"^step:(\d+) - timing_s/gen:", (tmp_path / "runs/demo.log").read_text(), re.MULTILINE)
    assert steps == ["1", "2", "3"]
    assert (tmp_path / "plots/timing_s.csv").exists()


def test_demo_hands_on_the_exit_code(tmp_path: Path) -> None:
    environment = checkout(tmp_path)
    command = ["bash", "demo_split.sh", "--steps", "0"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "steps" in (tmp_path / "runs/demo_split.log").read_text()


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
