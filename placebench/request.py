"""What the user asks for: options over the YAML file, the file over the preset, each value with where it is from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from placebench.config import find_line, load_yaml, merge, nest, read_settings
from placebench.errors import Reasons, UsageError
from placebench.launchers import LAUNCHERS
from placebench.plan import RunRequest
from placebench.rounds import MOST_ROUNDS
from placebench.workload import keys_below, workload_keys
from placebench.workload_reading import gives

RUN_KEYS = ("placements", "rounds", "devices", "name", "out", "launcher")


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
    wrong: Mapping[str, str] = MappingProxyType({}),
) -> RunRequest:
    """Put together what options, `--set` and `--config` say; what is wrong with them is in the request.

    Args:
        options: fields of `RunRequest` by name that were given as options.
        workload_options: options given that are short for a workload key.
        settings: `key=value` of every `--set`.
        config: the YAML file; None without one.
        wrong: by field of `RunRequest` or dotted workload key, why an option that was given cannot be read.
    """
    reasons = Reasons()
    reasons.add(wrong.values())
    content = reasons.attempt(lambda: load_yaml(config)) if config else {}
    run_keys = {}
    for key in RUN_KEYS:
        if config and content and key in content:
            run_keys[key] = reasons.attempt(partial(_run_value, config, key, content[key]))
    setting_keys = {setting.partition("=")[0].strip() for setting in settings}
    clashes = [option for option in workload_options if option.key in setting_keys]
    reasons.add(f"{option.flag} and --set {option.key} are the same setting: give it once" for option in clashes)
    over, malformed = read_settings(settings, reasons)
    for option in workload_options:
        over = merge(over, nest(option.key.split("."), option.value))
    unread = {*wrong, *(option.key for option in clashes)}
    unread |= {key for key, value in run_keys.items() if value is None and key not in options}
    unread |= {below for key in malformed for below in keys_below(key)}
    if content is None:
        unread |= {key for key in RUN_KEYS if key not in options}
        unread |= {key for key in workload_keys() if not gives(over, key)}
    flags = {option.key: option.flag for option in workload_options} | dict.fromkeys(setting_keys, "--set")
    return RunRequest(
        workload=merge({key: value for key, value in (content or {}).items() if key not in RUN_KEYS}, over),
        origin=lambda key: _origin(key, flags, config),
        wrong=reasons.lines,
        unread=frozenset(unread),
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
    if key == "launcher" and value not in LAUNCHERS:
        raise UsageError(f"{where}: {value!r} is neither {' nor '.join(LAUNCHERS)}")
    if key == "placements" and isinstance(value, list) and all(isinstance(word, str) for word in value):
        return ",".join(value)
    if not isinstance(value, str):
        example = "a list of words, such as [standard, split]" if key == "placements" else "text"
        raise UsageError(f"{where}: {value!r} is not {example}")
    return Path(value) if key == "out" else value
