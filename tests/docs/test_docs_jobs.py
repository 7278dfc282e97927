"""docs/jobs.md: its commands and job files are right, as dry runs, and its tables say what the program does."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from pages import ROOT, commands

from placebench.cli import main
from placebench.jobs.spec import NAMES, JobSpec
from placebench.jobs.template import write_template

PAGE = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")
FILES = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
STARTING = ("run", "calibrate", "attach")
PROGRAMS = ("accelerate", "torchrun", "trl")


@pytest.fixture(autouse=True)
def _a_user_s_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_temp: None) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run_qwen7b.sh").write_text('python -m verl.trainer.main_ppo "$@"\n')
    Path("train.py").touch()
    Path("mine.yaml").write_text(FILES[1].replace("accelerate", "python"))
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in PROGRAMS:
        (programs / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")


@pytest.mark.parametrize("command", commands(PAGE))
def test_its_commands_run(command: str) -> None:
    words = shlex.split(command)[1:]
    starts = words[0] in STARTING and "--write-config" not in words
    if starts and "--dry-run" not in words:
        words.insert(1, "--dry-run")
    if starts:
        words[1:1] = ["--devices", "gpu:8x1"]
    result = CliRunner().invoke(main, words, prog_name="placebench")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("text", FILES)
def test_its_job_files_are_right(text: str) -> None:
    Path("mine.yaml").write_text(text)
    asked = ["run", "--devices", "gpu:8x1", "--dry-run", "--job", "mine.yaml"]
    result = CliRunner().invoke(main, asked, prog_name="placebench")
    assert result.exit_code == 0, result.output


def test_a_template_names_the_log_as_the_page_does(tmp_path: Path) -> None:
    write_template(tmp_path / "new.yaml", "verl", ())
    (said,) = re.findall(r"^# (log: .*)$", (tmp_path / "new.yaml").read_text(), re.MULTILINE)
    assert f"\n{said}\n" in PAGE


def test_it_names_every_key_and_name() -> None:
    table = dict(re.findall(r"^\| `\{(\w+)\}` \| (.*) \|$", PAGE, re.MULTILINE))
    assert table == {name: meaning for name, meaning in NAMES.items() if meaning}
    assert [key for key in JobSpec.model_fields if not re.search(rf"\b{key}\b", PAGE.split("## The job file")[1])] == []
