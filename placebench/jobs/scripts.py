"""What a user's command says before it runs: its script files, the settings in them, and what it would end."""

import os
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from placebench.jobs.shell_variables import ShellVariables

# A larger file is data or a program, and no script.
_MOST_BYTES = 1 << 20
# What ends processes that are not the script's own: placebench's, and everybody's Ray.
_ENDS_OTHERS = re.compile(
    r"(?:^|[\s;&|(`\"'/])(?P<what>pkill|killall|ray\s+stop|kill\s+(?:-\w+\s+)*-1)(?=$|[\s;&|)`\"'])"
)
_NAME = r"[A-Za-z_][\w.-]*+"
# What stands behind a flag and is no value of it: another flag (a negative number is none), or arguments handed on.
_NO_VALUE = r"-{1,2}[A-Za-z]|[\"']?\$(?:[@*]|\{[@*]|\{\w+\[[@*])|\{args\}"
_SETTING = re.compile(
    rf"(?<![\w.+$-])(?:(?:--(?P<flag>{_NAME})(?:=|[ \t]+(?!{_NO_VALUE}))|\+{{0,2}}(?P<key>{_NAME})=)"
    rf"(?P<quote>[\"']?)(?P<value>(?!\()[^\s\\\"';|&]+)|--(?P<bare>{_NAME})(?=[\"']?[ \t]*(?:$|[;|&)<>]|{_NO_VALUE})))",
    re.MULTILINE,
)
# A value in a program that stands there as it is.
_LITERAL = re.compile(r"-?[\d.]+(?:e-?\d+)?|True|False|None")
WORKED_OUT = "$"
"""Stands for a value that is worked out when the job runs."""
_FLAG = re.compile(r"(?<![\w.+$-])--([A-Za-z_][\w.-]*)")
SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
"""Programs that run scripts of a shell."""
PYTHON_PROGRAMS = ("python", "python3", "torchrun", "accelerate", "deepspeed")
"""Python and launchers of its ranks, behind which stand a script of Python's and its arguments."""
# Options of these, behind which stands a module, a program or code.
_NO_SCRIPT = ("-m", "--module", "-c", "--no-python", "--no_python")


