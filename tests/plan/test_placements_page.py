"""docs/placements.md says what is so: its commands run, its files mean what stands over them, its picture is right."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from pages import ROOT, checkout, commands, shell

from placebench.spec.placement import Placement
from placebench.spec.placement_files import KEYS
from placebench.spec.presets import PRESETS
from placebench.spec.words import SETTINGS, parse_placement

PAGE = (ROOT / "docs" / "placements.md").read_text(encoding="utf-8")
NODES = (4, 4)
BLOCKS: dict[str, str] = dict(re.findall(r"^```yaml\n# (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


def files(folder: Path) -> None:
    """Write the files of the page that have a name."""
    for name, content in BLOCKS.items():
        if name.endswith(".yaml"):
            (folder / name).write_text(content)


def test_its_commands_run(tmp_path: Path) -> None:
    environment = checkout(tmp_path)
    files(tmp_path)
    found = commands(PAGE)
    assert len(found) >= 7
    for command in found:
        assert " --dry-run" in command or command.startswith("placebench placements"), command
        shell(command, tmp_path, environment)


@pytest.mark.parametrize("word", [name for name in BLOCKS if not name.endswith(".yaml")])
def test_a_file_means_the_word_over_it(word: str, tmp_path: Path) -> None:
    (tmp_path / "same.yaml").write_text(BLOCKS[word])
    read, meant = parse_placement(str(tmp_path / "same.yaml"), NODES), parse_placement(word, NODES)
    assert replace(read, name=word) == meant


def letters(placement: Placement, node: int) -> str:
    named = "".join(
        ("G" if pool.name == "global_pool" else pool.name[0].upper()) * pool.counts[node] for pool in placement.pools
    )
    return named.ljust(NODES[node], ".")


def test_its_picture_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files(tmp_path)
    (picture,) = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    rows = [line.split() for line in picture.splitlines()[1:]]
    assert len(rows) >= len(PRESETS)
    for word, *shown in rows:
        placement = parse_placement(word, NODES)
        assert shown == [letters(placement, node) for node in range(2)], word
    assert [letters_of_one(count) for count in (4, 3)] == ["AACC", "AAC"]


def letters_of_one(count: int) -> str:
    return "".join(pool.name[0].upper() * pool.size for pool in parse_placement("split", [count]).pools)


def test_it_names_every_word_setting_and_key() -> None:
    for preset in PRESETS:
        assert f"`{preset.form.removesuffix('[:A+B]')}`" in PAGE
    for name in SETTINGS:
        assert f"`/{name}=" in PAGE
    for key in KEYS:
        assert f"`{key}`" in PAGE
