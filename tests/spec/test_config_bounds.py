"""YAML that is larger than it looks, or larger than anybody writes: read, or refused in short lines."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from log_reading import SHARED_FOLDER

from placebench.cli import main
from placebench.errors import UsageError
from placebench.spec.config import MOST_BYTES, MOST_CHARACTERS, MOST_VALUES, load_yaml

LONGEST_LINE = 1000
MOST_LINES = 101


def count(value: Any) -> int:
    """How many values a value is, with all in it and aliases written out."""
    if isinstance(value, dict):
        return 1 + sum(1 + count(below) for below in value.values())
    return 1 + sum(map(count, value)) if isinstance(value, list) else 1


def load(folder: Path, text: str) -> dict[str, Any] | None:
    """What a file holds; None where it is refused, in one short line that begins with its name."""
    path = folder / "some.yaml"
    path.write_text(text)
    try:
        return load_yaml(path)
    except UsageError as error:
        (line,) = str(error).splitlines()
        assert line.startswith(str(path))
        assert len(line) < LONGEST_LINE
        return None


@SHARED_FOLDER
@given(widths=st.lists(st.integers(1, 12), min_size=1, max_size=30), is_mapping=st.booleans())
def test_aliases_of_aliases_count_as_what_they_stand_for(tmp_path: Path, widths: list[int], is_mapping: bool) -> None:
    lines, expanded, whole = ["k0: &a0 [x]"], 2, 1 + 1 + 2
    for level, width in enumerate(widths, start=1):
        words = [f"{'k' + str(place) + ': ' if is_mapping else ''}*a{level - 1}" for place in range(width)]
        lines.append(f"k{level}: &a{level} {'{' if is_mapping else '['}{', '.join(words)}{'}' if is_mapping else ']'}")
        expanded = 1 + width * (expanded + is_mapping)
        whole += 1 + expanded
    found = load(tmp_path, "\n".join(lines))
    assert (found is None) == (whole > MOST_VALUES)
    assert found is None or count(found) == whole


def test_what_holds_itself_is_refused(tmp_path: Path) -> None:
    assert load(tmp_path, "a: &a [*a]") is None
    assert load(tmp_path, "a: &a {b: {c: *a}}") is None


@pytest.mark.parametrize("depth", [10, 100, 1000, 10_000, 100_000])
@pytest.mark.parametrize("text", ["a: {0}{1}", "{0}1{1}", "a: {2}{3}"], ids=["lists", "no mapping", "mappings"])
def test_what_is_nested_deep_is_read_or_refused(tmp_path: Path, depth: int, text: str) -> None:
    parts = ("[" * depth, "]" * depth, "{a: " * depth, "1" + "}" * depth)
    found = load(tmp_path, text.format(*parts))
    assert found is not None if depth == 10 and text != "{0}1{1}" else depth < 1000 or found is None


@pytest.mark.parametrize("above", [0, 1])
def test_the_bounds_are_what_they_say(tmp_path: Path, above: int) -> None:
    for text in (
        f"a: [{', '.join('1' * (MOST_VALUES - 3 + above))}]",
        f"a: {'x' * (MOST_CHARACTERS + above)}",
        f"# {'x' * (MOST_BYTES - 7 + above)}\na: b",
    ):
        assert (load(tmp_path, text) is None) == bool(above)


@pytest.mark.parametrize("pools", [40, 1000, 200_000])
@pytest.mark.parametrize("pool", ["pool{0}: [1]", "'{0} x': [1]", "pool{0}: many", "pool{0}: [1, 2, 3]"])
def test_pools_without_number_are_told_in_short_lines(tmp_path: Path, pools: int, pool: str) -> None:
    path = tmp_path / "mine.yaml"
    listed = "\n".join(f"  {pool.format(number)}" for number in range(pools))
    path.write_text(
        f"name: mine\npools:\n{listed}\nroles: {{actor: pool1, rollout: pool2, ref: pool1, critic: pool3}}\n"
    )
    result = CliRunner().invoke(main, ["placements", str(path), "--devices", "cpu:2"], prog_name="placebench")
    assert result.exit_code == 2, result.output
    lines = result.stderr.splitlines()
    assert 0 < len(lines) <= MOST_LINES
    assert all(line.startswith("placebench: ") for line in lines)
    assert max(map(len, lines)) < LONGEST_LINE
