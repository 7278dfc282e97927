"""How wide the columns of a table on the terminal are, so that numbers stay whole however little room there is."""

import re
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from textwrap import TextWrapper
from typing import Literal

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

# Between two columns.
GAP = 2
# Headings whose words are no longer than this, as placebench's own are, are broken only when names are this narrow.
SHORT_WORD = 10
NAME_COLUMNS = 6
# Where names are broken first: learners:1|+engines:1|/staleness=1, actor|.ref8|+critic8|-tp4|.yaml, tokens/s/|device.
_MARKS = r"(?<=/s/)|(?=[+/])(?<!/s)(?!/s/)|(?=\.[a-z])|(?=-[a-z]+\d)"


class Holds(Enum):
    """What the cells of a column are.

    Labels are what numbers, phases and verdicts are called. Names are those of placements and devices, which users
    choose and which can be long.
    """

    LABELS = auto()
    NAMES = auto()
    NUMBERS = auto()


def add_columns(
    table: Table, headings: Sequence[str], holds: Sequence[Holds], rows: Sequence[Sequence[str]], width: int
) -> list[int]:
    """Give a table its columns, numbers at the right; returns how wide they are, together no more than `width`.

    What is too long is broken in this order, each no more than it must be: headings between words, names between
    words, long words of both, all else. Numbers never are.
    """
    widths = _widths(headings, holds, rows, width)
    for heading, what, columns in zip(headings, holds, widths, strict=True):
        justify: Literal["left", "right"] = "right" if what is Holds.NUMBERS else "left"
        table.add_column(Text(broken(heading, columns)), justify=justify, overflow="fold", width=columns)
    return widths


def broken(name: str, width: int) -> str:
    """A name or heading in lines of at most `width`, broken within words where there is no other way."""
    return "\n".join(_Wrapper(width).wrap(name))


def keeps_words(names: Iterable[str], width: int) -> bool:
    """Whether all names can be in lines of this width without a break within a word."""
    return max(map(_longest_word, names), default=0) <= width


def parts(name: str) -> list[str]:
    """A name or heading in the parts between which it is broken first."""
    return [part for part in re.split(_MARKS, name) if part]


class _Wrapper(TextWrapper):
    """Breaks lines at blanks and at the marks of names; a no-break space stays within its line.

    The pattern is the one by which the base class tells words apart.
    """

    wordsep_re = re.compile(rf"{_MARKS}|([^\S\xa0]+)")


def _widths(headings: Sequence[str], holds: Sequence[Holds], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    room = width - GAP * (len(headings) - 1)
    columns = [
        _narrower(heading, what, [row[index] for row in rows])
        for index, (heading, what) in enumerate(zip(headings, holds, strict=True))
    ]
    for step in range(1, len(columns[0])):
        # The widest give way first.
        for widest in range(width, 0, -1):
            widths = [min(column[step - 1], max(column[step], widest)) for column in columns]
            if sum(widths) <= room:
                return widths
    return [column[-1] for column in columns]


def _narrower(heading: str, what: Holds, cells: Sequence[str]) -> tuple[int, ...]:
    """Widths of a column: as wide as it wants to be, then as narrow as each kind of break allows."""
    cell, words = max([1, *map(cell_len, cells)]), max([1, *map(_longest_word, cells)])
    head = _longest_word(heading)
    whole, between_words = max(cell, cell_len(heading)), max(cell, head)
    match what:
        case Holds.LABELS:
            return whole, between_words, between_words, between_words, 1
        case Holds.NAMES:
            return whole, between_words, max(words, head), min(max(words, head), NAME_COLUMNS), 1
        case Holds.NUMBERS:
            return whole, between_words, between_words, cell if head > SHORT_WORD else between_words, cell


def _longest_word(text: str) -> int:
    return max([1, *(cell_len(word) for word in _Wrapper.wordsep_re.split(text) if word)])
