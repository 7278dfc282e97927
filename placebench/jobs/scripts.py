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

# A larger file is data or a program, and no script.
_MOST_BYTES = 1 << 20
# What ends processes that are not the script's own: placebench's, and everybody's Ray.
_ENDS_OTHERS = re.compile(
    r"(?:^|[\s;&|(`\"'/])(?P<what>pkill|killall|ray\s+stop|kill\s+(?:-\w+\s+)*-1)(?=$|[\s;&|)`\"'])"
)
_SETTING = re.compile(
    r"(?<![\w.+$-])(?:--(?P<flag>[A-Za-z_][\w.-]*)(?:=|[ \t]+)|\+{0,2}(?P<key>[A-Za-z_][\w.-]*)=)"
    r"[\"']?(?P<value>[^\s\\\"';|&]+)"
)
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

    @cached_property
    def _texts(self) -> Mapping[str, str]:
        """What its scripts say and it itself, without comments; not its configuration files."""
        texts = {name: text for name, text in self.scripts.items() if Path(name).suffix not in _CONFIGS}
        return {name: "\n".join(code_lines(text)) for name, text in {**texts, "": " ".join(self.command)}.items()}

    @cached_property
    def settings(self) -> Mapping[str, str]:
        """Values by key of `key=value`, `--key=value` and `--key value`, in scripts and command; the last one counts.

        Before them come those of YAML and TOML files that the command names, under dotted keys. What a shell or a
        program works out (`$BATCH`) is not known and left out.
        """
        return {key: value for key, value in self.said.items() if "$" not in value}

    @cached_property
    def said(self) -> Mapping[str, str]:
        """As `settings`, with those that a shell or a program works out."""
        found: dict[str, str] = {}
        for name, text in self.scripts.items():
            found |= _config_settings(name, text)
        for text in self._texts.values():
            for match in _SETTING.finditer(text):
                found[match["flag"] or match["key"]] = match["value"]
        return found

    @cached_property
    def _lines(self) -> str:
        """What shell scripts and the command say: not what a program says of all arguments that it could have."""
        return "\n".join(text for name, text in self._texts.items() if Path(name).suffix != ".py")

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
        return self._numbered(lambda name: Path(name).suffix not in (".py", *_CONFIGS))

    def _numbered(self, is_asked: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
        for name, text in self.scripts.items():
            if is_asked(name):
                for number, line in enumerate(text.splitlines(), start=1):
                    yield f"{name}, line {number}", next(code_lines(line), "")
        for line in code_lines(" ".join(self.command)):
            yield "the command", line


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


def read_command(command: Sequence[str], folder: Path) -> Given:
    """A command with the script files that it names.

    Args:
        command: program and arguments.
        folder: where it starts.
    """
    texts = ((word, _script(folder / word)) for word in command)
    return Given(tuple(command), {word: text for word, text in texts if text is not None})


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