@dataclass(frozen=True)
class Given:
    """A command and the script files that it names, as far as they can be read."""

    command: tuple[str, ...]
    """Program and arguments."""
    scripts: Mapping[str, str]
    """Text of the files that the command names, by the word that names them."""
    environment: Mapping[str, str] | None = None
    """The environment in which it starts, a `$` in what is not known; None where nothing of it is."""

    @cached_property
    def _texts(self) -> Mapping[str, str]:
        """What its scripts say and it itself, without comments; not its configuration files."""
        texts = {name: text for name, text in self.scripts.items() if Path(name).suffix not in _CONFIGS}
        return {name: "\n".join(code_lines(text)) for name, text in {**texts, "": " ".join(self.command)}.items()}

    @cached_property
    def settings(self) -> Mapping[str, str]:
        """Values by key of `key=value`, `--key=value` and `--key value`, in scripts and command; the last one counts.

        A `--key` without a value is true. Before them come those of YAML and TOML files that the command names, under
        dotted keys. What a shell or a program works out is left out, but for a shell's variables (`$BATCH`) whose
        values its script or the environment says.
        """
        return {key: value for key, value in self.said.items() if "$" not in value}

    @cached_property
    def said(self) -> Mapping[str, str]:
        """As `settings`, with those that a shell or a program works out."""
        return {**self._of_files, **self._in_texts(are_programs=True), **self._in_texts(are_programs=False)}

    def told(self, *keys: str) -> str | None:
        """The value of the first of these keys that the program is given, whatever stands in its own text."""
        given = {**self._of_files, **self._in_texts(are_programs=False)}
        return next((given[key] for key in keys if "$" not in given.get(key, "$")), None)

    @cached_property
    def _of_files(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for name, text in self.scripts.items():
            found |= _config_settings(name, text)
        return found

    def _in_texts(self, *, are_programs: bool) -> Mapping[str, str]:
        """Settings in programs, or in shell scripts and the command."""
        found: dict[str, str] = {}
        for name, text in self._texts.items():
            if _is_program(name) == are_programs:
                given = dict(_settings_in(text, is_program=are_programs))
                known = self._variables(name, text) if any("$" in value for value in given.values()) else None
                found |= {key: known.filled(value) for key, value in given.items()} if known else given
        return found

    def _variables(self, name: str, text: str) -> ShellVariables | None:
        """The variables of a shell script, or of a text that a shell is given in the command; None of other texts."""
        if _is_program(name) or (not name and not any(Path(word).name in SHELLS for word in self.command)):
            return None
        environment = self.environment
        if environment is not None:  # env may stand before what it starts
            environment = {**environment, **dict(word.split("=", 1) for word in self.command if "=" in word)}
        return ShellVariables(text if name else "\n".join(self.command), environment)

    @cached_property
    def _lines(self) -> str:
        """What shell scripts and the command say: not what a program says of all arguments that it could have."""
        return "\n".join(text for name, text in self._texts.items() if not _is_program(name))

    @cached_property
    def flags(self) -> frozenset[str]:
        """Names of all `--name` in shell scripts and command, also of those without a value or of an unknown one."""
        return frozenset(_FLAG.findall(self._lines))

    def starts(self, pattern: str) -> bool:
        """Whether shell scripts or command name a program.

        Args:
            pattern: a regular expression for its name.
        """
        return re.search(pattern, self._lines) is not None

    def number(self, *keys: str) -> int | None:
        """The whole number of the first of these keys that has one; None where none has."""
        values = (self.settings.get(key, "") for key in keys)
        return next((int(value) for value in values if re.fullmatch("[0-9]{1,18}", value)), None)

    @property
    def dangers(self) -> Iterator[str]:
        """Lines that end processes of others, each with where it stands."""
        for where, code in self._numbered(lambda name: True):
            if match := _ENDS_OTHERS.search(code):
                yield f"{where}: {' '.join(match['what'].split())!r} in {code.strip()[:100]!r}"

    @property
    def shell_lines(self) -> Iterator[tuple[str, str]]:
        """Where each line of shell scripts and command stands, and the line without comments."""
        return self._numbered(lambda name: not _is_program(name) and Path(name).suffix not in _CONFIGS)

    def _numbered(self, is_asked: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
        for name, text in self.scripts.items():
            if is_asked(name):
                for number, line in enumerate(text.splitlines(), start=1):
                    yield f"{name}, line {number}", next(code_lines(line), "")
        for line in code_lines(" ".join(self.command)):
            yield "the command", line


def _is_program(name: str) -> bool:
    """Whether a file is a program of Python's, and no shell script."""
    return Path(name).suffix == ".py"


def _settings_in(text: str, *, is_program: bool) -> Iterator[tuple[str, str]]:
    """Keys and values in a text without comments.

    Of a program only `key=value`: what it says of flags is its help.
    """
    for match in _SETTING.finditer(text if is_program else text.replace("\\\n", " ")):
        value = match["value"] or "true"
        if is_program and match["key"]:
            value = value.rstrip(",)")
            yield match["key"], value if match["quote"] or _LITERAL.fullmatch(value) else WORKED_OUT
        elif not is_program:
            # A list of a shell ends so.
            yield match["flag"] or match["key"] or match["bare"], value if "(" in value else value.rstrip(")")


def code_lines(text: str) -> Iterator[str]:
    """Lines of a script without comments."""
    return (line.partition(" #")[0] for line in text.splitlines() if not line.lstrip().startswith("#"))


def _flat(content: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Single values of nested mappings under dotted keys."""
    for key, value in content.items() if isinstance(content, Mapping) else ():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif not isinstance(value, list):
            yield f"{prefix}{key}", str(value)


_CONFIGS: Mapping[str, Callable[[str], Any]] = {
    ".yaml": yaml.safe_load,
    ".yml": yaml.safe_load,
    ".toml": tomllib.loads,
}


def _config_settings(name: str, text: str) -> dict[str, str]:
    """Values of a configuration file; none of one that only its own program can read, as for its tags."""
    load = _CONFIGS.get(Path(name).suffix)
    try:
        return dict(_flat(load(text))) if load else {}
    except (yaml.YAMLError, ValueError, AttributeError, RecursionError):  # of odd numbers and dates too
        return {}


def read_command(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> Given:
    """A command with the script files that it names.

    Args:
        command: program and arguments.
        folder: where it starts.
        environment: in which it starts, a `$` in what is not known; None where nothing of it is.
    """
    texts = ((word, _script(folder / word)) for word in command)
    return Given(tuple(command), {word: text for word, text in texts if text is not None}, environment)


def missing_script(command: Sequence[str], folder: Path, path: str) -> str | None:
    """The script that a command names for a shell, Python or a launcher of ranks, and that is not there.

    Args:
        command: program and arguments.
        folder: where it starts.
        path: where a shell looks for a script that is not in the folder.
    """
    program, words = Path(command[0]).name, command[1:]
    if program in SHELLS and words and not words[0].startswith("-"):
        word = words[0]
        is_on_path = shutil.which(word, os.F_OK, path) is not None
    elif program in PYTHON_PROGRAMS:
        own = takewhile(lambda word: word not in _NO_SCRIPT, words)
        word, is_on_path = next((word for word in own if word.endswith(".py") and "=" not in word), ""), False
    else:
        return None
    return None if is_on_path or "{" in word or (folder / word).exists() else word


def _script(path: Path) -> str | None:
    """The text of a script; None for what is none."""
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        content = path.read_bytes()
    except (OSError, ValueError):
        return None
    return None if b"\0" in content else content.decode(errors="replace")
