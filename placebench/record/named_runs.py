"""Runs as users name them: by their folder, by name, by what either begins with, or as `latest`."""

import difflib
from pathlib import Path

from placebench.errors import UsageError
from placebench.record import RUNS
from placebench.record.folder import RunFolder, is_run, run_folders
from placebench.spec.reading import exists
from placebench.spec.text import plural

LATEST = "latest"
_MOST_LISTED = 5


def find_run(text: str, runs: Path = RUNS) -> Path:
    """The folder of the run that a word names; a path that is there, and no run's name, as it is.

    Args:
        text: a path, or a name with or without the folder in which to look: `latest`, `results/latest`.
        runs: the folder in which to look where the word has none.

    Raises:
        UsageError: there is no such run, or several may be meant.
    """
    if not text:
        raise UsageError("RUN is empty: name a run, or check whether a variable is unset; placebench list shows them")
    found = _find(text, runs)
    if found is None and not exists(Path(text)):
        above, name = _parts(text, runs)
        near = difflib.get_close_matches(name, [word for run in run_folders(above) for word in words_of(run)], n=1)
        hint = f"did you mean {near[0]}?" if near else "see placebench list, or name its folder"
        raise UsageError(f"{text}: there is no such folder, and no run of this name under {above}/; {hint}")
    return found or Path(text)


def with_run(text: str) -> str:
    """A word `RUN` or `RUN:PLACEMENT` with the run's folder in place of its name; another one as it is.

    Raises:
        UsageError: several runs may be meant.
    """
    heads = [text, *(text[:end] for end, sign in enumerate(text) if sign == ":")]
    if any(_is_path(head) for head in heads) or (exists(Path(text)) and not _find(text, RUNS)):
        return text
    found = ((head, _find(head, RUNS)) for head in heads)
    return next((f"{run}{text.removeprefix(head)}" for head, run in found if run), text)


def completed_runs(text: str) -> list[str]:
    """Words that begin with a text and name a run each: names, and folders of runs whose names others have too."""
    above, _ = _parts(text, RUNS)
    there = run_folders(above)
    names = [run.recorded("name") for run in there]
    words = [
        run.path.name if name in ("", LATEST) or names.count(name) > 1 else name
        for run, name in zip(there, names, strict=True)
    ]
    folders = [run.path.name for run in there] if text else []
    before = text[: text.rfind("/") + 1]
    found = dict.fromkeys(before + word for word in (*([LATEST] if there else []), *words, *folders))
    return [word for word in found if word.startswith(text)]


def words_of(run: RunFolder) -> tuple[str, ...]:
    """By what a run is found: its name, if it has one, and its folder's."""
    return tuple(dict.fromkeys(filter(None, (run.recorded("name"), run.path.name))))


def _find(text: str, runs: Path) -> Path | None:
    """The run that is meant, newest first of all folders; None where a word names none."""
    if _is_path(text):
        return Path(text)
    above, name = _parts(text, runs)
    there = run_folders(above) if name else []
    if name == LATEST:
        readable = [run.path for run in there if is_run(run.path)]
        if not readable:
            raise UsageError(f"{text}: there is no run under {above}/ yet; start one with placebench run")
        return readable[0]
    found = [run for run in there if run.path.name == name] or [run for run in there if name in words_of(run)]
    if not found and not exists(Path(text)):
        found = [run for run in there if any(word.startswith(name) for word in words_of(run))]
    if len(found) > 1:
        listed = ", ".join(run.path.name for run in found[:_MOST_LISTED])
        more = f" and {len(found) - _MOST_LISTED} more" if len(found) > _MOST_LISTED else ""
        raise UsageError(
            f"{text}: may be any of {plural(len(found), 'run')}: {listed}{more}; name one of these folders"
        )
    return found[0].path if found else None


def _parts(text: str, runs: Path) -> tuple[Path, str]:
    """The folder in which to look for a run, and its name there."""
    above, slash, name = text.rpartition("/")
    return Path(above or "/") if slash else runs, name


def _is_path(text: str) -> bool:
    """Whether a word is the path of a run or a file, which no name takes the place of."""
    return is_run(Path(text)) or (exists(Path(text)) and Path(text).is_file())
