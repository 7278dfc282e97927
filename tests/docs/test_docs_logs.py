"""docs/logs.md says of every format and every trap what the readers do."""

import re
from pathlib import Path

from placebench.logs.registry import DIALECTS, FORMATS

PAGE = (Path(__file__).parents[2] / "docs" / "logs.md").read_text(encoding="utf-8")


def table(heading: str) -> dict[str, list[str]]:
    """The cells of each row of a section's first table, by the name in its first cell."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in section.splitlines() if line.startswith("| `")]
    return {cells[0].strip(" `"): [cell.strip() for cell in cells[1:]] for cells in rows}


def test_every_format_stands_in_the_order_in_which_it_is_tried_with_its_traps() -> None:
    rows = table("Formats")
    assert list(rows) == [known.name for known in FORMATS]
    for known in FORMATS:
        traps = re.findall(r"`([^`]+)`", rows[known.name][-1])
        assert traps == [trap.name for trap in (known.dialect.traps if known.dialect else ())]


def test_every_trap_is_explained() -> None:
    assert set(table("Known traps")) == {trap.name for dialect in DIALECTS for trap in dialect.traps}
