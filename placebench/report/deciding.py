"""The run that decides what a prediction leaves open, as a command to copy."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

_INDENT = "  "
_BREAK = " \\"


@dataclass(frozen=True)
class DecidingRun:
    """How to start a run of what was predicted, under any placements."""

    options: tuple[str, ...] | None
    """Words behind placements and rounds: the job and its devices; None of a job whose command nobody knows."""
    short: tuple[str, ...] = ()
    """The same with as many steps as tell how fast a host is."""
    hint: str = ""
    """What to mind; empty for nothing."""
    spelled: Mapping[str, str] = field(default_factory=dict)
    """The words of placements that have another one than their name, such as the path of a file."""
    is_unwritten: bool = False
    """Whether these words are of files that are still to be written."""

    def words(self, names: Sequence[str], rounds: int, *, is_short: bool = False) -> tuple[str, ...]:
        """The words of the command; without those of a job whose command nobody knows."""
        choice = ("--placements", ",".join(self.spelled.get(name, name) for name in names), "--rounds", str(rounds))
        if self.options is None:
            return choice
        return ("placebench", "run", *choice, *(self.short if is_short else self.options))

    def remark(self, names: Sequence[str]) -> str:
        """What to know before the command is typed; empty for nothing."""
        if self.options is None:
            return "by the job's own command, which is not known here, with"
        lacks = self.is_unwritten and not self.spelled.keys().isdisjoint(names)
        return "; ".join(filter(None, ["write the files first, with --write DIR here" if lacks else "", self.hint]))


def print_command(
    run: DecidingRun, what: str, names: Sequence[str], rounds: int, console: Console, *, is_short: bool = False
) -> None:
    """Print what a command is for, and the command, whose lines end where a shell goes on reading.

    Args:
        run: what is started.
        what: what it is for.
        names: of its placements.
        rounds: of each.
        console: where to.
        is_short: whether few steps of each are enough.
    """
    remark = run.remark(names)
    console.print(Text(f"{what}{f' ({remark})' if remark else ''}:", "bold"))
    parts: list[str] = []
    for word in map(shlex.quote, run.words(names, rounds, is_short=is_short)):
        # A value stays with its option.
        if parts and parts[-1].startswith("--") and " " not in parts[-1] and not word.startswith("--"):
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    line = _INDENT
    for part in parts:
        if line.strip() and len(line) + len(part) + len(_BREAK) > console.width:
            console.print(Text(line.rstrip() + _BREAK), soft_wrap=True)
            line = _INDENT * 2
        line += f"{part} "
    console.print(Text(line.rstrip()), soft_wrap=True)
