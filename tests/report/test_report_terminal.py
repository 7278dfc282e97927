"""Tables of the terminal: whatever they hold, 80 columns cost no number."""

import io
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layouts import SPLIT, STANDARD
from rich.console import Console
from showing import printed
from synthetic_run import SyntheticRun

from placebench.compare.statistics.verdicts import Verdict
from placebench.report.tables import Grid
from placebench.report.terminal import _letters, grid_table
from placebench.spec.text import interval, quantity, ratio, scale


@pytest.mark.parametrize("width", [40, 50, 80])
def test_a_narrow_table_breaks_texts_and_never_numbers(width: int) -> None:
    cells = ("learners:2+engines:2/staleness=2", "0.409 s", "0.96–1.08", "1,037")
    grid = Grid("All placements", ("placement", "step", "95 % interval", "tokens/s/device"), (cells,))
    console = Console(file=io.StringIO(), width=width)
    console.print(grid_table(grid, texts=1, width=width))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    (row,) = (line for line in lines if "0.409 s" in line)
    assert row.split(None, 1)[1].split() == ["0.409", "s", "0.96–1.08", "1,037"]
    assert (row.split()[0] == cells[0]) == (width == 80)
    assert any(line.split()[-1:] == ["tokens/s/device" if width == 80 else "device"] for line in lines)


def test_the_name_of_a_file_is_broken_between_its_parts() -> None:
    names = ("actor.rollout.ref384+critic192-tp4.yaml", "actor.ref384+rollout96+critic192-stale1-tp2.yaml")
    grid = Grid("Found", ("placement", "step"), tuple((name, "7.9 s") for name in names))
    console = Console(file=io.StringIO(), width=30)
    console.print(grid_table(grid, texts=1, width=30))
    assert isinstance(console.file, io.StringIO)
    lines = [line.removesuffix("7.9 s").strip() for line in console.file.getvalue().splitlines()]
    assert lines[2:] == [
        *("actor.rollout.ref384", "+critic192-tp4.yaml"),
        *("actor.ref384+rollout96", "+critic192-stale1-tp2", ".yaml"),
    ]


NAMES = (
    "standard",
    "split",
    "split:3+1/overlap=none",
    "ddp:2/scaling=weak",
    "learners:2+engines:2/staleness=2",
    "learners:1+engines:1/staleness=1/overlap=updates",
    "learners:2,2+engines:4xtp2/staleness=1/inflight_updates=true",
    "actor.rollout.ref384+critic192-tp4.yaml",
    "actor.ref384+rollout96+critic192-stale1-tp2.yaml",
)
NAMED = ("placement", "against", "device", "pool")
LABELS = ("gen", "old_log_prob", "update_weights", "gap before update_critic", "short gaps", "step")
seconds = st.floats(1e-5, 5000)
counts = st.integers(1, 99_999).map("{:,}".format)
names = st.sampled_from(NAMES)
columns = {
    "step": seconds.map(lambda value: quantity(value, "s")),
    "idle": seconds.map(lambda value: quantity(value, "s")),
    "energy": seconds.map(lambda value: quantity(value, "J")),
    "peak memory": st.integers(1 << 20, 140 << 30).map(lambda value: quantity(value, "B")),
    "load": st.floats(0, 1).map(lambda value: quantity(value, "1")),
    "ratio": st.floats(0.01, 99).map(lambda value: ratio(value, value * 0.9, value * 1.1)),
    "95 %": st.floats(0.01, 99).map(lambda value: interval(value * 0.9, value * 1.1)),
    "difference": seconds.map(lambda value: scale("s", [value]).signed(-value)),
    "95 % interval": st.tuples(seconds, seconds).map(
        lambda ends: scale("s", ends).ends(-ends[0], ends[1], signed=True)
    ),
    "verdict": st.sampled_from([verdict.value for verdict in Verdict]),
    "tokens/s/device": counts,
    "devices": counts,
    "placement": names,
    "against": names,
    "scaling": st.sampled_from(["strong", "weak"]),
    "speed-up": st.floats(0.1, 9).map("{:.2f}".format),
    "efficiency": st.floats(0.1, 9).map("{:.2f}".format),
    "device": st.sampled_from(["gpu:7", "cpu:0", "gpu-node-017/gpu:3"]),
    "pool": st.sampled_from(["global_pool", "learner_pool", "critic_pool"]),
}


