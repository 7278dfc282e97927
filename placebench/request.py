"""What the user asks for: options over the YAML file, the file over the preset, each value with where it is from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placebench.config import find_line, load_yaml, merge, nest, parse_settings
from placebench.errors import UsageError
from placebench.plan import RunRequest
from placebench.rounds import MOST_ROUNDS

RUN_KEYS = ("placements", "rounds", "devices", "name", "out")


@dataclass(frozen=True)
class WorkloadOption:
    """An option that is short for a workload key, as given.

    Attributes:
        flag: as the user writes it, such as `--batch-size`.
        key: the dotted workload key.
        value: as given.
    """

    flag: str
    key: str
    value: Any


def build_request(
    options: Mapping[str, Any],
    workload_options: Sequence[WorkloadOption],
    settings: Sequence[str],
    config: Path | None,
) -> RunRequest:
    """Put together what options, `--set` and `--config` say.

    Args:
        options: fields of `RunRequest` by name that were given as options.
        workload_options: options given that are short for a workload key.
        settings: `key=value` of every `--set`.
        config: the YAML file; None without one.

    Raises:
        UsageError: the file cannot be read, a run key in it has a wrong value, or a key is given twice.
    """
    content = load_yaml(config) if config else {}
    run_keys = {key: _run_value(config, key, content.pop(key)) for key in RUN_KEYS if config and key in content}
    setting_keys = {setting.partition("=")[0].strip() for setting in settings}
    for option in workload_options:
        if option.key in setting_keys:
            raise UsageError(f"{option.flag} and --set {option.key} are the same setting: give it once")
    over = parse_settings(settings)
    for option in workload_options:
        over = merge(over, nest(option.key.split("."), option.value))
    flags = {option.key: option.flag for option in workload_options} | dict.fromkeys(setting_keys, "--set")
    return RunRequest(
        workload=merge(content, over),
        origin=lambda key: _origin(key, flags, config),
        **{**run_keys, **options},
    )


def _origin(key: str, flags: Mapping[str, str], config: Path | None) -> str:
    """Where a workload key was set: options at or below it, else the line of the file, else the preset."""
    given = [flag for name, flag in flags.items() if name == key or name.startswith(f"{key}.") or key == "workload"]
    if given:
        return ", ".join(dict.fromkeys(given))
    if config is None:
        return "workload"
    return _place(config, key)


def _place(config: Path, key: str) -> str:
    """The line of the file that sets a key; the file alone for a default of it, or for a pipe, which is read once."""
    line = find_line(config, key)
    return str(config) if line is None else f"{config}, line {line}"


def _run_value(config: Path, key: str, value: Any) -> Any:
    """The checked value of a key of the file that belongs to the run, not to the workload."""
    where = f"{_place(config, key)}: {key}"
    if key == "rounds":
        if value != "auto" and (type(value) is not int or not 1 <= value <= MOST_ROUNDS):
            raise UsageError(f"{where}: {value!r} is neither a number from 1 to {MOST_ROUNDS} nor auto")
        return value
    if key == "placements" and isinstance(value, list) and all(isinstance(word, str) for word in value):
        return ",".join(value)
    if not isinstance(value, str):
        example = "a list of words, such as [standard, split]" if key == "placements" else "text"
        raise UsageError(f"{where}: {value!r} is not {example}")
    return Path(value) if key == "out" else value
