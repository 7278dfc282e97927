"""Text from outside (names, paths, other programs' words) where it leaves the program for people to read.

None of it may steer what shows it: a terminal, a page, a sheet, or the CI system that reads a job's output.
"""

import re
import reprlib
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")

# Cells that spreadsheets take for formulas (OWASP, 'CSV Injection').
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
# What Markdown reads as markup: anywhere, around words, at the start of a line, and what GitHub makes a link of.
_MARKUP = re.compile(
    r"[\\`*|<\[~]|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])"
    r"|^\s*(?:[#>]|[-+](?=[-\s]|$)|[0-9]+[.)](?=\s|$))"
    r"|:(?=//)(?!//ui\.perfetto\.dev)|(?<=www)\.",
    re.IGNORECASE,
)
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxlist, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 2, 4, 8, 80, 80, 40
# Together about as long as the longest line that names every form of a word.
_HEAD, _TAIL = 500, 200


def visible(text: str) -> str:
    r"""Text with every character that is not one to look at as its escape: `\x1b`, `\n`, `\u202e`.

    These are control characters, marks that turn the direction of writing or have no width, other ends of lines, and
    what stands for bytes of a file name that are not UTF-8. Blanks of any width stay.
    """
    if text.isprintable():
        return text
    return "".join(map(_visible_char, text))


def visible_lines(text: str) -> str:
    """As `visible`, of text that has lines."""
    return "\n".join(map(visible, text.split("\n")))


def _visible_char(char: str) -> str:
    if char.isprintable() or unicodedata.category(char) == "Zs":
        return char
    if "\udc80" <= char <= "\udcff":  # how Python writes a byte of a file name that is not UTF-8
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")


def encodable(text: str) -> str:
    """Text that can be written as UTF-8: lone surrogates, which cannot, as their escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def legible(value: T) -> T:
    """A value with all text in it `visible`."""
    return each_text(value, visible)


def each_text(value: T, change: Callable[[str], str]) -> T:
    """A value with all text in it changed: in containers and data classes too, keys of mappings included."""
    found: Any = value
    if isinstance(found, str):
        found = found if isinstance(found, Enum) else change(found)
    elif isinstance(found, Mapping):
        found = {each_text(key, change): each_text(below, change) for key, below in found.items()}
    elif type(found) in (list, tuple):
        found = type(found)(each_text(below, change) for below in found)
    elif is_dataclass(found) and not isinstance(found, type):
        changes = {field.name: each_text(getattr(found, field.name), change) for field in fields(found)}
        found = replace(found, **changes)
    elif hasattr(found, "model_copy"):  # of pydantic, which not all who import this need
        found = found.model_copy(update={name: each_text(below, change) for name, below in found})
    changed: T = found
    return changed


def shown(value: object) -> str:
    """A value in a message, as Python writes it; long ones with their middle left out."""
    try:
        return visible(_SHORT.repr(value))
    except ValueError:  # an integer of more digits than Python writes
        return f"a number of {value.bit_length():,} bits" if isinstance(value, int) else type(value).__name__


def one_line(text: str) -> str:
    """A message as one line of no more length than is read; what is quoted in it may be of any."""
    line = visible(" ".join(filter(None, (part.strip() for part in text.splitlines()))))
    if len(line) <= _HEAD + _TAIL:
        return line
    return f"{line[:_HEAD]} … {line[-_TAIL:]}"


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it is, in a line or a cell of a table."""
    return _MARKUP.sub(lambda found: f"{found[0][:-1]}\\{found[0][-1]}", visible(text))


def sheet_cell(text: str) -> str:
    """Text as a cell of CSV: behind a quote where a spreadsheet would take it for a formula."""
    return f"'{visible(text)}" if text.startswith(_FORMULA) else visible(text)
