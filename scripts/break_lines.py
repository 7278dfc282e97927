"""Break the prose of Markdown pages at sentences and at 100 characters: `python scripts/break_lines.py PAGE...`."""

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

WIDTH = 100
_KEPT = re.compile(r"$|[|#<>]|!\[|    ")  # empty lines, tables, headings, HTML, quotes, pictures, code by indentation
_ITEM = re.compile(r" *(?:[-*]|\d+\.) ")
_CODE = re.compile(r"`[^`]{,96}`")
_SENTENCE = re.compile(r"(?<=[^.][.!?])(?<!e\.g\.)(?<!i\.e\.)(?<! al\.) |(?<=[.!?][*\")]) ")
# Before a unit, and before what would be the mark of a list, a quote or a heading at the start of a line.
_GLUED = re.compile(r"(?<=\d) (?=%|(?:s|ms|GiB|MiB|tokens/s)\b)| (?=(?:[-+*>#|]|\d+\.)(?: |$))")
_GLUE = "\x00"  # a blank where no line breaks


def break_lines(page: str) -> str:
    """The same page with a line for each sentence, and more where one has over 100 characters."""
    lines: list[str] = []
    paragraph: list[str] = []
    in_code = False
    for line in [*page.splitlines(), ""]:
        fence = line.lstrip().startswith("```")
        kept = in_code or fence or (_KEPT.match(line) and not (paragraph and line.startswith("    ")))
        if kept or _ITEM.match(line):
            lines += _broken(paragraph)
            paragraph = []
        if kept:
            lines.append(line)
        else:
            paragraph.append(line)
        in_code ^= fence
    return "\n".join(lines)


def _broken(paragraph: list[str]) -> Iterator[str]:
    """The lines of a paragraph, or of an item of a list."""
    if not paragraph:
        return
    marker = _ITEM.match(paragraph[0])
    first = marker[0] if marker else paragraph[0][: -len(paragraph[0].lstrip())]
    text = " ".join([paragraph[0][len(first) :], *(line.strip() for line in paragraph[1:])])
    whole = _CODE.sub(lambda code: code[0].replace(" ", _GLUE), text)
    for sentence in _SENTENCE.split(_GLUED.sub(_GLUE, whole)):
        for line in textwrap.wrap(
            sentence,
            WIDTH,
            initial_indent=first,
            subsequent_indent=" " * len(first),
            break_long_words=False,
            break_on_hyphens=False,
        ):
            yield line.replace(_GLUE, " ")
            first = " " * len(first)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        page = Path(name)
        page.write_text(break_lines(page.read_text(encoding="utf-8")), encoding="utf-8")
