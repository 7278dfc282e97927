"""Reading YAML and `key=value` settings, with errors that name file, line and key."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from placebench.errors import Reasons, UsageError
from placebench.spec.legible import shown
from placebench.spec.nested import merge, nest
from placebench.spec.reading import read_text

# What yaml lets through: a date that is none, a number of thousands of digits, brackets nested by the thousand, a tag
# that its value is not (`!!bool maybe`).
_UNREADABLE_VALUE = (ValueError, RecursionError, LookupError, AttributeError)


# What somebody writes by hand, and a program for thousands of nodes, is far below; more would take its time in every
# check and message.
MOST_BYTES, MOST_VALUES, MOST_CHARACTERS, _MOST_SETTINGS = 1 << 20, 10_000, 4096, 1000
# Python writes none of more than 4,300 digits into a message.
_MOST_BITS = 8192


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice, of which yaml takes the last without a word, and what is too large.

    An alias counts as what it stands for: a few lines of aliases of aliases are as many values as a disk can hold.

    ruamel.yaml refuses it too, and was tried: this module is no shorter with it, since it gives the lines of keys only
    with types of its own (`HexInt`, `CommentedSeq`), and reads at two thirds of the speed. Of 267 odd inputs, 30 then
    mean or say something else: `y` is true, `1e-6` comes with twelve lines of warning, an anchor may stand twice.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._values = 0
        self._values_of: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        start, before = self.peek_event(), self._values  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        if isinstance(start, yaml.AliasEvent):
            # It is not known yet of what holds itself.
            self._values += self._values_of.get(id(node), MOST_VALUES)
        else:
            self._values += 1
            self._values_of[id(node)] = self._values - before
        what = ""
        if self._values > MOST_VALUES:
            what = f"more than {MOST_VALUES:,} values, with aliases written out"
        elif isinstance(node, yaml.ScalarNode) and len(node.value) > MOST_CHARACTERS:
            what = f"a value of {len(node.value):,} characters, more than {MOST_CHARACTERS:,}"
        if what:
            raise yaml.MarkedYAMLError(problem=f"{what}: too large for placebench", problem_mark=start.start_mark)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} is given twice", problem_mark=key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else key)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value: int = super().construct_yaml_int(node)
        if value.bit_length() > _MOST_BITS:
            problem = f"a number of {value.bit_length():,} bits: too large for placebench"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return value


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def load_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds one mapping.

    Raises:
        UsageError: the file cannot be read, is not YAML (with the line), or holds something else.
    """
    text = read_text(path, at_most=MOST_BYTES)
    try:
        content = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not YAML"
        raise UsageError(f"{path}{where}: {problem}") from None
    except _UNREADABLE_VALUE as error:
        raise UsageError(f"{path}: cannot read its values: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{path}: must hold keys and values, found {type(content).__name__}")
    return content


def find_line(path: Path, key: str) -> int | None:
    """The line, counted from 1, on which a YAML file sets a dotted key, by sections or as one word; else None."""
    node = _compose(path.read_text(encoding="utf-8"))
    line, left = None, key
    while left:
        part, _, below = left.partition(".")
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        found = {name.value: (name.start_mark.line + 1, value) for name, value in pairs if name.value in (left, part)}
        if left in found:
            return int(found[left][0])
        line, node = found.get(part, (None, None))
        left = below
    return line


@lru_cache(maxsize=1)
def _compose(text: str) -> yaml.Node | None:
    """The nodes of a file, which every message about a key of it looks at."""
    node: yaml.Node | None = yaml.compose(text, _Loader)
    return node


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """Turn `a.b=1` settings into a nested mapping; values are read as YAML (`true`, `1e-3`, `[1, 2]`).

    Raises:
        UsageError: one line for every setting without `=`, with an unreadable value, or with a value for what is a
            section elsewhere.
    """
    reasons = Reasons()
    content, _ = read_settings(settings, reasons)
    reasons.raise_any()
    return content


def read_settings(settings: Iterable[str], reasons: Reasons) -> tuple[dict[str, Any], frozenset[str]]:
    """As `parse_settings`, but what is wrong goes to `reasons`; returns the others, and the keys of the wrong ones."""
    content: dict[str, Any] = {}
    wrong: set[str] = set()
    values: dict[str, Any] = {}
    settings = tuple(settings)
    if len(settings) > _MOST_SETTINGS:
        reasons.add([f"--set: given {len(settings):,} times: give it at most {_MOST_SETTINGS:,} times"])
        return content, frozenset(setting.partition("=")[0].strip() for setting in settings)
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not all(part.strip() for part in key.split(".")):
            reasons.add([f"--set {shown(setting)}: write key=value, for example --set batch.size=32"])
            wrong.add(key.strip())
            continue
        try:
            value = yaml.load(text, _Loader)
        except (yaml.YAMLError, *_UNREADABLE_VALUE):
            reasons.add([f"--set {shown(setting)}: cannot read the value {shown(text)}"])
            wrong.add(key.strip())
        else:
            values[key.strip()] = _number(value) if isinstance(value, str) else value
    for key, value in values.items():
        below = next((other for other in values if other.startswith(f"{key}.")), None)
        if below and not isinstance(value, Mapping):
            reasons.add(
                [
                    f"--set {key} sets a whole section to one value, and --set {below} a key in that section: leave one"
                    " of them out"
                ]
            )
            wrong.add(key)
            continue
        content = merge(content, nest(key.split("."), value))
    return content, frozenset(wrong)


def _number(text: str) -> str | float:
    """YAML 1.1 reads `1e-3` as text; a user means the number."""
    try:
        return float(text)
    except ValueError:
        return text
