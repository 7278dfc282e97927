"""Runs as users name them: by their folder, or as `latest`."""

from pathlib import Path

from placebench.errors import UsageError


def find_run(text: str) -> Path:
    """The folder of a run, by path, or the newest one under `runs` for `latest`.

    Raises:
        UsageError: there is no run yet.
    """
    from placebench.record.run_file import recorded_text

    path = Path(text)
    if text != "latest" or path.exists():
        return path
    runs = list(Path("runs").glob("*/run.json"))
    if not runs:
        raise UsageError("latest: there is no run under runs/ yet; start one with placebench run")
    return max(runs, key=lambda run: (recorded_text(run, "started"), run)).parent


def with_latest(text: str) -> str:
    """A run with `latest` in place of its folder, alone or before a placement."""
    word, colon, placement = text.partition(":")
    return f"{find_run(word)}{colon}{placement}" if word == "latest" else text
