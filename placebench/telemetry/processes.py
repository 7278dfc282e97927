"""The processes of a launch, reported while they come: from `processes.jsonl`, or within one process."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Protocol

from placebench.errors import PlacebenchError
from placebench.record.folder import JsonlTail
from placebench.spec.reading import parse_json


@dataclass(frozen=True)
class JobProcess:
    """A process of the job and the device it works on (`controller` for the controller)."""

    pid: int
    device: str


class ProcessSource(Protocol):
    """Tells of each process of a launch once."""

    def poll(self) -> list[JobProcess]:
        """Processes added since the last call."""


class ProcessQueue:
    """Hands processes from one thread to another."""

    def __init__(self) -> None:
        self._added: SimpleQueue[JobProcess] = SimpleQueue()

    def add(self, process: JobProcess) -> None:
        """Add a process."""
        self._added.put(process)

    def poll(self) -> list[JobProcess]:
        """Processes added since the last call."""
        found: list[JobProcess] = []
        with suppress(Empty):
            while True:
                found.append(self._added.get_nowait())
        return found


class ProcessFile:
    """Hands out each line of a growing `processes.jsonl` once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tail = JsonlTail(path)

    def poll(self) -> list[JobProcess]:
        """Processes added since the last call; an unfinished last line waits for the next one.

        Raises:
            PlacebenchError: a line is not what the job writes.
        """
        return [self._parse(line) for line in self._tail.read_lines()]

    def _parse(self, line: bytes) -> JobProcess:
        try:
            entry = parse_json(line)
            return JobProcess(int(entry["pid"]), str(entry["device"]))
        except (KeyError, TypeError, ValueError):
            text = line.decode(errors="replace")
            raise PlacebenchError(f"{self.path}: {text!r} is not a process with pid and device") from None
