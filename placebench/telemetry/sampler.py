"""The sampler: a process of its own, one per node, that writes what the devices do while a launch runs.

`python -m placebench.telemetry.sampler TRIAL_DIR [--hz 5]` reads the devices from `launch.json` and the processes from
`processes.jsonl`, and writes `devices.jsonl` (see `samples`) until SIGTERM or SIGINT, or until its parent is gone.
"""

import argparse
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placebench.errors import PlacebenchError, UsageError
from placebench.record.folder import SCHEMA_VERSION, Trial
from placebench.record.launch_devices import launch_devices
from placebench.record.tail import JsonlTail
from placebench.record.writing import append_jsonl
from placebench.spec.devices import Device, device_to_dict
from placebench.spec.reading import parse_json
from placebench.telemetry.cpu_source import CpuSource, JobProcess
from placebench.telemetry.samples import DEFAULT_HZ, MAX_HZ, Line
from placebench.telemetry.spans import SpanClock

if TYPE_CHECKING:
    from placebench.telemetry.nvml_source import NvmlSource

_KEEP_UP_S = 1.0


class Ticker:
    """Ticks at fixed times from the start, so that a late tick does not delay the ones after it.

    Args:
        hz: ticks a second.
        clock: monotonic clock.
    """

    def __init__(self, hz: float, clock: SpanClock) -> None:
        self._period = 1 / hz
        self._clock = clock
        self._start = clock.mono()
        self._position = 0
        self._last = self._start
        self.ticks = 0
        self.missed = 0

    def begin(self) -> None:
        """A tick begins now."""
        self._last = self._clock.mono()
        self.ticks += 1

    def wait_s(self) -> float:
        """Seconds from now to the next tick; those whose time has passed already are counted as missed."""
        now = self._clock.mono()
        position = max(self._position + 1, math.ceil((now - self._start) / self._period))
        self.missed += position - self._position - 1
        self._position = position
        return max(0.0, self._start + position * self._period - now)

    @property
    def achieved_hz(self) -> float | None:
        """Ticks a second between the first and the last; None with fewer than two."""
        return (self.ticks - 1) / (self._last - self._start) if self.ticks > 1 else None


def sample_launch(trial: Trial, hz: float, stop: threading.Event, parent: int) -> None:
    """Sample the devices of a launch until asked to stop.

    Args:
        trial: the launch's folder.
        hz: ticks a second.
        stop: ends the sampling when set.
        parent: PID of the parent; sampling ends when the process has another.

    Raises:
        PlacebenchError: `launch.json` cannot be read, NVML does not answer, or the file cannot be written.
    """
    devices = launch_devices(trial)
    processes = JsonlTail(trial.processes)
    try:
        with trial.device_samples.open("w", encoding="utf-8") as stream:
            sample_devices(
                devices,
                lambda: added_processes(processes),
                lambda line: append_jsonl(stream, line),
                hz,
                stop,
                lambda: os.getppid() == parent,
            )
    except OSError as error:
        raise PlacebenchError(f"{error.filename or trial.device_samples}: {error.strerror}") from None


def added_processes(file: JsonlTail) -> list[JobProcess]:
    """Processes added to a `processes.jsonl` since the last call; an unfinished last line waits for the next one.

    Raises:
        PlacebenchError: a line is not what the job writes.
    """
    added = []
    for line in file.read_lines():
        try:
            entry = parse_json(line)
            added.append(JobProcess(int(entry["pid"]), str(entry["device"])))
        except (KeyError, TypeError, ValueError):
            text = line.decode(errors="replace")
            raise PlacebenchError(f"{file.path}: {text!r} is not a process with pid and device") from None
    return added


def sample_devices(
    devices: Sequence[Device],
    added: Callable[[], Iterable[JobProcess]],
    write: Callable[[dict[str, Any]], None],
    hz: float,
    stop: threading.Event,
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Sample devices of this node until asked to stop.

    Args:
        devices: at least one.
        added: the processes that work on them, come since its last call.
        write: takes the lines of `devices.jsonl`.
        hz: ticks a second.
        stop: ends the sampling when set.
        is_wanted: asked at each tick; sampling ends when it says no.

    Raises:
        PlacebenchError: NVML does not answer.
    """
    clock = SpanClock()
    gpus = [device.id for device in devices if device.kind == "gpu"]
    cores = {device.id: len(device.cores) for device in devices if device.kind == "cpu"}
    sources: list[CpuSource | NvmlSource] = [CpuSource(cores, added, clock)]
    if gpus:
        from placebench.telemetry import nvml_source

        sources.insert(0, nvml_source.NvmlSource(gpus, clock))
    try:
        write(_header(devices, hz, "nvml" if gpus else "cpu", sources, clock))
        ticker = Ticker(hz, clock)
        while not stop.is_set() and is_wanted():
            ticker.begin()
            _write_all(write, (source.read() for source in sources))
            wait = ticker.wait_s()
            while not stop.wait(min(wait, _KEEP_UP_S)) and is_wanted() and wait > _KEEP_UP_S:
                _write_all(write, (source.keep_up() for source in sources))
                wait -= _KEEP_UP_S
        _write_all(write, (source.finish() for source in sources))
        write(
            {
                "kind": Line.FOOTER,
                "ticks": ticker.ticks,
                "missed": ticker.missed,
                "achieved_hz": ticker.achieved_hz,
                "cpu_s": time.thread_time(),
            }
        )
    finally:
        for source in sources:
            source.close()


def _write_all(write: Callable[[dict[str, Any]], None], parts: Iterable[Iterator[dict[str, Any]]]) -> None:
    for lines in parts:
        for line in lines:
            write(line)


def _header(
    devices: Sequence[Device], hz: float, source: str, sources: "Sequence[CpuSource | NvmlSource]", clock: SpanClock
) -> dict[str, Any]:
    mono = clock.mono()
    content: dict[str, Any] = {
        "kind": Line.HEADER,
        "schema_version": SCHEMA_VERSION,
        "hz": hz,
        "source": source,
        "node": devices[0].node,
        "wall": clock.wall(mono),
        "mono": mono,
        "devices": [device_to_dict(device) for device in devices],
        "gpm": False,
        "notes": [],
    }
    for part in sources:
        header = part.header()
        content = content | header | {"notes": content["notes"] + header["notes"]}
    return content


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sampler; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m placebench.telemetry.sampler", description="Write what the devices do while a launch runs."
    )
    parser.add_argument("trial", metavar="TRIAL_DIR", type=Path, help="folder of the launch, with launch.json")
    parser.add_argument("--hz", type=float, default=DEFAULT_HZ, help="samples a second (default: %(default)g)")
    options = parser.parse_args(arguments)
    parent = os.getppid()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        if not 0 < options.hz <= MAX_HZ:
            raise UsageError(f"--hz {options.hz:g}: must be above 0 and at most {MAX_HZ:g}")
        sample_launch(Trial(options.trial), options.hz, stop, parent)
    except PlacebenchError as error:
        print(f"sampler: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
