"""A `summary.json` that was copied with numbers that cannot be: who reads it ends with its tables, or in one line."""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from damage import DAMAGES
from invoking import invoke
from synthetic_run import SyntheticRun, read_json

from placebench.report import plots

NUMBERS = (1e308, float("nan"), float("inf"), -1.0, 10**30)


def places(content: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where numbers stand in JSON."""
    if isinstance(content, dict | list):
        for key, below in content.items() if isinstance(content, dict) else enumerate(content):
            yield from places(below, (*before, key))
    elif isinstance(content, int | float) and not isinstance(content, bool):
        yield before


def with_number(content: Any, place: tuple[Any, ...], number: float) -> Any:
    """JSON with another number at a place."""
    if not place:
        return number
    changed = content.copy()
    changed[place[0]] = with_number(content[place[0]], place[1:], number)
    return changed


def try_all(shared: Path, what: object) -> None:
    for command in ("show", "report", "compare", "list"):
        done = invoke(command, shared.parent if command == "list" else shared)
        assert done.exit_code in (0, 2), (what, command, done.output)
        assert done.exit_code == 0 or done.stderr.count("\n") == 1, (what, command, done.stderr)


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(plots, "draw_plots", lambda *_: ())
    run = SyntheticRun(rounds=2, steps=4).write(tmp_path / "run")
    assert invoke("report", run).exit_code == 0
    folder = tmp_path / "shared" / "run"
    folder.mkdir(parents=True)
    shutil.copy(run / "summary.json", folder)
    return folder


@pytest.mark.parametrize("damage", ["NaN", "infinite", "huge", "negative", "zero", "nulls", "texts", "half", "nested"])
def test_a_shared_summary_with_numbers_that_cannot_be_ends_well(shared: Path, damage: str) -> None:
    path = shared / "summary.json"
    DAMAGES[damage](path, path.read_bytes())
    try_all(shared, damage)


@pytest.mark.usefixtures("off_github")
@pytest.mark.parametrize("number", NUMBERS)
def test_one_number_that_cannot_be_ends_well(shared: Path, number: float) -> None:
    content = read_json(shared / "summary.json")
    for place in random.Random(0).sample(list(places(content)), 3):
        (shared / "summary.json").write_text(json.dumps(with_number(content, place, number)))
        try_all(shared, place)
