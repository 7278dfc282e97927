"""docs/python.md and docs/export.md: their code and commands run, and they name every target and table."""

import re
from pathlib import Path

import pytest
from pages import ROOT, checkout, commands, shell
from synthetic_run import SyntheticRun

from placebench.commands.export import _TARGETS
from placebench.out.loaded import LoadedRun
from placebench.out.tables import TABLES

PYTHON, EXPORT = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("python.md", "export.md"))
WORKLOAD = {"model": "tiny", "batch": {"size": 64, "mini_batch_size": 32}}


def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SyntheticRun(workload=WORKLOAD).write(tmp_path / "runs" / "20260101T000000Z-standard-split")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PYTHON, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)
    assert (tmp_path / "timeline.pdf").stat().st_size


def test_the_commands_run(tmp_path: Path) -> None:
    environment = checkout(tmp_path)
    found = commands(EXPORT)
    assert len(found) == 6
    for command in found:
        shell(command + (" --dry-run" if command.startswith("placebench run") else ""), tmp_path, environment)
    assert (tmp_path / "tables" / "steps.csv").exists()
    assert (tmp_path / "run.zip").exists()


def test_every_target_and_table_is_named() -> None:
    assert [target for target in _TARGETS if f"`{target}`" not in EXPORT] == []
    assert [table for table in TABLES if f"`run.{table}`" not in PYTHON or not hasattr(LoadedRun, table)] == []
