"""The processes of a launch, as `processes.jsonl` tells of them while they come."""

from dataclasses import dataclass

from placebench.errors import PlacebenchError
from placebench.record.folder import JsonlTail
from placebench.spec.reading import parse_json


@dataclass(frozen=True)
class JobProcess:
    """A process of the job and the device it works on (`controller` for the controller)."""

    pid: int
    device: str


def added_processes(file: JsonlTail) -> list[JobProcess]:
    """Processes added to a `processes.jsonl` since the last call; an unfinished last line waits for the next one.

    Raises:
        PlacebenchError: a line is not what the job writes.
    """
    return [_parse(line, file) for line in file.read_lines()]


def _parse(line: bytes, file: JsonlTail) -> JobProcess:
    try:
        entry = parse_json(line)
        return JobProcess(int(entry["pid"]), str(entry["device"]))
    except (KeyError, TypeError, ValueError):
        text = line.decode(errors="replace")
        raise PlacebenchError(f"{file.path}: {text!r} is not a process with pid and device") from None
