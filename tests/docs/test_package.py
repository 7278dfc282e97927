"""The package as people get it: wheel and sdist hold all of it, and an empty environment runs it."""

import os
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest
from pages import ROOT
from synthetic_run import SyntheticRun

from placebench import __version__


def run(*command: str | Path, cwd: Path) -> str:
    alone = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment(folder: Path, *packages: str | Path) -> Path:
    """The bin folder of a new environment with packages in it."""
    venv.create(folder, with_pip=True)
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt")
    run(folder / "bin" / "python", *pip, *packages, cwd=folder)
    return folder / "bin"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_it_is_built_and_runs_in_an_empty_environment(tmp_path: Path) -> None:
    tools = environment(tmp_path / "tools", "build")
    run(tools / "python", "-m", "build", "--outdir", tmp_path / "dist", ROOT, cwd=tmp_path)  # the wheel from the sdist
    (wheel,) = (tmp_path / "dist").glob(f"placebench-{__version__}-*.whl")
    assert (tmp_path / "dist" / f"placebench-{__version__}.tar.gz").exists()
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("placebench/")}
    files = (path for path in (ROOT / "placebench").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert {path.relative_to(ROOT).as_posix() for path in files} == held

    program = environment(tmp_path / "empty", wheel) / "placebench"
    assert run(program, "--version", cwd=tmp_path) == f"placebench, version {__version__}\n"
    assert "Commands:" in run(program, "--help", cwd=tmp_path)
    for name, seconds in (("a", 1.25), ("b", 1.0)):
        (tmp_path / f"{name}.log").write_text("".join(f"step:{n} - timing_s/step:{seconds}\n" for n in range(1, 9)))
    assert "20 % less time" in run(program, "compare", "a.log", "b.log", cwd=tmp_path)
    folder = SyntheticRun(rounds=2).write(tmp_path / "run")
    assert f"{folder}/report.html" in run(program, "report", folder, cwd=tmp_path)
