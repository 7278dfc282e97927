"""Runs as users name them: by their folder, or as `latest`."""

from pathlib import Path

from placebench.errors import UsageError
from placebench.spec.reading import parse_json


def find_run(text: str) -> Path:
    """The folder of a run, by path, or the newest one under `runs` for `latest`.

    Raises:
        UsageError: there is no run yet.
    """
    path = Path(text)
    if text != "latest" or path.exists():
        return path
    runs = list(Path("runs").glob("*/run.json"))
    if not runs:
        raise UsageError("latest: there is no run under runs/ yet; start one with placebench run")
    return max(runs, key=lambda run: (_started(run), run)).parent


def _started(run_file: Path) -> str:
    """When a run was started, by its file, for a folder may have been renamed; empty where that cannot be read."""
    try:
        return str(parse_json(run_file.read_text(encoding="utf-8"))["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def with_latest(text: str) -> str:
    """A run with `latest` in place of its folder, alone or before a placement."""
    word, colon, placement = text.partition(":")
    return f"{find_run(word)}{colon}{placement}" if word == "latest" else text
