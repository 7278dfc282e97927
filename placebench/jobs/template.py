"""A job file to begin with: every key with its meaning, what need not be said behind a sign of comment."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from placebench.errors import UsageError
from placebench.jobs.registry import ADAPTERS
from placebench.jobs.spec import NAMES, JobSpec, LogOfJob
from placebench.record.writing import write_output
from placebench.spec.legible import shown
from placebench.spec.words import names_file

_EXAMPLES = {
    "cwd": "~/my-job",
    "python": "~/envs/my-job",
    "env": '{HF_HUB_OFFLINE: "1"}',
    "ray": "own",
    "log": '{format: verl-jsonl, files: ["{folder}/metrics.jsonl"]}',
    "phases": "{my_rollout: gen}",
    "before": "./warm_cache.sh",
    "after": "rm -rf {folder}/checkpoints",
}
_PLACEMENTS = """placements:
  {word}:
  # split:3+1:
  # my-own: {args: "my.setting=1", env: {MY_SETTING: "1"}, pools: {all: 8}}"""


def write_template(path: Path, job: str | None, command: Sequence[str]) -> None:
    """Write a job file.

    Args:
        path: where; a file that is there is kept.
        job: the framework; None for any command.
        command: what starts a launch; nothing for an example.

    Raises:
        UsageError: there is such a file, it cannot be written, or the framework is not known.
    """
    framework = job or "command"
    if framework not in ADAPTERS:
        what = "is a job file already" if names_file(framework) else "is no framework"
        raise UsageError(f"--job {shown(framework)} {what}: use {', '.join(ADAPTERS)}")
    if path.exists():
        raise UsageError(f"--write-config {path}: it is there already: name another file")
    try:
        write_output(path, "\n".join(_lines(framework, command)) + "\n")
    except OSError as error:
        raise UsageError(f"--write-config {path}: cannot write it: {error.strerror}") from None


def _lines(framework: str, command: Sequence[str]) -> Iterator[str]:
    yield f"# A job for placebench run --job FILE. These names may stand in braces in any text: {', '.join(NAMES)}."
    words = shlex.join(command or ADAPTERS[framework].example)
    given = {"job": framework, "command": words if "{args}" in words else f"{words} {{args}}"}
    for name, field in JobSpec.model_fields.items():
        yield f"# {field.description}"
        if name == "placements":
            yield _PLACEMENTS.replace("{word}", ADAPTERS[framework].word)
        elif name in given:
            yield f"{name}: {_quoted(given[name])}"
        else:
            value = _EXAMPLES.get(name)
            yield f"# {name}: {value or str(field.default).lower()}"
    yield f"# keys of log: {'; '.join(f'{name}: {field.description}' for name, field in LogOfJob.model_fields.items())}"


def _quoted(text: str) -> str:
    """A text that YAML reads as such, on one line: within single quotes, an end of a line would become a blank."""
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return yaml.safe_dump(text, default_style='"', width=sys.maxsize).rstrip("\n")
