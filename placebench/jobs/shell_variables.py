"""Values of variables in a user's shell script, as far as its plain assignments and its environment say them."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

_STATEMENTS = re.compile(r"[;\n]|&&|\|\|")
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<more>\+?)=(?P<value>.*)", re.DOTALL)
_REFERENCE = re.compile(
    r"\$(?:(?P<plain>[A-Za-z_]\w*)|\{(?P<name>[A-Za-z_]\w*)(?:(?P<or_empty>:?)-(?P<default>[^{}]*))?\})"
)
_BEGIN = ("then", "else", "do", "{", "(")
_DECLARE = ("export", "local", "declare", "readonly", "typeset")
_SET_OTHERWISE = ("for", "read", "getopts", "mapfile", "readarray", "unset")
# That of a Python environment sets what is its own.
_READS_ANOTHER = re.compile(r"(?:^|[;&|])\s*(?:source|\.)\s+(?!\S*activate\b)", re.MULTILINE)


class ShellVariables:
    """The variables of a script.

    Args:
        text: of the script, without comments.
        environment: in which it starts, a `$` in what is not known; None where nothing of it is.
    """

    def __init__(self, text: str, environment: Mapping[str, str] | None) -> None:
        found: dict[str, set[str | None]] = {}
        text = text.replace("\\\n", " ")
        for statement in _STATEMENTS.split(text):
            for name, value in _assigned(_words(statement)):
                found.setdefault(name, set()).add(value)
        self._assigned = {name: values.pop() if len(values) == 1 else None for name, values in found.items()}
        # What another script sets is not seen.
        self._environment = None if _READS_ANOTHER.search(text) else environment

    def filled(self, text: str) -> str:
        """A text with the references whose values are known replaced; the others stay."""
        return self._filled(text, frozenset())

    def _filled(self, text: str, within: frozenset[str]) -> str:
        return _REFERENCE.sub(lambda match: self._value(match, within), text)

    def _value(self, match: re.Match[str], within: frozenset[str]) -> str:
        """What a reference stands for; `within` are the variables whose own values it is in."""
        name = match["plain"] or match["name"]
        if name in self._assigned and name not in within:
            value = self._assigned[name]
            value = None if value is None else self._filled(value, within | {name})
            is_known = value is not None
        else:
            is_known = self._environment is not None
            value = self._environment.get(name) if self._environment is not None else None
        if is_known and match["default"] is not None and (value is None or (match["or_empty"] and not value)):
            value = self._filled(match["default"].strip("\"'"), within)
        return match[0] if value is None or "$" in value or "`" in value else value


def _words(statement: str) -> Sequence[str]:
    try:
        return shlex.split(statement)
    except ValueError:  # a quote that is closed in another one
        return statement.split()


def _assigned(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Variables that a statement sets, each with its value; None for one that is not plain."""
    while words and words[0] in _BEGIN:
        words = words[1:]
    if words and words[0] in _SET_OTHERWISE:
        yield from ((word, None) for word in words[1:] if word.isidentifier())
        return
    declares = bool(words) and words[0] in _DECLARE
    for word in words[1:] if declares else words:
        if match := _ASSIGNMENT.fullmatch(word):
            value = match["value"]
            is_plain = not match["more"] and value[:1] != "(" and not re.search(r"\$\(|[`\"']", value)
            yield match["name"], value if is_plain else None
        elif not declares:
            return
