"""The processes of a launch, read from `processes.jsonl` while the job still appends to it."""

import json
from dataclasses import dataclass
from pathlib import Path

from placebench.errors import PlacebenchError
from placebench.runfolder import JsonlTail


@dataclass(frozen=True)
class JobProcess:
    """A process of the job and the device it works on (`controller` for the controller)."""

    pid: int
    device: str


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
            entry = json.loads(line)
            return JobProcess(int(entry["pid"]), str(entry["device"]))
        except (KeyError, TypeError, ValueError):
            text = line.decode(errors="replace")
            raise PlacebenchError(f"{self.path}: {text!r} is not a process with pid and device") from None
