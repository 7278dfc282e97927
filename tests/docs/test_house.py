"""The house stands as CONTRIBUTING.md says: its script counts no import that runs up or in a circle."""

import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from pages import ROOT

SCRIPT = ROOT / "scripts" / "house.py"


def counts(*options: str) -> dict[str, str]:
    done = subprocess.run([sys.executable, SCRIPT, *options], capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if "  " in line]
    return {name.strip(): value.strip() for name, _, value in (line.partition("  ") for line in lines)}


def test_no_import_runs_up_or_in_a_circle() -> None:
    found = counts()
    assert int(found["modules"]) > 200
    assert (found["upward arrows"], found["circles of rooms"], found["circles of modules"]) == ("0", "0", "0")


def test_an_import_that_runs_up_is_counted_and_closes_a_circle(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "placebench", tmp_path / "placebench", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "placebench" / "spec" / "text.py").open("a") as stream:
        stream.write("\n\ndef planned() -> None:\n    from placebench.plan.plan import make_plan\n")
    found = counts("--root", str(tmp_path))
    assert found["upward arrows"] == "1"
    assert found["circles of rooms"] != "0"


def named_places(page: str) -> list[tuple[str, str]]:
    """Files of the package that a page names with a definition in them, as `run/launch.py: Launcher.run`."""
    return re.findall(r"`([\w/]+\.py): ([\w.]+)`", page)


def test_a_name_of_a_class_means_one_thing() -> None:
    names = Counter(
        name
        for path in (ROOT / "placebench").rglob("*.py")
        for name in re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_what_the_ways_name_is_there() -> None:
    found = named_places((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert len(found) > 30
    modules = {path.relative_to(ROOT / "placebench").as_posix(): path for path in (ROOT / "placebench").rglob("*.py")}
    # Within a way, a file that has been named with its folder may be named without.
    short = {name.rsplit("/", 1)[-1]: path for name, path in modules.items()}
    missing = []
    for file, name in found:
        code = (modules.get(file) or short[file]).read_text(encoding="utf-8")
        missing += [
            f"{file}: {part}"
            for part in name.split(".")
            if not re.search(rf"(def|class) {part}\b|^    {part} = ", code, re.MULTILINE)
        ]
    assert missing == []
