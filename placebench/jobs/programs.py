"""The programs that a job's commands name: whether they are there."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from placebench.jobs.scripts import missing_script
from placebench.spec.legible import shown


def missing_program(name: str, words: Sequence[str], folder: Path, path: str) -> Iterator[str]:
    """What a command starts, or has its interpreter read, and is not there.

    Args:
        name: what the user calls the command.
        words: program and arguments; none for no command.
        folder: where it starts.
        path: where programs are looked for.
    """
    if not words or "{" in words[0]:
        return
    if not is_program(words[0], folder, path):
        where = f"in {folder.absolute()}" if "/" in words[0] else "on PATH"
        is_text = "/" in words[0] and (file := folder / in_home(words[0])).is_file()
        more = f": {file.name} is not executable: chmod +x it, or put the program that runs it first" if is_text else ""
        yield f"{name}: there is no program {shown(words[0])} {where}{more}"
    elif script := missing_script(words, folder, path):
        yield f"{name}: there is no file {shown(script)} in {folder.absolute()}"


def is_program(program: str, folder: Path, path: str) -> bool:
    """Whether a word names a program: a file of a folder, or what is found on a path."""
    word = str(folder.absolute() / in_home(program)) if "/" in program else program
    return shutil.which(word, path=path) is not None


def in_home(path: str) -> Path:
    """A path with the home folder that `~` stands for; as it is where there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)
