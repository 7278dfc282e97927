"""What the user has given of a run, before anybody asks what it means: options, `--set`, and the YAML file."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from placebench.errors import Reasons, UsageError
from placebench.spec.auto_rounds import MOST_ROUNDS
from placebench.spec.config import find_line, load_yaml, read_settings
from placebench.spec.launchers import LAUNCHERS
from placebench.spec.legible import shown
from placebench.spec.nested import merge, nest
from placebench.spec.words import names_file
from placebench.spec.workload import keys_below
from placebench.spec.workload_reading import RUN_KEYS, gives


@dataclass(frozen=True)
class GivenFile:
    """The YAML file, with the place of each of its keys; without one, nothing is in it."""

    path: Path | None
    content: Mapping[str, Any]
    is_readable: bool = True
    """Whether its content is known; if not, `content` is empty."""

    def run_values(self, keys: Iterable[str], reasons: Reasons) -> dict[str, Any]:
        """The values of keys that belong to the run; None of one that cannot be read, with a reason."""
        return {
            key: reasons.attempt(partial(_run_value, self.place(key), key, self.content[key]))
            for key in keys
            if key in self.content
        }

    def place(self, key: str) -> str:
        """The line that sets a key; the file alone for a default of it, or for a pipe, which is read once."""
        assert self.path is not None
        line = find_line(self.path, key)
        return str(self.path) if line is None else f"{self.path}, line {line}"


@dataclass(frozen=True)
class GivenRun:
    """What stands on the command line, and the file that it names."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `RunRequest` by name that were given as options."""
    short: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    """By dotted workload key, the option given that is short for it, such as `--batch-size`, and its value."""
    settings: Sequence[str] = ()
    """`key=value` of every `--set`."""
    config: Path | None = None
    """The file of `--config`."""
    wrong: Mapping[str, str] = field(default_factory=dict)
    """By field of `RunRequest` or dotted workload key, why an option that was given cannot be read."""
    job: str | None = None
    """What `--job` names, a framework or a job file."""
    command: Sequence[str] = ()
    """The words behind `--`."""

    @property
    def names_job_file(self) -> bool:
        """Whether it is `--job` that names the file."""
        return self.job is not None and names_file(self.job)

    def read_file(self, reasons: Reasons) -> GivenFile:
        """The file that `--job` or `--config` names."""
        path = self.config
        if self.job is not None and self.names_job_file:
            if path:
                reasons.add([f"--job {self.job} and --config {path} both name a file: write all of it in one"])
            path = Path(self.job)
        if path is None:
            return GivenFile(None, {})
        content = reasons.attempt(partial(load_yaml, path))
        return GivenFile(path, content or {}, is_readable=content is not None)

    def unknown(self, file: GivenFile, run_values: Mapping[str, Any]) -> set[str]:
        """What nobody knows, for it cannot be read: options, and keys of the run that no option gives.

        Args:
            file: what `read_file` says.
            run_values: of the file.
        """
        unread = {key for key, value in run_values.items() if value is None} if file.is_readable else {*RUN_KEYS}
        return {*self.wrong, *(unread - self.options.keys())}

    def laid_over(self, reasons: Reasons) -> tuple[dict[str, Any], set[str]]:
        """What is laid over the file's workload: settings, and over these the short options.

        Returns:
            It, and the workload keys whose values nobody knows, for they are given twice or cannot be read.
        """
        over, malformed = read_settings(self.settings, reasons)
        unknown = {below for key in malformed for below in keys_below(key)}
        unknown.update(self._clashes(over, reasons))
        for key, (_, value) in self.short.items():
            over = merge(over, nest(key.split("."), value))
        return over, unknown

    def _clashes(self, over: Mapping[str, Any], reasons: Reasons) -> list[str]:
        """The keys of short options that settings give too, or have a value for the section of."""
        set_keys = self._set_keys()
        same = {key: flag for key, (flag, _) in self.short.items() if key in set_keys or gives(over, key)}
        reasons.add(f"{flag} and --set {key} are the same setting: give it once" for key, flag in same.items())
        below = {
            key: flag for key, (flag, _) in self.short.items() if not isinstance(over.get(_section(key), {}), Mapping)
        }
        reasons.add(
            f"--set {_section(key)} sets a whole section to one value, and {flag} a key in that section: leave one of"
            " them out"
            for key, flag in below.items()
        )
        return [*same, *below]

    def flags(self) -> dict[str, str]:
        """The options that say something of the workload, by dotted key."""
        return {key: flag for key, (flag, _) in self.short.items()} | dict.fromkeys(self._set_keys(), "--set")

    def _set_keys(self) -> set[str]:
        return {setting.partition("=")[0].strip() for setting in self.settings}


def origin(key: str, flags: Mapping[str, str], file: GivenFile, otherwise: str) -> str:
    """Where a workload or job key was set: options at or below it, else the line of the file, else otherwise."""
    given = [flag for name, flag in flags.items() if name == key or name.startswith(f"{key}.") or key == "workload"]
    if given:
        return ", ".join(dict.fromkeys(given))
    return file.place(key) if file.path else otherwise


def _section(key: str) -> str:
    """The section of a dotted key; empty of a key of none."""
    return key.rpartition(".")[0]


def _run_value(place: str, key: str, value: Any) -> Any:
    """The checked value of a key of the file that belongs to the run, not to the workload."""
    where = f"{place}: {key}"
    if key == "rounds":
        if value != "auto" and (type(value) is not int or not 1 <= value <= MOST_ROUNDS):
            raise UsageError(f"{where}: {shown(value)} is neither a number from 1 to {MOST_ROUNDS} nor auto")
        return value
    if key == "launcher" and value not in LAUNCHERS:
        raise UsageError(f"{where}: {shown(value)} is neither {' nor '.join(LAUNCHERS)}")
    if key == "placements" and isinstance(value, list) and all(isinstance(word, str) for word in value):
        return ",".join(value)
    if not isinstance(value, str):
        example = "a list of words, such as [standard, split]" if key == "placements" else "text"
        raise UsageError(f"{where}: {shown(value)} is not {example}")
    return Path(value) if key == "out" else value
