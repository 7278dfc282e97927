"""The files in which a job of the user's logs its steps: where they are, and what was in them before a launch."""

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from placebench.jobs.spec import fill
from placebench.spec.reading import FileState


def log_patterns(files: Sequence[str], names: Mapping[str, str], cwd: Path) -> tuple[str, ...]:
    """Where a launch logs its steps, as patterns of absolute paths.

    Args:
        files: as the user or an adapter writes them, patterns too; where they are relative, the job's folder counts.
        names: what stands in braces; it is no pattern, whatever is in it.
        cwd: the folder in which the job starts.
    """
    filled = {name: glob.escape(value) for name, value in names.items()}
    folder = glob.escape(str(cwd.absolute()))
    return tuple(os.path.join(folder, os.path.expanduser(fill(name, filled))) for name in files)


def found_files(patterns: Sequence[str]) -> Iterator[Path]:
    """The files that patterns match now, those of the first pattern first."""
    return (Path(name) for pattern in patterns for name in sorted(glob.glob(pattern)) if os.path.isfile(name))


def states_of(patterns: Sequence[str]) -> dict[str, FileState]:
    """What the files that patterns match are now, by their paths."""
    states = {}
    for path in found_files(patterns):
        with suppress(FileNotFoundError):  # gone meanwhile
            states[str(path)] = FileState.of(path.stat())
    return states
