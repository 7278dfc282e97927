"""docs/jobs: a page a framework, whose commands are right as dry runs and whose tables say what the program does."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from pages import ROOT, commands
from told_settings import job

from placebench.cli import main
from placebench.errors import UsageError
from placebench.jobs.command_lines import lines_of
from placebench.jobs.registry import ADAPTERS

WORDS = (
    "standard",
    "split:3+1",
    "split:3+1/overlap=none",
    "learners:2+engines:2",
    "learners:2+engines:1xtp2",
    "learners:2+engines:2/staleness=1",
    "learners:2+engines:2/staleness=1/inflight_updates=true",
    "standard/staleness=1",
    "ddp:4",
)
PAGES = {name: ROOT / "docs" / "jobs" / f"{name}.md" for name in ADAPTERS if name != "command"}
TEXTS = {name: path.read_text(encoding="utf-8") for name, path in PAGES.items()}
COMMANDS = [(name, command) for name, text in TEXTS.items() for command in commands(text)]
# The user's commands that the tables are of.
OF_TABLES = [
    (name, command) for name, text in TEXTS.items() for command in re.findall(r"^With `(.*)` on 4 GPUs:$", text, re.M)
]


def told(name: str, command: str, word: str) -> tuple[str, ...] | None:
    """What the command is given; None where it cannot be."""
    try:
        return lines_of(job(name, command).settings_of(word, (4,), "gpu"))
    except UsageError:
        return None


def row(name: str, command: str, word: str) -> str:
    """A row of a page's table."""
    lines = told(name, command, word)
    if lines is None:
        with pytest.raises(UsageError) as refused:
            job(name, command).placement(word, (4,), "gpu")
        reasons = str(refused.value).replace(f"placement '{word}': ", "").splitlines()
        return f"| `{word}` | not: {'; '.join(reasons)} |"
    shown = (f"`{line}`" for line in lines if not line.startswith("export PYTHONPATH="))
    return f"| `{word}` | {'<br>'.join(shown)} |"


@pytest.mark.parametrize(("name", "command"), OF_TABLES)
def test_a_table_says_what_a_command_is_told_for_every_word(name: str, command: str) -> None:
    table = "\n".join(row(name, command, word) for word in WORDS)
    assert f"With `{command}` on 4 GPUs:\n\n| placement | settings, or why not |\n|---|---|\n{table}\n" in TEXTS[name]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_every_placement_has(name: str) -> None:
    adapter = ADAPTERS[name]
    assert f"`{shlex.join((*adapter.limits(10), *adapter.quiet))}`" in TEXTS[name]
    said = " ".join(f"{key}={value}" for key, value in adapter.env.items() if key != "PYTHONPATH")
    assert not said or f"In the environment: `{said}`." in TEXTS[name]
    assert [flag for flag in adapter.quiet_where if f"`--{flag}`" not in TEXTS[name]] == []
    assert name in dict(OF_TABLES)


def test_one_table_has_all_frameworks() -> None:
    rows = ["| placement | frameworks that take it |", "|---|---|"]
    for word in WORDS:
        can = [name for name in PAGES if any(told(name, command, word) for one, command in OF_TABLES if one == name)]
        rows.append(f"| `{word}` | {', '.join(can) or 'none'} |")
    page = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")
    assert "\n".join(rows) in page
    assert [name for name in PAGES if f"[{name}](jobs/{name}.md)" not in page] == []


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_the_commands_of_a_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_temp: None, name: str, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text(f'{shlex.join(ADAPTERS[name].example)} "$@"\n')
    Path("train.py").touch()
    programs = tmp_path / "bin"
    programs.mkdir()
    for program in ("python", "accelerate", "torchrun", "uv"):
        (programs / program).touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    words = shlex.split(command)[1:]
    if words[0] == "run":
        words[1:1] = ["--dry-run", "--devices", "gpu:8x1"]
    result = CliRunner().invoke(main, words, prog_name="placebench")
    assert result.exit_code == 0, result.output
    assert "placement '" not in result.output  # as each reason against one begins
