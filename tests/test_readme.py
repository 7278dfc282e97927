"""Every command of the README runs: `make` targets as a dry run, runs as `--dry-run`, everything else for real."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from synthetic_run import SyntheticRun

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COPIED = ("Makefile", "pyproject.toml", "constraints.txt", "demo.sh", "demo_split.sh", "scripts", "plot")


def commands(text: str) -> list[str]:
    """The lines of all bash blocks, without comments."""
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [re.sub(r"\s+#.*", "", line).strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def small(command: str) -> list[str]:
    """The same command with less to do."""
    words = shlex.split(command)
    if words[0] == "make":
        return [*words, "--dry-run"]
    if words[:2] == ["placebench", "run"]:
        return [*words, "--dry-run"]
    return words


def shell(command: str, folder: Path, environment: dict[str, str]) -> None:
    """Run a command of a page in a folder; it must end with 0."""
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def checkout(folder: Path) -> dict[str, str]:
    """Lay out a folder like a checkout with one run in it; returns the environment in which commands run there."""
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    SyntheticRun().write(folder / "runs" / "20260101T000000Z-standard-split")
    programs = folder / "bin"
    programs.mkdir()
    script = programs / "placebench"
    script.write_text(f"#!{sys.executable}\nfrom placebench.cli import main\nmain()\n")
    script.chmod(0o755)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    packages = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PATH": path, "PYTHONPATH": packages, "CI": "true"}


def test_commands_run_from_top_to_bottom(tmp_path: Path) -> None:
    environment = checkout(tmp_path)
    found = commands(README)
    assert {"make demo", "make test"} <= set(found)
    for command in found:
        done = subprocess.run(
            small(command), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
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
