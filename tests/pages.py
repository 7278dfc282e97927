"""Commands of the pages under docs/, run in a folder laid out like a checkout."""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner
from synthetic_run import SyntheticRun

from placebench.cli import main

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("Makefile", "pyproject.toml", "constraints.txt", "demo.sh", "demo_split.sh", "scripts", "plot")


def commands(text: str) -> list[str]:
    """The lines of all bash blocks, without comments."""
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [re.sub(r"\s+#.*", "", line).strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


# What leaves threads, processes or settings in its process, as clients of trackers do, or needs one of its own.
_OF_ITS_OWN = ("export", "serve", "watch", "attach")


def _runs_here(words: list[str], command: str) -> bool:
    """Whether a command is one of placebench's that does in this process what it does in its own.

    An interpreter's start and the imports are most of what one takes.
    """
    if words[0] != "placebench" or words[1] in _OF_ITS_OWN or re.search(r"[|&;<>$*?`(]", command):
        return False
    return words[1] not in ("run", "calibrate") or "--dry-run" in words


def shell(command: str, folder: Path, environment: dict[str, str]) -> None:
    """Run a command of a page in a folder; it must end with 0."""
    if _runs_here(words := shlex.split(command), command):
        with contextlib.chdir(folder):
            result = CliRunner().invoke(main, words[1:], prog_name="placebench", env=environment)
        assert result.exit_code == 0, f"{command}\n{result.output}"
        return
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
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
