"""The commands by which a run was gone on with, as `run.json` records them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from placebench.spec.launchers import LAUNCHERS, RAY


@dataclass(frozen=True)
class Resumption:
    """One start of a run after its first.

    Attributes:
        started: when, ISO 8601.
        command: the command line.
    """

    started: str
    command: tuple[str, ...]


def recorded_resumptions(content: Mapping[str, Any]) -> tuple[Resumption, ...]:
    """The resumptions of a run, from the content of its `run.json`; of a version that did not record them, none.

    Raises:
        KeyError, TypeError, ValueError: it is damaged.
    """
    entries = content.get("resumptions", [])
    if not isinstance(entries, list):
        raise ValueError(f"resumptions: {entries!r} is no list")
    return tuple(Resumption(_text(entry["started"]), _words(entry["command"])) for entry in entries)


def _words(command: object) -> tuple[str, ...]:
    if not isinstance(command, list):
        raise ValueError(f"resumptions: {command!r} is no list of words")
    return tuple(_text(word) for word in command)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"resumptions: {value!r} is no text")
    return value


def recorded_seconds(content: Mapping[str, Any]) -> tuple[float, float]:
    """Seconds of a run and of all its launches, from the content of its `run.json`."""
    launches = [float(launch["wall"]["total_s"]) for launch in content["launches"]]
    return float(content["wall"]["total_s"]), sum(launches)


def recorded_launcher(manifest: Mapping[str, Any]) -> str:
    """The launcher of a run, from the content of its `run.json`; earlier versions started all with Ray.

    Raises:
        ValueError: there is none of that name.
    """
    launcher = str(manifest.get("launcher", RAY))
    if launcher not in LAUNCHERS:
        raise ValueError(f"launcher {launcher!r}")
    return launcher