def grids(texts: int, *headings: str) -> st.SearchStrategy[tuple[Grid, int]]:
    """Tables of the terminal with numbers of every size."""
    cells = st.tuples(*(columns[heading] for heading in headings))
    rows = st.lists(cells, min_size=1, max_size=6).map(tuple)
    return rows.map(lambda found: (Grid(" ".join(headings), headings, found), texts))


def paths() -> st.SearchStrategy[tuple[Grid, int]]:
    """Critical paths of two placements, whose names are headings."""
    cells = (columns[heading] for heading in ("step", "step", "difference", "95 % interval"))
    rows = st.lists(st.tuples(st.sampled_from(LABELS), *cells), min_size=1, max_size=6)
    pairs = st.tuples(names, names)
    return st.builds(
        lambda pair, found: (Grid("Critical path", ("", *pair, "difference", "95 % interval"), tuple(found)), 1),
        pairs,
        rows,
    )


@given(
    paths()
    | grids(1, "placement", "devices", "step", "ratio", "95 %", "verdict", "tokens/s/device")
    | grids(3, "placement", "against", "scaling", "speed-up", "95 %", "efficiency", "95 %")
    | grids(3, "placement", "device", "pool", "load", "peak memory", "idle", "energy")
)
def test_every_cell_is_whole_in_80_columns(table: tuple[Grid, int]) -> None:
    grid, text_columns = table
    console = Console(file=io.StringIO(), width=80)
    console.print(grid_table(grid, text_columns, 80))
    assert isinstance(console.file, io.StringIO)
    _, *lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    for row in grid.rows:
        whole = [cell for heading, cell in zip(grid.header, row, strict=True) if heading not in NAMED]
        assert any(all(cell in line for cell in whole) for line in lines), (row, lines)
    # Names may take several lines; nothing of them, nor of the headings, is lost.
    printed_ones, told = (Counter("".join(texts)) for texts in (lines, map("".join, (grid.header, *grid.rows))))
    del printed_ones[" "], told[" "]
    assert printed_ones == told


def test_long_names_cost_no_number_and_no_phase(tmp_path: Path) -> None:
    layouts = {NAMES[-2]: STANDARD, NAMES[-1]: SPLIT}
    path = SyntheticRun(layouts=layouts, rounds=2).write(tmp_path / "run")
    wide, narrow = printed(path, width=300).partition("\nDevices")[0].splitlines(), printed(path).splitlines()
    rows = [cells for line in wide if len(cells := re.split(r"\s{2,}", line.strip())) >= 5]
    assert {"step", "update_actor", "short gaps", "peak memory"} <= {cells[0] for cells in rows}
    for cells in rows:
        assert NAMES[-1] in cells or any(re.split(r"\s{2,}", line.strip()) == cells for line in narrow), cells


LONG = "learners:2,2+engines:4xtp2/staleness=1/inflight_updates=true"


def test_names_that_a_table_has_no_room_for_are_letters_with_a_legend(tmp_path: Path) -> None:
    path = SyntheticRun(layouts={"standard": STANDARD, LONG: SPLIT, "split": SPLIT}, rounds=2).write(tmp_path / "run")
    text = printed(path)
    lines = text.splitlines()
    assert [line.rstrip() for line in lines[:5]] == ["A  standard", f"B  {LONG}", "C  split", "", "B against A"]
    tables = text[: text.index("Values: ")].splitlines()[4:]
    assert not any(name in line for line in tables for name in ("standard", "learners", "split"))
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in tables if re.search(r" cpu:[01] ", line)] == ["A", "A", "B", "B", "C", "C"]
    assert f"{LONG} is slower than standard" in " ".join(text.split())
    wide = printed(path, 200)
    assert wide.startswith(f"{LONG} against standard")


def test_names_that_fit_stay(tmp_path: Path) -> None:
    layouts = {"standard": STANDARD, "split:1+1": SPLIT}
    text = printed(SyntheticRun(layouts=layouts, rounds=2).write(tmp_path / "run"))
    assert text.startswith("split:1+1 against standard")
    assert [line.split()[0] for line in text.splitlines() if " cpu:0 " in line] == ["standard", "split:1+1"]


def test_letters_go_on_behind_z() -> None:
    assert [_letters(number) for number in (0, 25, 26, 27, 51, 52, 701, 702)] == [
        "A", "Z", "AA", "AB", "AZ", "BA", "ZZ", "AAA",
    ]  # fmt: skip
