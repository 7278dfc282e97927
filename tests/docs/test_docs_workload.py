"""docs/workload.md: its commands run, and its files are read."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from pages import ROOT, checkout, commands, shell

from placebench.cli import main
from placebench.spec.workload_reading import RUN_KEYS
from placebench.tasks.rewards import REWARDS

PAGE = (ROOT / "docs" / "workload.md").read_text(encoding="utf-8")


def test_rewards_and_keys_of_the_run_are_all_named() -> None:
    assert all(f"| `{name}` |" in PAGE for name in REWARDS)
    (config,) = re.findall(r"^```yaml\n# bench.yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert tuple(re.findall(r"^(\w+):", config, re.MULTILINE))[: len(RUN_KEYS)] == tuple(RUN_KEYS)


def test_its_commands_run(tmp_path: Path) -> None:
    environment = checkout(tmp_path)
    for language, name in (("yaml", "bench.yaml"), ("python", "rewards.py")):
        (content,) = re.findall(rf"^```{language}\n(# {name}.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
        (tmp_path / name).write_text(content)
    found = commands(PAGE)
    assert len(found) == 5
    for command in found:
        assert " --dry-run" in command or " --print-config" in command
        shell(command, tmp_path, environment)


def test_its_line_of_a_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (row,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    Path("mine.jsonl").write_text(row)
    result = CliRunner().invoke(main, ["run", "--dry-run", "--devices", "cpu:2", "--set", "data.source=mine.jsonl"])
    assert (result.exit_code, result.stderr) == (0, "")
