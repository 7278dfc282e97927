"""What the words of `placebench check` stand for: run folders, baseline files, and one placement of either."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from placebench.errors import PlacebenchError, UsageError
from placebench.gate.baseline import Baseline, load_baseline
from placebench.record.folder import RunFolder, is_run_or_report
from placebench.record.named_runs import find_run
from placebench.record.run_file import read_run_file
from placebench.spec.legible import shown
from placebench.spec.reading import exists
from placebench.spec.words import split_words


@dataclass(frozen=True)
class CheckedWord:
    """One entry of a list."""

    path: Path
    """A run's folder or a baseline file, which need not be there."""
    placement: str | None = None
    """The one that was chosen of it; None for all."""

    def __str__(self) -> str:
        return str(self.path) if self.placement is None else f"{self.path}:{self.placement}"


def read_sources(text: str, with_run: Callable[[str], str]) -> tuple[CheckedWord, ...]:
    """The entries of a list, set apart by commas, which names of folders, files and placements may hold too.

    The longest text that is there is an entry, the whole first of all; what is not there ends at the next comma, or
    behind a colon where a list of placements would end it.

    Args:
        text: as the user writes it.
        with_run: puts the folder of a run in the place of its name.

    Raises:
        UsageError: an entry is empty.
    """
    found, rest = [], text.split(",")
    while rest:
        entries = (",".join(rest[:count]) for count in range(len(rest), 0, -1))
        entry = next((entry for entry in entries if _is_there(with_run(entry))), None)
        if entry is None:
            entry = split_words(",".join(rest))[0] if ":" in rest[0] else rest[0]
        if not entry:
            raise UsageError(f"{shown(text)}: there is an empty entry: name a run before and after each comma")
        found.append(read_source(with_run(entry)))
        rest = rest[entry.count(",") + 1 :]
    return tuple(found)


def read_source(text: str) -> CheckedWord:
    """One entry: a path, or a path, a colon and a placement."""
    if not exists(Path(text)):
        for end, sign in enumerate(text):
            path = Path(text[:end])
            if sign == ":" and (is_run_or_report(path) or (exists(path) and path.is_file())):
                return CheckedWord(path, text[end + 1 :])
    return CheckedWord(Path(text))


def refuse_missing(source: CheckedWord) -> None:
    """Refuse what is not there.

    Raises:
        UsageError: it is not, with what there is.
    """
    if not exists(source.path):
        find_run(str(source.path))


def refuse_twice(sources: Sequence[CheckedWord], measured: Sequence[Baseline]) -> None:
    """Refuse a placement of a run that is given twice, since its launches would count as so many more.

    Raises:
        UsageError: one is.
    """
    for place, (source, found) in enumerate(zip(sources, measured, strict=True)):
        for before, other in zip(sources[:place], measured[:place], strict=True):
            is_same = source.path.resolve() == before.path.resolve()
            if (is_same and found.placements.keys() & other.placements) or found.is_of_same_run(other):
                again = "" if is_same else f", as {before} is of the same run"
                raise UsageError(f"{source} is given twice{again}: name it once")


def refuse_itself(run: Sequence[Baseline], baseline: Sequence[Baseline], words: str) -> None:
    """Refuse to check a run against itself, which always passes.

    Args:
        run: the runs that are checked.
        baseline: what they are checked against.
        words: what the user calls that.

    Raises:
        UsageError: a launch is on both sides.
    """
    if any(one.is_of_same_run(other) for one in run for other in baseline):
        raise UsageError(f"--baseline {words}: is of the run that is checked: take the baseline of an earlier run")


def _is_there(entry: str) -> bool:
    """Whether an entry names a path, or a placement that is in the run or the baseline."""
    source = read_source(entry)
    if source.placement is None:
        return bool(entry) and exists(source.path)
    try:
        if source.path.is_dir():
            return any(known.name == source.placement for known in read_run_file(RunFolder(source.path)).placements)
        return source.placement in load_baseline(source.path).placements
    except PlacebenchError:
        return False
