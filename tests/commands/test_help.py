"""`--help` of every command: what it is for, its options under headings, and two examples that it would take."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from placebench.cli import main
from placebench.commands.options import GroupedCommand, heading_of


def walk(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            yield from walk(one, (*path, name))


HELPS = dict(walk(main))
COMMANDS = {path: one for path, one in HELPS.items() if not isinstance(one, click.Group)}


def shown(*path: str) -> str:
    result = CliRunner().invoke(main, [*path, "--help"], prog_name="placebench", terminal_width=80)
    assert result.exit_code == 0
    return result.output


def examples_of(text: str) -> list[list[str]]:
    return [shlex.split(words) for words in re.findall(r"placebench [a-z][^`|)\n]*", text.split("Examples")[1])]


def test_the_help_is_one_screen_and_names_every_command() -> None:
    lines = shown().splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert re.findall(r"^  ([a-z]+) {2,}", "\n".join(lines), re.MULTILINE) == sorted(main.commands)


@pytest.mark.parametrize("path", HELPS, ids=lambda path: " ".join(path) or "placebench")
def test_a_command_says_what_it_is_for_with_examples_that_it_takes(path: tuple[str, ...]) -> None:
    command, text = HELPS[path], shown(*path)
    assert max(map(len, text.splitlines())) <= 80
    purpose = (command.help or "").removeprefix("\b\n").split("\n")[0]
    assert re.match(r"[A-Z][^.]*(\.$|$)", purpose), purpose
    examples = examples_of(text)
    assert len(examples) >= 2
    for example in examples:
        words = example[1:]
        one: click.Command = main
        while isinstance(one, click.Group):
            one = one.commands[words.pop(0)]
        assert one is command or isinstance(command, click.Group)
        own = words[: words.index("--")] if "--" in words else words
        known = {name for param in one.params for name in param.opts}
        assert {word for word in own if word.startswith("-")} - {"--time"} <= known  # sbatch's own


@pytest.mark.parametrize("example", examples_of(shown("run")), ids=" ".join)
def test_the_runs_of_the_examples_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_temp: None, example: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text('python -m verl.trainer.main_ppo "$@"\n')
    words = ["run", "--dry-run", *(("--devices", "gpu:4x1") if "--devices" not in example else ()), *example[2:]]
    result = CliRunner().invoke(main, words, prog_name="placebench")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("path", [path for path, one in COMMANDS.items() if isinstance(one, GroupedCommand)])
def test_options_stand_once_under_headings(path: tuple[str, ...]) -> None:
    text = shown(*path)
    for param in COMMANDS[path].params:
        if isinstance(param, click.Option):
            assert len(re.findall(rf"^  {param.opts[0]}\b(?!-)", text, re.MULTILINE)) == 1
    assert "RANGE" not in text
    # What is left under no heading of its own is little.
    assert len(re.findall("^  -", text.split("\nOptions:\n")[1], re.MULTILINE)) <= 2


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_many_options_stand_in_groups(path: tuple[str, ...]) -> None:
    options = [param for param in COMMANDS[path].params if isinstance(param, click.Option)]
    if len(options) > 8:
        assert isinstance(COMMANDS[path], GroupedCommand)
        assert len({heading_of(param) for param in options}) >= 2
