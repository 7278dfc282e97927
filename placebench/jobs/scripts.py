"""What a user's command says before it runs: its script files, the settings in them, and what it would end."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

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
_HANDS_ON = re.compile(r"\$(?:[@*]|\{[@*]\}|\{@[:#%/])")
_SHELLS = ("bash", "sh", "zsh", "dash")


@dataclass(frozen=True)
class Given:
    """A command and the script files that it names, as far as they can be read."""

    command: tuple[str, ...]
    """Program and arguments."""
    scripts: Mapping[str, str]
    """Text of the files that the command names, by the word that names them."""

    @cached_property
    def settings(self) -> Mapping[str, str]:
        """Values by key of `key=value`, `--key=value` and `--key value`, in scripts and command; the last one counts.

        What a shell or a program works out (`$BATCH`) is not known and left out.
        """
        found: dict[str, str] = {}
        for text in (*self.scripts.values(), " ".join(self.command)):
            lines = (line.partition(" #")[0] for line in text.splitlines() if not line.lstrip().startswith("#"))
            for match in _SETTING.finditer("\n".join(lines)):
                found[match["flag"] or match["key"]] = match["value"]
        return {key: value for key, value in found.items() if "$" not in value}

    def number(self, *keys: str) -> int | None:
        """The whole number of the first of these keys that has one; None where none has."""
        values = (self.settings.get(key, "") for key in keys)
        return next((int(value) for value in values if re.fullmatch("[0-9]{1,18}", value)), None)

    @cached_property
    def unread_arguments(self) -> str | None:
        """The shell script that takes no arguments, so that those given to it are lost; None where there is none."""
        if Path(self.command[0]).name not in _SHELLS:
            return None
        script = next((word for word in self.command[1:] if not word.startswith("-")), None)
        text = self.scripts.get(script or "")
        return script if text is not None and not _HANDS_ON.search(text) else None

    @property
    def dangers(self) -> Iterator[str]:
        """Lines that end processes of others, each with where it stands."""
        for name, text in (*self.scripts.items(), ("the command", " ".join(self.command))):
            for number, line in enumerate(text.splitlines(), start=1):
                code = "" if line.lstrip().startswith("#") else line.partition(" #")[0]
                if match := _ENDS_OTHERS.search(code):
                    where = f"{name}, line {number}" if name in self.scripts else name
                    yield f"{where}: {' '.join(match['what'].split())!r} in {code.strip()[:100]!r}"


def read_command(command: Sequence[str], folder: Path) -> Given:
    """A command with the script files that it names.

    Args:
        command: program and arguments.
        folder: where it starts.
    """
    texts = ((word, _script(folder / word)) for word in command)
    return Given(tuple(command), {word: text for word, text in texts if text is not None})


def _script(path: Path) -> str | None:
    """The text of a script; None for what is none."""
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        content = path.read_bytes()
    except (OSError, ValueError):
        return None
    return None if b"\0" in content else content.decode(errors="replace")
